"""The micro-batcher: items of many requests become few calls of the service, in threads.

A `Batcher` is the waiting line of one operation (score, generate or update); the `Lane` of its service decides who
runs next. All state lives on the event loop, so nothing here needs a lock.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Generic, TypeVar

import structlog

from guerdon.types import Status
from guerdon_services.runtime.lane import Lane
from guerdon_services.runtime.metrics import OperationMetrics
from guerdon_services.runtime.scorer import Batching, NotReady, OutOfMemory, Unscorable
from guerdon_services.runtime.submission import Failure, Outcome, Submission

JobT = TypeVar("JobT")
ResultT = TypeVar("ResultT")

log = structlog.get_logger(__name__)

#: Weight of the newest batch in the running estimate of items per second.
_RATE_WEIGHT = 0.2
#: Items of a slow or failed batch that one line of the log names.
_NAMED = 16
#: An item that waits for something to come is tried again after so many seconds.
_AGAIN_S = 0.05


@dataclass(eq=False, slots=True)
class _Item(Generic[JobT, ResultT]):
    job: JobT
    tokens: int
    submission: Submission[ResultT]
    index: int
    admitted: float
    waiting: bool = True


@dataclass(frozen=True, slots=True)
class _Ran(Generic[ResultT]):
    results: Sequence[ResultT]
    model_version: int | None


class Batcher(Generic[JobT, ResultT]):
    """The waiting line of one operation.

    `operation`, called `name`, runs in a thread of `lane` with at most `limits().max_items` jobs and returns one
    result per job; `version` is read in the same thread right after it. An item whose job, result and seconds in line
    `again` says yes to stands in line once more a moment later; meanwhile others run. `refresh` is called in
    the thread before each batch that continues no request. Batches that take longer than `slow_s` seconds are logged.
    """

    def __init__(
        self,
        name: str,
        operation: Callable[[Sequence[JobT]], Sequence[ResultT]],
        result_type: type[ResultT],
        *,
        lane: Lane,
        limits: Callable[[], Batching],
        version: Callable[[], int | None],
        metrics: OperationMetrics,
        again: Callable[[JobT, ResultT, float], bool] = lambda job, result, waited_s: False,
        refresh: Callable[[], None] = lambda: None,
        slow_s: float = 0.0,
    ) -> None:
        self._name = name
        self._operation = operation
        self._result_type = result_type
        self._lane = lane
        self._limits = limits
        self._version = version
        self._metrics = metrics
        self._again = again
        self._refresh = refresh
        self._slow_s = slow_s
        #: Requests with both answered and unanswered items, where they are kept whole.
        self._begun: set[Submission[ResultT]] = set()
        self._line: deque[_Item[JobT, ResultT]] = deque()
        self._live: set[Submission[ResultT]] = set()
        self._reserved = 0
        self._queued = 0
        self._queued_tokens = 0
        self._items_per_s = 0.0
        lane.attach(self)

    @property
    def waiting(self) -> int:
        """Items admitted and not started."""
        return self._queued + self._reserved

    def reserve(self, count: int) -> None:
        """Count `count` items as admitted before they are submitted."""
        self._reserved += count
        self._metrics.pending.set(self.waiting)

    def unreserve(self, count: int) -> None:
        """Take `reserve` back."""
        self._reserved -= count
        self._metrics.pending.set(self.waiting)
        self._lane.pump()

    def wait_s(self) -> float:
        """A guess at how long until the items that wait now have run, in seconds."""
        return self.waiting / self._items_per_s if self._items_per_s else 1.0

    def submit(
        self,
        jobs: Sequence[tuple[JobT, int] | Failure],
        submission: Submission[ResultT],
        timeout_s: float | None = None,
    ) -> None:
        """Line up jobs with their token counts; a `Failure` among them is that item's outcome already."""
        now = time.monotonic()
        added: list[_Item[JobT, ResultT]] = []
        for index, job in enumerate(jobs):
            if isinstance(job, Failure):
                submission.resolve(index, Outcome(job))
            else:
                added.append(_Item(job[0], job[1], submission, index, now))
        self._line.extend(added)
        self._queued += len(added)
        self._queued_tokens += sum(item.tokens for item in added)
        self._watch(submission, added, timeout_s)
        self._metrics.pending.set(self.waiting)
        self._lane.pump()

    def due(self) -> float | None:
        """When the next batch may start (monotonic seconds); None while nothing waits."""
        while self._line and not self._line[0].waiting:
            self._line.popleft()
        if not self._line:
            return None
        head, limits = self._line[0], self._limits()
        if self._queued >= limits.max_items or self._queued_tokens >= limits.max_tokens:
            return head.admitted
        return head.admitted + limits.max_wait_ms / 1000

    @property
    def half_done(self) -> bool:
        """Whether a request that is to be kept whole has some of its answers, and waits for others."""
        self._begun = {submission for submission in self._begun if not submission.done}
        return bool(self._begun)

    def take(self) -> list[_Item[JobT, ResultT]]:
        """The next batch; its items count as started."""
        limits, batch, tokens = self._limits(), list[_Item[JobT, ResultT]](), 0
        while self._line and len(batch) < limits.max_items:
            item = self._line[0]
            if item.waiting and batch and tokens + item.tokens > limits.max_tokens:
                break
            if limits.whole_requests and batch and item.submission is not batch[-1].submission:
                rest = list(takewhile(lambda one, whole=item.submission: one.submission is whole, self._line))
                more = sum(one.tokens for one in rest if one.waiting)
                if len(batch) + len(rest) > limits.max_items or tokens + more > limits.max_tokens:
                    break
            self._line.popleft()
            if item.waiting:
                item.waiting = False
                item.submission.started = True
                tokens += item.tokens
                batch.append(item)
        self._queued -= len(batch)
        self._queued_tokens -= tokens
        self._metrics.pending.set(self.waiting)
        return batch

    async def run(self, batch: list[_Item[JobT, ResultT]], *, fresh: bool = True) -> None:
        """Run one batch in a thread and resolve its items; a `fresh` one continues no request."""
        self._metrics.inflight.inc()
        try:
            await self._run(batch, self._refresh if fresh else None)
        except Exception as error:
            # A mistake of the runtime's own: whoever waits for these items must not wait for ever.
            failure = Failure(Status.INTERNAL_ERROR, f"the runtime failed: {_describe(error)}")
            for item in batch:
                item.submission.resolve(item.index, Outcome(failure))
            raise
        finally:
            self._metrics.inflight.dec()

    def fail_all(self, failure: Failure) -> None:
        """Resolve every unfinished item, running ones included: the process is about to end."""
        for submission in list(self._live):
            for index in range(submission.count):
                submission.resolve(index, Outcome(failure))

    async def _run(
        self, batch: list[_Item[JobT, ResultT]], refresh: Callable[[], None] | None = None
    ) -> None:
        started = time.monotonic()
        jobs = [item.job for item in batch]
        ran = await self._lane.run(self._call, jobs, refresh)
        exec_s = time.monotonic() - started
        self._tell(batch, started, exec_s)
        all_wait = isinstance(ran, NotReady) and not isinstance(ran, OutOfMemory)
        if isinstance(ran, BaseException) and not all_wait and len(batch) > 1:
            self._measure(len(batch), exec_s)
            if not isinstance(ran, Unscorable):
                log.warning(
                    "batch failed, running its items one by one",
                    operation=self._name,
                    items=len(batch),
                    samples=_named(batch),
                    exc_info=ran,
                )
            for item in batch:
                if not item.submission.resolved(item.index):
                    await self._run([item])
            return
        values = self._failures(ran, batch) if isinstance(ran, BaseException) else ran.results
        version = None if isinstance(ran, BaseException) else ran.model_version
        answered, parked = 0, list[_Item[JobT, ResultT]]()
        for item, value in zip(batch, values, strict=True):
            queue_s = started - item.admitted
            if not isinstance(value, Failure) and self._again(item.job, value, queue_s):
                parked.append(item)
                continue
            answered += 1
            if self._limits().whole_requests:
                self._begun.add(item.submission)
            self._metrics.queue_seconds.observe(queue_s)
            item.submission.resolve(item.index, Outcome(value, queue_s * 1000, exec_s * 1000, version))
        self._park([item for item in parked if not item.submission.resolved(item.index)])
        if answered:  # a look that answered nobody says nothing about speed
            self._measure(answered, exec_s)

    def _call(self, jobs: list[JobT], refresh: Callable[[], None] | None) -> _Ran[ResultT] | BaseException:
        # Runs in a thread. BaseException: a library's SystemExit must cost its items, not the process.
        try:
            if refresh is not None:
                refresh()
            results = self._operation(jobs)
            if len(results) != len(jobs):
                return _WrongResults(f"the service returned {len(results)} results for {len(jobs)} items")
            for result in results:
                if not isinstance(result, self._result_type):
                    return _WrongResults(f"the service returned a {type(result).__name__} as a result")
            return _Ran(results, self._version())
        except BaseException as error:
            return error

    def _tell(self, batch: list[_Item[JobT, ResultT]], started: float, exec_s: float) -> None:
        """Traces say which batches a request was in, the log which ones were slow."""
        origins = {id(item.submission): (item.submission.origin, item.admitted) for item in batch}
        for origin, admitted in origins.values():
            if origin is not None:
                origin.executed(exec_s, started - admitted, len(batch))
        if self._slow_s and exec_s > self._slow_s:
            log.warning(
                "slow batch",
                operation=self._name,
                exec_ms=round(1000 * exec_s),
                items=len(batch),
                tokens=sum(item.tokens for item in batch),
                samples=_named(batch),
            )

    def _failures(self, error: BaseException, batch: list[_Item[JobT, ResultT]]) -> Sequence[Failure]:
        if isinstance(error, Unscorable):
            failure = Failure(Status.INVALID_INPUT, str(error))
        elif isinstance(error, NotReady):
            failure = Failure(Status.UNAVAILABLE, str(error))
        else:
            failure = Failure(Status.INTERNAL_ERROR, _describe(error))
            log.error(
                "item failed",
                operation=self._name,
                reason=failure.reason,
                samples=_named(batch),
                exc_info=error,
            )
        return [failure] * len(batch)

    def _watch(
        self, submission: Submission[ResultT], items: list[_Item[JobT, ResultT]], timeout_s: float | None
    ) -> None:
        timer: asyncio.TimerHandle | None = None

        def expire() -> None:
            for item in items:
                where = "before execution started" if item.waiting else "during execution"
                failure = Failure(Status.TIMEOUT, f"the deadline passed {where}")
                waited_ms = (time.monotonic() - item.admitted) * 1000
                self._leave(item)
                submission.resolve(item.index, Outcome(failure, waited_ms))
            self._compact()
            self._lane.pump()

        def end() -> None:
            self._live.discard(submission)
            if timer is not None:
                timer.cancel()
            if submission.cancelled:
                dropped = sum(self._leave(item) for item in items)
                self._metrics.cancelled.inc(dropped)
                self._compact()
                self._lane.pump()

        self._live.add(submission)
        if timeout_s is not None and items:
            timer = asyncio.get_running_loop().call_later(max(0.0, timeout_s), expire)
        submission.on_end(end)

    def _park(self, items: list[_Item[JobT, ResultT]]) -> None:
        if not items:
            return
        for item in items:
            item.waiting = True
        self._queued += len(items)
        self._queued_tokens += sum(item.tokens for item in items)
        self._metrics.pending.set(self.waiting)
        # Together, so that the items of one request meet the same weights.
        asyncio.get_running_loop().call_later(_AGAIN_S, self._rejoin, items)

    def _rejoin(self, items: list[_Item[JobT, ResultT]]) -> None:
        self._line.extend(items)
        self._lane.pump()

    def _leave(self, item: _Item[JobT, ResultT]) -> bool:
        # The item stays in the deque and is skipped when its turn comes.
        if not item.waiting:
            return False
        item.waiting = False
        self._queued -= 1
        self._queued_tokens -= item.tokens
        self._metrics.pending.set(self.waiting)
        return True

    def _compact(self) -> None:
        # Skipped items must not pile up behind a batch that takes long.
        if len(self._line) > 2 * self._queued + 1024:
            self._line = deque(item for item in self._line if item.waiting)

    def _measure(self, items: int, exec_s: float) -> None:
        self._metrics.batch_items.observe(items)
        self._metrics.exec_seconds.observe(exec_s)
        rate = items / max(exec_s, 1e-6)
        if self._items_per_s:
            rate = _RATE_WEIGHT * rate + (1 - _RATE_WEIGHT) * self._items_per_s
        self._items_per_s = rate


class _WrongResults(Exception):
    """The service broke the contract of one result per job."""


def _named(batch: Sequence[_Item[Any, Any]]) -> list[dict[str, str | None]]:
    return [item.submission.named(item.index) for item in batch[:_NAMED]]


def _describe(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # a message that cannot be said is a failure all the same
        return type(error).__name__
    return (
        f"{type(error).__name__}: {text}"
        if text and not isinstance(error, _WrongResults)
        else text or repr(error)
    )
