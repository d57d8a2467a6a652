"""One process's connection to Redis: scripts run coalesced, retried and reloaded; blocking reads apart."""

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, cast

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    ClusterDownError,
    ConnectionError,
    MasterDownError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)

from guerdon._urls import without_credentials
from guerdon.errors import GuerdonError, InternalError, Overloaded, TooLarge, Unauthorized, Unavailable

#: Milliseconds that a blocking read waits. Short, so that ending never has to cancel one: a cancelled read may
#: have taken an entry that nobody then knows of.
BLOCK_MS = 500
#: Seconds without any answer after which a connection counts as dead; above BLOCK_MS, or reads would fail.
SOCKET_TIMEOUT_S = 10.0
#: Seconds that a connection may take.
CONNECT_TIMEOUT_S = 3.0
#: Seconds between attempts while Redis cannot be reached: the first, and the longest after doubling.
BACKOFF_S = (0.05, 2.0)
#: Script calls that one round trip carries at most, and bytes above which it carries no further one: what takes longer
#: than the socket's timeout would be broken off again and again.
CALLS_PER_TRIP = 64
TRIP_BYTES = 2**24
#: Bytes of one call. Redis ends the connection of a client that sends half a gigabyte in one piece.
MAX_CALL_BYTES = 2**28

#: What a server says while it restarts, loads its data, or hands over to a replica.
_PASSING = (
    ConnectionError,
    TimeoutError,
    ReadOnlyError,
    MasterDownError,
    ClusterDownError,
    TryAgainError,
    NoScriptError,
)
#: The same, where redis-py has no class for it: a full disk, too few replicas, a script that runs for seconds.
_PASSING_CODES = ("MISCONF ", "NOREPLICAS ", "BUSY ", "UNKILLABLE ")
#: What escapes redis-py's own hierarchy when a connection breaks (uvloop: a transport that closes under a write).
_BROKEN = (OSError, EOFError, RuntimeError)

#: Scripts that may not run while Redis is out of memory: they bring new work. The others finish, hand back or
#: withdraw work, without which a full Redis would stay full.
_BRINGS_WORK = frozenset({"submit", "redrive"})
#: Scripts that change nothing, and so may run on a replica.
_READS_ONLY = frozenset({"stats", "letters"})

Argument = str | bytes | int

log = logging.getLogger("guerdon.queue")


@dataclass(frozen=True)
class QueueStats:
    """A look at one service's queue: counts of entries, dead letters and live workers; age of the oldest entry.

    `submitted` counts all entries since the queue was made; 0 for a queue that nobody has used.
    """

    queued: int
    pending: int
    dead: int
    oldest_ms: int
    workers: int
    submitted: int = 0


async def stats(url: str, service: str) -> QueueStats:
    """What waits (`queued`), is being worked on (`pending`), was given up (`dead`), and who works.

    Raises:
        Unavailable: Redis cannot be reached.
    """
    link = Link(url, service)
    try:
        return QueueStats(*await link.call("stats"))
    finally:
        await link.close()


def load_scripts(folder: Traversable) -> dict[str, tuple[str, bytes]]:
    """Digest and source of each script by its name."""
    sources = {path.name.removesuffix(".lua"): path.read_bytes() for path in folder.iterdir()}
    common = sources.pop("common")
    whole = {name: _header(name) + common + own for name, own in sources.items()}
    return {name: (hashlib.sha1(source).hexdigest(), source) for name, source in whole.items()}


def _header(name: str) -> bytes:
    if name in _READS_ONLY:
        return b"#!lua flags=no-writes\n"
    return b"#!lua\n" if name in _BRINGS_WORK else b"#!lua flags=allow-oom\n"


#: What every link runs, unless it is another release that a test has it play.
SCRIPTS = load_scripts(files("guerdon.queue") / "lua")


def prefix(service: str) -> str:
    """What the keys of a service start with."""
    return f"{{{service}}}:"


@dataclass(frozen=True)
class _Call:
    script: str
    arguments: tuple[Argument, ...]
    size: int
    answer: "asyncio.Future[Any]"


