"""Something between a client and a server: it is slow, or speaks TLS."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests.waiting import PATIENCE_S


@asynccontextmanager
async def proxy(
    host: str | None, port: int | None, *, tls: ssl.SSLContext | None = None, delay_s: float = 0.0
) -> AsyncIterator[int]:
    """The port on localhost that leads to `host` and `port`; each connection is passed on after `delay_s`.

    Clients must be gone at the end. What was left of a connection would be a warning in some later test.
    """
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        await asyncio.sleep(delay_s)
        inner_reader, inner_writer = await asyncio.open_connection(host, port)
        await asyncio.gather(_carry(reader, inner_writer), _carry(inner_reader, writer))

    server = await asyncio.start_server(serve, "localhost", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        if serving:
            await asyncio.wait(serving, timeout=PATIENCE_S)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, ssl.SSLError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
    with suppress(ConnectionError, ssl.SSLError):
        await writer.wait_closed()
