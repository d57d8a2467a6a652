"""The client's end of the queue."""

import asyncio
import math
import secrets
import uuid
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from guerdon.errors import GuerdonError, InvalidRequest, Overloaded, Unauthorized, Unavailable
from guerdon.queue.link import BACKOFF_S, BLOCK_MS, Link, log
from guerdon.types import Status

#: Seconds that a submission keeps trying while Redis cannot be reached, unless it says otherwise.
SUBMIT_PATIENCE_S = 5.0
#: Seconds of silence after which a client asks what became of its requests.
PROBE_EVERY_S = 5.0
#: Requests that one probe asks about.
PROBE_CHUNK = 100
#: Seconds without Redis after which every waiting request is answered with `unavailable`.
OUTAGE_LIMIT_S = 60.0
#: Replies that one read fetches at most.
REPLIES_PER_READ = 64
#: Bytes of a request id: it is part of the names of keys.
MAX_ID_BYTES = 1024
#: Seconds: a deadline that is further away counts as this one.
MAX_DEADLINE_S = 1e8


@dataclass(frozen=True)
class Reply:
    """The answer to one request. `body` is empty unless `status` is ok; `reason` then says what went wrong."""

    request_id: str
    status: Status
    reason: str
    body: bytes


@dataclass
class _Waiting:
    """A request that has not been answered yet, with all that submitting it again takes."""

    request_id: str
    #: Whether the caller chose the id, and so may ask for the same request again.
    named: bool
    serial: int
    op: str
    body: bytes
    priority: int
    trace: str
    expires: float | None
    future: asyncio.Future[Reply]
    heard: float


