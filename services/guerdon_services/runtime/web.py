"""The uvicorn server behind the HTTP door: it binds where told and leaves signals alone."""

import asyncio
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from guerdon_services.runtime.connection import Connection
from guerdon_services.runtime.settings import Address

#: Seconds that an idle connection stays open: longer than clients keep theirs, so that they close first.
_KEEP_ALIVE_S = 75
#: Seconds after which the kernel gives up a client that takes nothing of what is sent to it.
_UNREAD_S = 60


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals belong to the process, which has more to end than this server."""
        yield


class WebServer:
    """One HTTP server on the running event loop."""

    def __init__(
        self,
        app: ASGIApp,
        tls: tuple[Path, Path] | None = None,
        *,
        refused: Callable[[str], None],
        head_s: float,
    ) -> None:
        certificate, key = tls or (None, None)
        self._ending = False
        protocol: Any = partial(Connection, refused=refused, head_s=head_s, ending=lambda: self._ending)
        config = uvicorn.Config(
            app,
            http=protocol,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            # The gate reads HTTP only: a websocket would pass it without a token.
            ws="none",
            timeout_keep_alive=_KEEP_ALIVE_S,
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self, address: Address) -> Address:
        """Listen; returns the address with the port that the system chose.

        Raises:
            OSError: the address cannot be had.
        """
        listener = await asyncio.to_thread(_bind, address)
        self._task = asyncio.get_running_loop().create_task(self._server.serve(sockets=[listener]))
        while not self._server.started:
            # uvicorn offers no event for this.
            await asyncio.wait([self._task], timeout=0.005)
            if self._task.done():
                self._task.result()
        return Address(address.host, listener.getsockname()[1])

    def end_connections(self) -> None:
        """Have clients open a new connection for what they ask after their next answer, here or elsewhere.

        Whoever sends a request in the moment in which this server closes a connection gets no answer to it.
        """
        self._ending = True
        for connection in self._server.server_state.connections:
            cycle = getattr(connection, "cycle", None)
            if cycle is not None and not cycle.response_started:
                cycle.keep_alive = False

    async def stop(self, grace_s: float) -> None:
        """Accept no more connections, and cut those off that have not ended after `grace_s` seconds."""
        if self._task is None:
            return
        self._server.config.timeout_graceful_shutdown = max(1, round(grace_s))
        self._server.should_exit = True
        await asyncio.wait([self._task])
        self._task.result()


def _bind(address: Address) -> socket.socket:
    try:
        [family, kind, protocol, _, resolved] = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(AttributeError):  # Linux; connections inherit it
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _UNREAD_S)
            listener.bind(resolved)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise OSError(f"cannot listen on {address}: {error}") from error
    return listener
