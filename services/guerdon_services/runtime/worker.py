"""The queue door: takes entries, runs them through the batcher, completes each as it finishes."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog

from guerdon import errors
from guerdon.queue import Consumer, Entry, Reply, stats
from guerdon.types import Message, Status
from guerdon_services.runtime import origin, problem
from guerdon_services.runtime.dispatch import Dispatcher
from guerdon_services.runtime.health import QueueState
from guerdon_services.runtime.metrics import Metrics
from guerdon_services.runtime.native import Native, encoded, natives, read
from guerdon_services.runtime.protobuf import parse_versions
from guerdon_services.runtime.submission import Failure, Submission

log = structlog.get_logger(__name__)

#: Seconds between attempts to join a queue that cannot be reached, and between two looks at its length.
_RETRY_S = 1.0
_LOOK_EVERY_S = 5.0
#: Statuses of work that was not done: who asks again should have it done.
_NOT_DONE = frozenset({Status.TIMEOUT, Status.OVERLOADED, Status.UNAVAILABLE})
#: Statuses that a trace shows as errors.
_OUR_FAULT = frozenset({Status.TIMEOUT, Status.UNAVAILABLE, Status.INTERNAL_ERROR})
#: Seconds that handing work back may take when the process ends.
_LEAVE_S = 5.0


class Worker:
    """Runs one consumer. The service is ready without Redis; `state` says how the queue is."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        metrics: Metrics,
        *,
        url: str,
        queue_name: str,
        lease_s: float,
        max_deliveries: int,
    ) -> None:
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._url = url
        self._queue_name = queue_name
        self._consumer = Consumer(url, queue_name, lease_s=lease_s, max_deliveries=max_deliveries)
        self._natives = {native.name: native for native in natives(dispatcher)}
        self._asked: dict[str, Callable[[bytes], Awaitable[Message]]] = {"info": self._info}
        if dispatcher.has_versions:
            self._asked["versions"] = self._versions
        self._stopping = asyncio.Event()
        self._room = asyncio.Event()
        self._held: dict[asyncio.Task[None], Submission[Any] | None] = {}
        self._asking = 0
        self._unstarted: list[Entry] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._joined = False
        self.state: QueueState = "connecting"

    def start(self) -> None:
        """Begin to take work; returns at once, also when Redis is away."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._work()), loop.create_task(self._look())]

    async def stop(self, grace_s: float) -> None:
        """Take no more; hand back what has not started, and what is not finished after `grace_s` seconds."""
        self._stopping.set()
        self._room.set()
        await asyncio.wait(self._tasks)
        for task, submission in self._held.items():
            if submission is not None and not submission.started and not submission.done:
                task.cancel()
        if self._held:
            _, late = await asyncio.wait(list(self._held), timeout=grace_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        try:
            async with asyncio.timeout(_LEAVE_S):
                await self._leave()
        except (errors.GuerdonError, TimeoutError) as error:
            log.warning("leaving the queue failed; its leases will run out", error=str(error))
        self._set_state("stopped")

    async def _leave(self) -> None:
        if self._unstarted:
            self._metrics.worker_entries.labels("released").inc(len(self._unstarted))
            await self._consumer.release(self._unstarted)
        await self._consumer.close()

    async def _work(self) -> None:
        if not await self._join():
            return
        while not self._stopping.is_set():
            room = self._dispatcher.room() - len(self._held) + self._asking
            if room <= 0:
                self._room.clear()
                await self._room.wait()
                continue
            # Never cancelled: a read that is cut off may have taken entries that nobody then knows of.
            for entry in await self._consumer.take(room):
                task = asyncio.get_running_loop().create_task(self._handle(entry))
                self._held[task] = None
                task.add_done_callback(self._let_go)

    async def _join(self) -> bool:
        while not self._stopping.is_set():
            try:
                if await self._unless_stopping(self._consumer.start()):
                    self._joined = True
                    self._set_state("connected")
                    return True
            except errors.GuerdonError as error:
                log.warning("cannot join the queue, trying again", error=str(error))
                await self._unless_stopping(asyncio.sleep(_RETRY_S))
        return False

    async def _look(self) -> None:
        """Publish the queue's length, and notice when Redis goes away and comes back."""
        dead: int | None = None
        while not self._stopping.is_set():
            try:
                # Never cancelled: what is cut off leaves its connection open.
                seen = await stats(self._url, self._queue_name)
                self._metrics.queue_seen(seen)
                if dead is not None and seen.dead > dead:
                    log.warning("dead letters", new=seen.dead - dead, dead=seen.dead)
                dead = seen.dead
                if self._joined:
                    self._set_state("connected")
            except errors.GuerdonError as error:
                log.warning("the queue cannot be reached", error=str(error))
                self._set_state("connecting")
            await self._unless_stopping(asyncio.sleep(_LOOK_EVERY_S))

    async def _handle(self, entry: Entry) -> None:
        came = self._receive(entry)
        op = entry.op if entry.op in self._natives or entry.op in self._asked else "other"
        name = f"queue {op}"
        try:
            status, reply, outcome = await self._reply(entry)
        except (asyncio.CancelledError, errors.Unavailable):
            # Draining, and it has not started or takes too long: another worker will take it.
            self._unstarted.append(entry)
            came.end(name, "released")
            return
        self._metrics.requests.labels("queue", op, outcome).inc()
        self._metrics.worker_entries.labels(status.value).inc()
        came.end(name, status.value, failed=status in _OUR_FAULT)
        try:
            await self._consumer.complete(entry, reply, passing=status in _NOT_DONE)
        except errors.GuerdonError as error:
            log.error("a result could not be delivered; the entry will come again", error=str(error))

    def _receive(self, entry: Entry) -> origin.Origin:
        """Count what is taken, and note where it comes from."""
        self._metrics.worker_wait_seconds.observe(max(0.0, entry.waited_s))
        waited_ms = round(1000 * entry.waited_s)
        attributes = {"guerdon.deliveries": entry.deliveries, "guerdon.waited_ms": waited_ms}
        came = origin.begin("queue", entry.request_id, {"traceparent": entry.trace}, attributes)
        if entry.deliveries > 1:
            self._metrics.worker_redeliveries.inc()
            log.warning("an entry that another worker left", deliveries=entry.deliveries, waited_ms=waited_ms)
        return came

    async def _reply(self, entry: Entry) -> tuple[Status, Reply, str]:
        """The status of what is in the answer, the answer, and the outcome that metrics count."""
        outcome = "ok"
        native, asked = self._natives.get(entry.op), self._asked.get(entry.op)
        try:
            if native is not None:
                answer, status, outcome = await self._run(entry, native)
            elif asked is not None:
                answer, status = await self._ask(entry, asked), Status.OK
            else:
                known = ", ".join([*self._natives, *self._asked])
                raise errors.InvalidRequest(f"op: no such operation {entry.op!r}; known: {known}")
            reply = Reply(entry.request_id, Status.OK, "", encoded(answer))
        except errors.GuerdonError as error:
            if isinstance(error, errors.Unavailable) and self._stopping.is_set():
                raise
            outcome = problem.outcome(error)
            status, reply = error.status, Reply(entry.request_id, error.status, str(error), b"")
        except Exception as error:
            log.exception("entry failed", op=entry.op)
            outcome = "internal"
            status, reason = Status.INTERNAL_ERROR, f"{type(error).__name__}: {error}"
            reply = Reply(entry.request_id, status, reason, b"")
        return status, reply, outcome

    async def _ask(self, entry: Entry, asked: Callable[[bytes], Awaitable[Message]]) -> Message:
        """The answer to a question; one that waits for a version takes nobody's place."""
        self._asking += 1
        self._room.set()
        try:
            async with asyncio.timeout(entry.left_s):
                return await asked(entry.body)
        except TimeoutError as error:
            raise errors.Timeout("the deadline passed before the answer came") from error
        finally:
            self._asking -= 1

    async def _run(self, entry: Entry, native: Native[Any, Any]) -> tuple[Message, Status, str]:
        """As `_reply`; a request that is refused gets an answer that says so."""
        try:
            parsed = await read(native.parse_proto, entry.body)
            if native.name != "update" and len(parsed.samples) != 1:
                raise errors.InvalidRequest(
                    f"samples: a queue entry holds exactly one, not {len(parsed.samples)}"
                )
            submission = await native.begin(parsed, entry.left_s, bounded=False)
        except errors.InvalidRequest as error:
            failure = Failure(error.status, str(error))
            answer = native.refused(self._dispatcher.service, entry.request_id, failure)
            return answer, answer.status, problem.outcome(error)
        task = asyncio.current_task()
        assert task is not None
        self._held[task] = submission
        [answer] = await submission.all()
        return answer, answer.status, "ok"

    def _let_go(self, task: asyncio.Task[None]) -> None:
        del self._held[task]
        self._room.set()

    async def _info(self, _: bytes) -> Message:
        return self._dispatcher.info()

    async def _versions(self, body: bytes) -> Message:
        return await self._dispatcher.versions(parse_versions(body))

    def _set_state(self, state: QueueState) -> None:
        if state != self.state:
            log.info("queue", state=state, queue=self._queue_name)
        self.state = state
        self._metrics.worker_connected.set(state == "connected")

    async def _unless_stopping(self, work: Coroutine[Any, Any, None]) -> bool:
        """Whether `work` came to its end before `stop` was called; it is cancelled otherwise."""
        task, stop = asyncio.ensure_future(work), asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not task.done():
            task.cancel()
            return False
        task.result()
        return True
