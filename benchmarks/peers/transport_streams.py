"""Raw Redis Streams by hand: at least once, one visible result, nothing else.

No priorities, deadlines, cancelling, back-pressure, dead letters, batching or messages of a contract: what is left is
the price of the guarantees themselves. Plain, each call of a script is a round trip; `pipelined`, both ends send what
has gathered in one, which is as little as redis-py can do.
"""

import asyncio
import uuid
from typing import Any

from peers.transport_sides import Setting, score

#: Milliseconds that a blocking read waits; entries that a read fetches.
BLOCK_MS, COUNT = 500, 64
#: Seconds of silence after which a client submits again.
RESUBMIT_S = 5.0

# KEYS: stream, result, in flight. ARGV: request id, body, reply stream
_SUBMIT = """
local result = redis.call('GET', KEYS[2])
if result then
  redis.call('XADD', ARGV[3], '*', 'rid', ARGV[1], 'body', result)
  return 0
end
if redis.call('SET', KEYS[3], '1', 'NX', 'PX', 86400000) then
  redis.call('XADD', KEYS[1], '*', 'rid', ARGV[1], 'body', ARGV[2], 'reply', ARGV[3])
end
return 1
"""
# KEYS: stream, result, in flight, reply stream. ARGV: entry id, request id, result
_COMPLETE = """
if redis.call('SET', KEYS[2], ARGV[3], 'NX', 'PX', 600000) then
  redis.call('XADD', KEYS[4], '*', 'rid', ARGV[2], 'body', ARGV[3])
end
redis.call('XACK', KEYS[1], 'workers', ARGV[1])
redis.call('XDEL', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[3])
return 1
"""
_STREAM = "{raw}:q"


def _redis(url: str) -> Any:
    import redis.asyncio

    # The longest wait of a blocking read must not look like a dead connection. Plain, each call in flight has its own.
    return redis.asyncio.Redis.from_url(url, protocol=2, socket_timeout=10, max_connections=4096)


class Client:
    """Submits texts and waits for their values."""

    def __init__(self, url: str, *, pipelined: bool) -> None:
        self._pipelined = pipelined
        self._redis = _redis(url)
        self._submit = self._redis.register_script(_SUBMIT)
        self._reply = "{raw}:reply:" + uuid.uuid4().hex
        self._waiting: dict[str, asyncio.Future[float]] = {}
        self._outbox: list[tuple[str, str]] = []
        self._sender: asyncio.Task[None] | None = None
        self._closed = False
        self._reader = asyncio.create_task(self._read())

    async def call(self, text: str) -> float:
        """The value of a text; asks again under the same id while nothing is heard."""
        request_id = uuid.uuid4().hex
        future = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        while not future.done():
            if self._pipelined:
                self._outbox.append((request_id, text))
                if self._sender is None or self._sender.done():
                    self._sender = asyncio.create_task(self._send())
            else:
                await self._submit(*self._submission(request_id, text))
            await asyncio.wait([future], timeout=RESUBMIT_S)
        return future.result()

    async def close(self) -> None:
        """Disconnect."""
        # redis-py does not always notice that a blocking read is cancelled.
        self._closed = True
        await self._reader
        await self._redis.aclose()

    async def _send(self) -> None:
        while self._outbox:
            batch, self._outbox = self._outbox[:COUNT], self._outbox[COUNT:]
            async with self._redis.pipeline(transaction=False) as pipe:
                for one in batch:
                    await self._submit(*self._submission(*one), client=pipe)
                await pipe.execute()

    def _submission(self, request_id: str, text: str) -> tuple[list[str], list[str]]:
        keys = [_STREAM, "{raw}:res:" + request_id, "{raw}:dd:" + request_id]
        return keys, [request_id, text, self._reply]

    async def _read(self) -> None:
        last: Any = "0"
        while not self._closed:
            answer = await self._redis.xread({self._reply: last}, COUNT, BLOCK_MS)
            if not answer:
                continue
            entries = answer[0][1]
            last = entries[-1][0]
            for _, fields in entries:
                future = self._waiting.pop(fields[b"rid"].decode(), None)
                if future is not None:
                    future.set_result(float(fields[b"body"]))
            await self._redis.xdel(self._reply, *(entry_id for entry_id, _ in entries))


def serve(setting: Setting, *, pipelined: bool) -> None:
    """Work until the process is ended."""
    import uvloop

    uvloop.run(_work(setting, pipelined))


async def _work(setting: Setting, pipelined: bool) -> None:
    import redis.exceptions

    client = _redis(setting.redis_url)
    complete = client.register_script(_COMPLETE)
    name, lease_ms = uuid.uuid4().hex, round(setting.lease_s * 1000)
    try:
        await client.xgroup_create(_STREAM, "workers", "0", mkstream=True)
    except redis.exceptions.ResponseError as error:
        if "BUSYGROUP" not in str(error):
            raise
    loop = asyncio.get_running_loop()
    next_rescue = 0.0
    while True:
        entries: list[Any] = []
        if loop.time() >= next_rescue:
            # What another worker was given and has not answered for a lease.
            entries = (
                await client.xautoclaim(_STREAM, "workers", name, lease_ms, count=setting.concurrency)
            )[1]
            next_rescue = loop.time() + min(1.0, setting.lease_s / 3)
        if not entries:
            answer = await client.xreadgroup(
                "workers", name, {_STREAM: ">"}, count=setting.concurrency, block=BLOCK_MS
            )
            entries = answer[0][1] if answer else []
        async with client.pipeline(transaction=False) as pipe:
            for entry_id, fields in entries:
                request_id = fields[b"rid"].decode()
                value = score(fields[b"body"].decode(), setting)
                keys = [_STREAM, "{raw}:res:" + request_id, "{raw}:dd:" + request_id, fields[b"reply"]]
                await complete(
                    keys, [entry_id, request_id, repr(value)], client=pipe if pipelined else client
                )
            await pipe.execute()
