"""The micro-batcher: items of many requests become few calls of the service, in threads.

A `Batcher` is the waiting line of one operation (score, generate or update); the `Lane` of its service decides who
runs next. All state lives on the event loop, so nothing here needs a lock.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

import structlog

from guerdon.types import GenerateResult, Result, Status, UpdateResponse
from guerdon_services.runtime.lane import Lane
from guerdon_services.runtime.metrics import OperationMetrics
from guerdon_services.runtime.scorer import Batching, NotReady, OutOfMemory, Unscorable
from guerdon_services.runtime.submission import Failure, Ran, Submission

JobT = TypeVar("JobT")
ResultT = TypeVar("ResultT", bound=Result | GenerateResult | UpdateResponse)

log = structlog.get_logger(__name__)

#: Weight of the newest batch in the running estimate of items per second.
_RATE_WEIGHT = 0.2
#: Items of a slow or failed batch that one line of the log names.
_NAMED = 16
#: An item that waits for something to come is tried again after so many seconds.
_AGAIN_S = 0.05


@dataclass(eq=False, slots=True)
class _Request(Generic[ResultT]):
    """The jobs of one submission; those in line, and those that will be again in a moment, by their numbers."""

    submission: Submission[ResultT]
    jobs: Sequence[Any]
    tokens: Sequence[int]
    waiting: list[int]
    parked: list[int]


@dataclass(frozen=True, slots=True)
class _Part(Generic[ResultT]):
    """What a batch holds of one request."""

    request: _Request[ResultT]
    numbers: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Returned(Generic[ResultT]):
    results: Sequence[ResultT]
    model_version: int | None


class Batcher(Generic[JobT, ResultT]):
    """The waiting line of one operation.

    `operation`, called `name`, runs in a thread of `lane` with at most `limits().max_items` jobs and returns one
    result per job; `version` is read in the same thread right after it. Where `again` says yes to a request's job and
    its seconds in line, items of that request that come back unavailable stand in line once more a moment later;
    meanwhile others run. `refresh` is called in the thread before each batch that continues no request. Batches that
    take longer than `slow_s` seconds are logged.
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
        again: Callable[[JobT, float], bool] = lambda job, waited_s: False,
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
        self._line: OrderedDict[_Request[ResultT], None] = OrderedDict()
        self._live: set[Submission[ResultT]] = set()
        self._reserved = 0
        self._queued = 0
        self._queued_tokens = 0
        self._items_per_s = 0.0
        lane.attach(self)
        metrics.pending.set_function(lambda: self.waiting)

    @property
    def waiting(self) -> int:
        """Items admitted and not started."""
        return self._queued + self._reserved

    def reserve(self, count: int) -> None:
        """Count `count` items as admitted before they are submitted."""
        self._reserved += count

    def unreserve(self, count: int) -> None:
        """Take `reserve` back."""
        self._reserved -= count
        self._lane.pump()

    def wait_s(self) -> float:
        """A guess at how long until the items that wait now have run, in seconds."""
        return self.waiting / self._items_per_s if self._items_per_s else 1.0

    def submit(
        self,
        jobs: Sequence[JobT | Failure],
        submission: Submission[ResultT],
        timeout_s: float | None = None,
        tokens: Sequence[int] | None = None,
    ) -> None:
        """Line up jobs, with their token counts; a `Failure` among them is that item's outcome already."""
        submission.admitted = time.monotonic()
        waiting = list(range(len(jobs)))
        if failures := {number: job for number, job in enumerate(jobs) if isinstance(job, Failure)}:
            waiting = [number for number in waiting if number not in failures]
            submission.resolve(list(failures), list(failures.values()))
        request = _Request(submission, jobs, tokens or [0] * len(jobs), waiting, [])
        if waiting:
            self._line[request] = None
            self._queued += len(waiting)
            self._queued_tokens += sum(request.tokens[number] for number in waiting)
        self._watch(request, timeout_s)
        self._lane.pump()

    def due(self) -> float | None:
        """When the next batch may start (monotonic seconds); None while nothing waits."""
        head = next(iter(self._line), None)
        if head is None:
            return None
        limits, admitted = self._limits(), head.submission.admitted
        if self._queued >= limits.max_items or self._queued_tokens >= limits.max_tokens:
            return admitted
        return admitted + limits.max_wait_ms / 1000

    @property
    def half_done(self) -> bool:
        """Whether a request that is to be kept whole has some of its answers, and waits for others."""
        self._begun = {submission for submission in self._begun if not submission.done}
        return bool(self._begun)

    def take(self) -> list[_Part[ResultT]]:
        """The next batch; its items count as started."""
        limits, batch, items, tokens = self._limits(), list[_Part[ResultT]](), 0, 0
        while self._line and items < limits.max_items:
            request = next(iter(self._line))
            numbers = request.waiting[: limits.max_items - items]
            sizes = [request.tokens[number] for number in numbers]
            # One item alone may be larger than a batch should be.
            fitting = _fitting(sizes, limits.max_tokens - tokens, at_least=0 if batch else 1)
            if batch and (fitting == 0 or (limits.whole_requests and fitting < len(request.waiting))):
                break
            batch.append(_Part(request, numbers[:fitting]))
            request.submission.started = True
            request.waiting = request.waiting[fitting:]
            items += fitting
            tokens += sum(sizes[:fitting])
            if request.waiting:
                break
            del self._line[request]
        self._queued -= items
        self._queued_tokens -= tokens
        return batch

    async def run(self, batch: list[_Part[ResultT]], *, fresh: bool = True) -> None:
        """Run one batch in a thread and resolve its items; a `fresh` one continues no request."""
        self._metrics.inflight.inc()
        try:
            await self._run(batch, self._refresh if fresh else None)
        except Exception as error:
            # A mistake of the runtime's own: whoever waits for these items must not wait for ever.
            failure = Failure(Status.INTERNAL_ERROR, f"the runtime failed: {_describe(error)}")
            for part in batch:
                part.request.submission.resolve(part.numbers, [failure] * len(part.numbers))
            raise
        finally:
            self._metrics.inflight.dec()

    def fail_all(self, failure: Failure) -> None:
        """Resolve every unfinished item, running ones included: the process is about to end."""
        for submission in list(self._live):
            submission.resolve(range(submission.count), [failure] * submission.count)

    async def _run(self, batch: list[_Part[ResultT]], refresh: Callable[[], None] | None = None) -> None:
        started = time.monotonic()
        jobs: list[JobT] = [part.request.jobs[number] for part in batch for number in part.numbers]
        ran = await self._lane.run(self._call, jobs, refresh)
        exec_s = time.monotonic() - started
        self._tell(batch, len(jobs), started, exec_s)
        all_wait = isinstance(ran, NotReady) and not isinstance(ran, OutOfMemory)
        if isinstance(ran, BaseException) and not all_wait and len(jobs) > 1:
            self._measure(len(jobs), exec_s)
            if not isinstance(ran, Unscorable):
                log.warning(
                    "batch failed, running its items one by one",
                    operation=self._name,
                    items=len(jobs),
                    samples=_named(batch),
                    exc_info=ran,
                )
            for part in batch:
                for number in part.numbers:
                    if not part.request.submission.resolved(number):
                        await self._run([_Part(part.request, [number])])
            return
        values = self._failures(ran, batch, len(jobs)) if isinstance(ran, BaseException) else ran.results
        version = None if isinstance(ran, BaseException) else ran.model_version
        answered = self._resolve(batch, values, started, exec_s * 1000, version)
        if answered:  # a look that answered nobody says nothing about speed
            self._measure(answered, exec_s)

    def _resolve(
        self,
        batch: list[_Part[ResultT]],
        values: Sequence[ResultT | Failure],
        started: float,
        exec_ms: float,
        version: int | None,
    ) -> int:
        """Give each request of the batch what became of its items; how many were not parked instead."""
        answered, rest = 0, iter(values)
        for part in batch:
            submission, numbers = part.request.submission, part.numbers
            found, queue_s = list(islice(rest, len(numbers))), started - submission.admitted
            if self._again(part.request.jobs[numbers[0]], queue_s):
                numbers, found = self._park(part.request, numbers, found)
            if numbers:
                if self._limits().whole_requests:
                    self._begun.add(submission)
                self._metrics.queue_seconds.observe(queue_s, len(numbers))
                submission.resolve(numbers, found, Ran(queue_s * 1000, exec_ms, version))
                answered += len(numbers)
        return answered

    def _call(
        self, jobs: list[JobT], refresh: Callable[[], None] | None
    ) -> _Returned[ResultT] | BaseException:
        # Runs in a thread. BaseException: a library's SystemExit must cost its items, not the process.
        try:
            if refresh is not None:
                refresh()
            results = self._operation(jobs)
            if len(results) != len(jobs):
                return _WrongResults(f"the service returned {len(results)} results for {len(jobs)} items")
            for result in results:
                if not isinstance(result, self._result_type):  # pyright: ignore[reportUnnecessaryIsInstance]
                    return _WrongResults(f"the service returned a {type(result).__name__} as a result")
            return _Returned(results, self._version())
        except BaseException as error:
            return error

    def _tell(self, batch: list[_Part[ResultT]], items: int, started: float, exec_s: float) -> None:
        """Traces say which batches a request was in, the log which ones were slow."""
        for part in batch:
            submission = part.request.submission
            if submission.origin is not None:
                submission.origin.executed(exec_s, started - submission.admitted, items)
        if self._slow_s and exec_s > self._slow_s:
            log.warning(
                "slow batch",
                operation=self._name,
                exec_ms=round(1000 * exec_s),
                items=items,
                tokens=sum(part.request.tokens[number] for part in batch for number in part.numbers),
                samples=_named(batch),
            )

    def _failures(self, error: BaseException, batch: list[_Part[ResultT]], items: int) -> Sequence[Failure]:
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
        return [failure] * items

    def _watch(self, request: _Request[ResultT], timeout_s: float | None) -> None:
        timer: asyncio.TimerHandle | None = None
        submission = request.submission

        def expire() -> None:
            waited = Ran((time.monotonic() - submission.admitted) * 1000)
            outside = self._drop(request)
            for numbers, when in (
                (outside, "before execution started"),
                (range(submission.count), "during execution"),
            ):
                failure = Failure(Status.TIMEOUT, f"the deadline passed {when}")
                submission.resolve(numbers, [failure] * len(numbers), waited)
            self._lane.pump()

        def end() -> None:
            self._live.discard(submission)
            if timer is not None:
                timer.cancel()
            if submission.cancelled:
                self._metrics.cancelled.inc(len(self._drop(request)))
                self._lane.pump()

        self._live.add(submission)
        if timeout_s is not None and request.waiting:
            timer = asyncio.get_running_loop().call_later(max(0.0, timeout_s), expire)
        submission.on_end(end)

    def _park(
        self, request: _Request[ResultT], numbers: Sequence[int], found: Sequence[ResultT | Failure]
    ) -> tuple[list[int], list[ResultT | Failure]]:
        """Set aside for a moment what was found unavailable; the rest with what became of it."""
        kept: dict[int, ResultT | Failure] = {}
        for number, value in zip(numbers, found, strict=True):
            if isinstance(value, Failure) or value.status is not Status.UNAVAILABLE:
                kept[number] = value
            elif not request.submission.resolved(number):
                request.parked.append(number)
                self._queued += 1
                self._queued_tokens += request.tokens[number]
        if request.parked:
            asyncio.get_running_loop().call_later(_AGAIN_S, self._rejoin, request)
        return list(kept), list(kept.values())

    def _rejoin(self, request: _Request[ResultT]) -> None:
        if request.parked:
            request.waiting += request.parked
            request.parked = []
            self._line[request] = None
            self._lane.pump()

    def _drop(self, request: _Request[ResultT]) -> list[int]:
        """Take out of the line what has not begun of a request."""
        outside = [*request.waiting, *request.parked]
        request.waiting, request.parked = [], []
        self._line.pop(request, None)
        self._queued -= len(outside)
        self._queued_tokens -= sum(request.tokens[number] for number in outside)
        return outside

    def _measure(self, items: int, exec_s: float) -> None:
        self._metrics.batch_items.observe(items)
        self._metrics.exec_seconds.observe(exec_s)
        rate = items / max(exec_s, 1e-6)
        if self._items_per_s:
            rate = _RATE_WEIGHT * rate + (1 - _RATE_WEIGHT) * self._items_per_s
        self._items_per_s = rate


class _WrongResults(Exception):
    """The service broke the contract of one result per job."""


def _fitting(sizes: Sequence[int], room: int, *, at_least: int) -> int:
    """How many items, from the first one on, have `room` tokens together at most; or `at_least` so many."""
    for count, size in enumerate(sizes):
        room -= size
        if room < 0 and count >= at_least:
            return count
    return len(sizes)


def _named(batch: Sequence[_Part[Any]]) -> list[dict[str, str | None]]:
    every = (part.request.submission.named(number) for part in batch for number in part.numbers)
    return list(islice(every, _NAMED))


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