class Producer:
    """Submits requests to one service and hands out their replies; one per client process and service.

    A `client_id` that a restarted process uses again leads the replies of the old one to the new one, which
    gets at them by submitting the same request ids. It must be unique among live clients.
    """

    def __init__(
        self, url: str, service: str, *, client_id: str | None = None, max_length: int = 10_000
    ) -> None:
        self.client_id = client_id or uuid.uuid4().hex
        self.service = service
        self._anonymous = client_id is None
        self._max_length = max_length
        self._link = Link(url, service)
        self._waiting: dict[str, _Waiting] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._reader: asyncio.Task[None] | None = None
        self._prober: asyncio.Task[None] | None = None
        self._probe_now = asyncio.Event()
        #: Id of the last reply that was read.
        self._last = "0"
        self._serial = 0
        self._closed = False

    async def submit(
        self,
        op: str,
        body: bytes,
        *,
        request_id: str | None = None,
        deadline_s: float | None = None,
        high_priority: bool = False,
        patience_s: float = SUBMIT_PATIENCE_S,
        trace: str = "",
    ) -> asyncio.Future[Reply]:
        """Queue a request; the future resolves to its reply, and cancelling it withdraws work not yet begun.

        A request id that was answered within the last ten minutes gets the same answer again, whoever asked then;
        one that is in flight is not queued twice, and who submitted it first withdraws it. `deadline_s` counts from
        now; the reply is then `timeout` if nothing came sooner. While Redis cannot be reached, this tries for
        `patience_s` seconds to queue it. `trace` is the W3C traceparent that the worker continues.

        Raises:
            InvalidRequest: an id that is no text or too long, a deadline that is no number, or too large a body.
            Overloaded: the queue is full.
            Unavailable: Redis cannot be reached, or this producer is closed.
        """
        if self._closed:
            raise Unavailable("this producer is closed")
        loop = asyncio.get_running_loop()
        named, request_id = bool(request_id), request_id or secrets.token_hex(16)
        _check(request_id, deadline_s)
        known = self._waiting.get(request_id)
        # One that was cancelled just now is not forgotten yet, and this is a submission anew.
        if known is not None and not known.future.done():
            return asyncio.shield(known.future)
        expires = None if deadline_s is None else loop.time() + min(deadline_s, MAX_DEADLINE_S)
        self._serial += 1
        priority = 0 if high_priority else 1
        waiting = _Waiting(
            *(request_id, named, self._serial, op, body, priority, trace),
            *(expires, loop.create_future(), loop.time()),
        )
        if deadline_s is not None and deadline_s <= 0:
            self._expire(waiting)
            return waiting.future
        self._start()
        await self._enter(waiting, patience_s)
        return waiting.future

    async def close(self) -> None:
        """Answer what still waits with `unavailable`, and disconnect.

        Work that was queued is withdrawn, unless a `client_id` was given under which a later process may ask.
        """
        if self._closed:
            return
        self._closed = True
        unanswered = [
            part for waiting in self._waiting.values() for part in (waiting.request_id, waiting.serial)
        ]
        self._give_up(Status.UNAVAILABLE, "the client was closed before an answer came")
        if self._reader is not None and self._prober is not None:
            self._probe_now.set()
            await self._quietly("wake", self.client_id)
            await asyncio.wait([self._reader, self._prober])
            await asyncio.gather(*self._background)
            if self._anonymous:
                # Nobody can come back for these answers.
                await self._quietly("cancel", self.client_id, *unanswered)
                await self._quietly("goodbye", self.client_id)
        await self._link.close()

    async def _enter(self, waiting: _Waiting, patience: float) -> None:
        self._waiting[waiting.request_id] = waiting
        timer: asyncio.TimerHandle | None = None
        if waiting.expires is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_at(waiting.expires, self._expire, waiting)
            patience = min(patience, waiting.expires - loop.time())
        waiting.future.add_done_callback(lambda _: self._forget(waiting, timer))
        try:
            state = await self._send(waiting, patience)
            if state == b"full":
                raise Overloaded(f"the queue of {self.service} holds {self._max_length} requests, its bound")
        except GuerdonError as error:
            _fail(waiting.future, error)
            raise
        except asyncio.CancelledError:
            waiting.future.cancel()
            raise

    async def _send(self, waiting: _Waiting, patience_s: float) -> bytes:
        remaining_ms: int | str = ""
        if waiting.expires is not None:
            remaining_ms = max(0, round((waiting.expires - asyncio.get_running_loop().time()) * 1000))
        state: bytes = await self._link.call(
            "submit",
            *(waiting.request_id, waiting.op, waiting.body, self.client_id),
            *(waiting.priority, remaining_ms, self._max_length, waiting.serial, waiting.trace),
            patience_s=patience_s,
        )
        return state

    def _start(self) -> None:
        if self._reader is None:
            loop = asyncio.get_running_loop()
            self._reader = loop.create_task(self._read_replies())
            self._prober = loop.create_task(self._probe_silent())

    def _expire(self, waiting: _Waiting) -> None:
        if not waiting.future.done():
            reason = "the deadline passed before an answer came"
            waiting.future.set_result(Reply(waiting.request_id, Status.TIMEOUT, reason, b""))

    def _forget(self, waiting: _Waiting, timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
        if self._waiting.get(waiting.request_id) is waiting:
            del self._waiting[waiting.request_id]
        if waiting.future.cancelled() and not self._closed:
            self._in_background(self._quietly("cancel", self.client_id, waiting.request_id, waiting.serial))

    def _resolve(self, reply: Reply) -> bool:
        """Hand out a reply. True when nobody can ask for it again."""
        waiting = self._waiting.pop(reply.request_id, None)
        if waiting is not None and not waiting.future.done():
            waiting.future.set_result(reply)
        return waiting is not None and not waiting.named

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _quietly(self, script: str, *arguments: str | int) -> None:
        """Run a script that only tidies up: what it leaves behind while Redis is away expires by itself."""
        try:
            await self._link.call(script, *arguments)
        except GuerdonError as error:
            log.warning("%s failed: %s", script, error)

    async def _read_replies(self) -> None:
        pause, away = BACKOFF_S[0], False
        key = self._link.key(f"reply:{self.client_id}")
        while not self._closed:
            try:
                answer = await self._link.block(
                    *("XREAD", "COUNT", REPLIES_PER_READ, "BLOCK", BLOCK_MS, "STREAMS", key, self._last)
                )
            except GuerdonError as error:
                log.warning("waiting for replies of %s: %s", self.service, error)
                # Whatever was not read yet is still there, under whichever id a recovered server gave it.
                self._last, away = "0", True
                await asyncio.sleep(pause)
                pause = min(2 * pause, BACKOFF_S[1])
                continue
            if away:
                # A server that comes back may have lost its last second.
                pause, away = BACKOFF_S[0], False
                self._probe_now.set()
            if answer:
                entries: list[tuple[bytes, dict[bytes, bytes]]] = answer[0][1]
                self._last = entries[-1][0].decode()
                self._deliver(entries)

    def _deliver(self, entries: Sequence[tuple[bytes, dict[bytes, bytes]]]) -> None:
        read: list[str] = []
        for entry_id, fields in entries:
            reply = _reply(fields)
            spent = self._resolve(reply)
            read += [entry_id.decode(), reply.request_id if spent else ""]
        self._in_background(self._quietly("read", self.client_id, *read))

    async def _probe_silent(self) -> None:
        loop = asyncio.get_running_loop()
        last_contact = loop.time()
        while not self._closed:
            try:
                await asyncio.wait_for(self._probe_now.wait(), PROBE_EVERY_S)
                self._probe_now.clear()
                overdue = loop.time()
            except TimeoutError:
                overdue = loop.time() - PROBE_EVERY_S
            silent = [waiting for waiting in self._waiting.values() if waiting.heard <= overdue]
            try:
                for start in range(0, len(silent), PROBE_CHUNK):
                    await self._probe(silent[start : start + PROBE_CHUNK])
                last_contact = loop.time()
            except Overloaded as error:
                # Redis is full: what it holds is worked on, and the rest is queued once there is room.
                last_contact = loop.time()
                log.warning("asking for replies of %s: %s", self.service, error)
            except Unauthorized as error:
                self._give_up(error.status, str(error))
            except GuerdonError as error:
                if loop.time() - last_contact > OUTAGE_LIMIT_S:
                    self._give_up(error.status, str(error))

    async def _probe(self, silent: Sequence[_Waiting]) -> None:
        now = asyncio.get_running_loop().time()
        states = await self._link.call("probe", self.client_id, *(waiting.request_id for waiting in silent))
        if b"answered" in states:
            # Sent again, maybe under an older id: a server that lost its data numbers by its clock, which may be slow.
            self._last = "0"
        for waiting, state in zip(silent, states, strict=True):
            waiting.heard = now
            if state == b"broken":
                reason = "Redis holds something else under the keys of this request"
                self._resolve(Reply(waiting.request_id, Status.INTERNAL_ERROR, reason, b""))
            # The queue may be full by now; the next probe tries again.
            elif state == b"missing" and not waiting.future.done():
                await self._send(waiting, 0.0)

    def _give_up(self, status: Status, reason: str) -> None:
        for waiting in list(self._waiting.values()):
            self._resolve(Reply(waiting.request_id, status, reason, b""))


def _check(request_id: str, deadline_s: float | None) -> None:
    try:
        size = len(request_id.encode())
    except UnicodeEncodeError:
        # Redis would be given another id, under which nobody waits for the answer.
        raise InvalidRequest("request id: holds half of a surrogate pair, which is no text") from None
    if size > MAX_ID_BYTES:
        raise InvalidRequest(f"request id: has {size} bytes, at most {MAX_ID_BYTES} are possible")
    if deadline_s is not None and math.isnan(deadline_s):
        raise InvalidRequest("deadline_s: must be a number of seconds, not nan")


def _reply(fields: Mapping[bytes, bytes]) -> Reply:
    """What a worker has written; one of another release may have written what is not known here."""
    request_id, word, reason = (
        fields.get(name, b"").decode(errors="replace") for name in (b"rid", b"status", b"reason")
    )
    body = fields.get(b"body")
    try:
        status = Status(word)
    except ValueError:
        status, reason = Status.INTERNAL_ERROR, f"a worker answered with the unknown status {word!r}"
    if status is Status.OK and body is None:
        status, reason = Status.INTERNAL_ERROR, "a worker answered without a body"
    return Reply(request_id, status, reason, body if status is Status.OK and body else b"")


def _fail(future: asyncio.Future[Reply], error: GuerdonError) -> None:
    """Tell those who submitted the same request meanwhile; the first hears it from `submit`."""
    if not future.done():
        future.set_exception(error)
        future.exception()