class Link:
    """Runs the queue's scripts for one service. Belongs to the event loop that first uses it."""

    def __init__(self, url: str, service: str) -> None:
        self.url = without_credentials(url)
        self._prefix = prefix(service)
        self._scripts = SCRIPTS
        # redis-py's own retries would hide an outage for minutes, and repeat what must not be repeated.
        self._redis: Any = cast(Any, Redis).from_url(
            url,
            protocol=2,
            socket_timeout=SOCKET_TIMEOUT_S,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
            # Text that has no UTF-8 form would fail every call of its round trip.
            encoding_errors="backslashreplace",
        )
        self._calls: list[_Call] = []
        self._sender: asyncio.Task[None] | None = None
        self._closed = False

    async def call(self, script: str, *arguments: Argument, patience_s: float = 0.0) -> Any:
        """Run a script and return what it returned; try again for `patience_s` while Redis is away.

        Calls made at the same time share a round trip.

        Raises:
            Unavailable: Redis cannot be reached.
            Overloaded: Redis is out of memory.
            Unauthorized: Redis wants another password.
            TooLarge: the arguments have more than `MAX_CALL_BYTES`.
        """
        size = sum(len(one) for one in arguments if not isinstance(one, int))
        if size > MAX_CALL_BYTES:
            raise TooLarge(f"{size} bytes are too many for the queue, larger than max ({MAX_CALL_BYTES})")
        loop = asyncio.get_running_loop()
        give_up = loop.time() + patience_s
        pause, longest = BACKOFF_S
        while True:
            call = _Call(script, arguments, size, loop.create_future())
            self._calls.append(call)
            if self._sender is None or self._sender.done():
                self._sender = loop.create_task(self._send_calls())
            try:
                return await call.answer
            except Unavailable:
                if self._closed or loop.time() + pause > give_up:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    async def block(self, *command: Argument) -> Any:
        """Run a blocking read on a connection of its own and return its answer, None when nothing came.

        Raises:
            Unavailable: Redis cannot be reached, or its streams just vanished.
        """
        try:
            return await self._redis.execute_command(*command)
        except Exception as error:
            # A stream that vanishes under a blocked reader (FLUSHALL, say) is made anew by the next TAKE.
            if "NOGROUP" in str(error) or "UNBLOCKED" in str(error):
                raise Unavailable(f"the streams at {self.url} vanished") from error
            raise self._translated(error) from error

    def key(self, name: str) -> str:
        """The full name of a key of the service."""
        return self._prefix + name

    async def close(self) -> None:
        """Send what still waits to be sent, and disconnect; what fails from now on is not tried again."""
        self._closed = True
        if self._sender is not None:
            await asyncio.wait([self._sender])
        await self._redis.aclose()

    async def _send_calls(self) -> None:
        while self._calls:
            count, size = 1, self._calls[0].size
            for call in self._calls[1:CALLS_PER_TRIP]:
                size += call.size
                if size > TRIP_BYTES:
                    break
                count += 1
            calls, self._calls = self._calls[:count], self._calls[count:]
            answers: list[Any]
            try:
                answers = await self._round_trip(calls)
            except Exception as error:  # whatever it is, the callers must hear of it
                answers = [error] * len(calls)
            for call, answer in zip(calls, answers, strict=True):
                if call.answer.done():
                    continue
                if isinstance(answer, Exception):
                    call.answer.set_exception(self._translated(answer))
                else:
                    call.answer.set_result(answer)

    async def _round_trip(self, calls: Sequence[_Call]) -> list[Any]:
        answers = await self._pipeline([self._evalsha(call) for call in calls])
        missing = [i for i, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if missing:
            # Redis restarted: scripts live in its memory only.
            loaded = await self._pipeline(
                [("SCRIPT", "LOAD", source) for _, source in self._scripts.values()]
            )
            for answer in loaded:
                if isinstance(answer, ResponseError) and "compiling script" in str(answer):
                    raise InternalError(
                        f"Redis at {self.url} does not take the queue's scripts, it must be Valkey or Redis 7.0 or"
                        f" newer: {answer}"
                    )
            again = await self._pipeline([self._evalsha(calls[i]) for i in missing])
            for i, answer in zip(missing, again, strict=True):
                answers[i] = answer
        return answers

    def _evalsha(self, call: _Call) -> tuple[Argument, ...]:
        return ("EVALSHA", self._scripts[call.script][0], 1, self._prefix, *call.arguments)

    async def _pipeline(self, commands: Sequence[tuple[Argument, ...]]) -> list[Any]:
        """One round trip; an error that a command is answered with is its answer.

        redis-py's own pipeline does the same, at several times the cost per command.
        """
        pool = self._redis.connection_pool
        connection = await pool.get_connection()
        try:
            await connection.send_packed_command([_packed(command) for command in commands])
            return [await _answer(connection) for _ in commands]
        except BaseException:
            # What was not read would be taken for the answer to something else.
            await connection.disconnect(nowait=True)
            raise
        finally:
            await pool.release(connection)

    def _translated(self, error: Exception) -> GuerdonError:
        if isinstance(error, GuerdonError):
            return error
        if isinstance(error, AuthenticationError):
            return Unauthorized(f"Redis at {self.url} refuses the user or password: {error}")
        if isinstance(error, OutOfMemoryError):
            return Overloaded(f"Redis at {self.url} is out of memory", retry_after_s=5.0)
        if isinstance(error, _PASSING) or str(error).startswith(_PASSING_CODES):
            return Unavailable(f"Redis at {self.url} cannot be reached: {error}")
        if isinstance(error, RedisError):
            return InternalError(f"Redis at {self.url} answered: {error}")
        kind = Unavailable if isinstance(error, _BROKEN) else InternalError
        return kind(f"Redis at {self.url}: {type(error).__name__}: {error}")


def _packed(command: tuple[Argument, ...]) -> bytes:
    """A command as it goes over the wire. Text that has no UTF-8 form would fail every call of its round trip."""
    parts = [b"*%d\r\n" % len(command)]
    for argument in command:
        if isinstance(argument, str):
            argument = argument.encode("utf-8", "backslashreplace")
        elif isinstance(argument, int):
            argument = b"%d" % argument
        parts.append(b"$%d\r\n%b\r\n" % (len(argument), argument))
    return b"".join(parts)


async def _answer(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error
