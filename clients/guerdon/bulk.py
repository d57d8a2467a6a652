"""Many samples, scored side by side: requests are shared, failures repeated within a budget.

    from guerdon.bulk import score_many

    results = score_many(samples, "http://127.0.0.1:8101", progress=True)

`Bulk` is the part that others build on: concurrent calls for one sample each ride together in few requests, and
each has its result as soon as the service has it. Nothing here raises because a service failed: the result of a
sample that got no reward says so in its `status`.
"""

import asyncio
import itertools
import math
import random
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field
from typing import Protocol

from guerdon.client import AsyncClient
from guerdon.errors import GuerdonError, Overloaded, ServiceFailure, TooLarge
from guerdon.progress import ProgressOption, reporting
from guerdon.types import Options, Result, Sample, Status, failed

#: Pause before the first repetition and the longest one, in seconds.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 5.0
#: How long a sample waits for others to share a request with, in seconds.
_GATHER_S = 0.001


class Judge(Protocol):
    """What gives one sample its result: `Bulk`, or a mix of several (`guerdon.rewards.Rewards`)."""

    async def score_one(self, sample: Sample) -> Result:
        """The result; raises only what concerns the request itself (`InvalidRequest`, `Unauthorized`)."""
        ...


class Streaming(Protocol):
    """What `Bulk` needs of `AsyncClient`."""

    def score_stream(
        self, samples: Sequence[Sample], *, options: Options | None = None, timeout_s: float | None = None
    ) -> AsyncGenerator[tuple[int, Result], None]: ...


@dataclass
class RetryBudget:
    """How much may be sent again: a share of what was sent first, and a reserve on top.

    Repeating everything would double the load of a service that fails because it has too much of it.
    """

    share: float = 0.2
    reserve: float = 100.0
    _left: float = field(init=False)

    def __post_init__(self) -> None:
        self._left = self.reserve

    def earn(self) -> None:
        """One sample was sent for the first time."""
        self._left += self.share

    def spend(self) -> bool:
        """Whether one more may be sent again."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


@dataclass(frozen=True)
class _Answer:
    result: Result
    retry_after_s: float = 0.0


@dataclass(frozen=True)
class _Asked:
    sample: Sample
    answer: "asyncio.Future[_Answer]"

    def settle(self, answer: _Answer) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    def fail(self, status: Status, reason: str, retry_after_s: float = 0.0) -> None:
        self.settle(_Answer(failed(status, reason, id=self.sample.id), retry_after_s))


class Bulk:
    """One service's results for samples that come one by one, from many tasks of one event loop.

    Samples that are asked for at the same time share requests of up to `max_items`; at most `in_flight` requests
    are open, what comes meanwhile waits here. A failure that may pass (`Status.retryable`) is repeated up to
    `retries` times while `budget` and `timeout_s`, which bounds a sample as a whole, permit; with None, only the
    time limit ends it. With `hedge_after_s`,
    a sample that has no result by then is asked for once more, and the first answer counts: only for scorers
    whose answer is always the same.

    `final` says of a result that it stands, though it might be asked for again. `client` should not repeat by itself:
    `AsyncClient(..., retries=0)`.
    """

    def __init__(
        self,
        client: Streaming,
        *,
        options: Options | None = None,
        max_items: int = 64,
        in_flight: int = 16,
        timeout_s: float = 120.0,
        retries: int | None = 4,
        budget: RetryBudget | None = None,
        hedge_after_s: float | None = None,
        final: Callable[[Result], bool] = lambda result: False,
    ) -> None:
        self._client = client
        self._options = options
        self._max_items = max_items
        self._in_flight = in_flight
        self._timeout_s = timeout_s
        self._retries = retries
        self._budget = budget or (RetryBudget(reserve=math.inf) if retries is None else RetryBudget())
        self._hedge_after_s = hedge_after_s
        self._final = final
        self._waiting: deque[_Asked] = deque()
        self._open: set[asyncio.Task[None]] = set()
        self._sending = False

    async def score_one(self, sample: Sample) -> Result:
        """The sample's result. A service's failure is its status, never an exception.

        Raises:
            InvalidRequest: the request is wrong beyond this sample: its options, its URL.
            Unauthorized: the service wants another token.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._timeout_s
        self._budget.earn()
        answer = await self._attempt(sample, ends)
        for number in itertools.count() if self._retries is None else range(self._retries):
            pause_s = max(answer.retry_after_s, _pause_s(number))
            if not answer.result.status.retryable or self._final(answer.result):
                break
            if loop.time() + pause_s >= ends or not self._budget.spend():
                break
            await asyncio.sleep(pause_s)
            answer = await self._attempt(sample, ends)
        return answer.result

    async def score(self, samples: Sequence[Sample]) -> list[Result]:
        """One result per sample, in order; raises as `score_one`."""
        return await asyncio.gather(*(self.score_one(sample) for sample in samples))

    async def aclose(self) -> None:
        """End what is open; samples still waited for are cancelled, those that were not sent yet among them."""
        while self._waiting:
            self._waiting.popleft().answer.cancel()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _attempt(self, sample: Sample, ends: float) -> _Answer:
        asked = [self._ask(sample)]
        try:
            async with asyncio.timeout_at(ends):
                if self._hedge_after_s is None:
                    return await asked[0]
                return await self._hedged(sample, asked, self._hedge_after_s)
        except TimeoutError:
            reason = f"no answer within {self._timeout_s:g} s"
            return _Answer(failed(Status.TIMEOUT, reason, id=sample.id))
        finally:
            for future in asked:
                future.cancel()

    async def _hedged(
        self, sample: Sample, asked: "list[asyncio.Future[_Answer]]", after_s: float
    ) -> _Answer:
        """The first good answer of two, or the last one."""
        await asyncio.wait(asked, timeout=after_s)
        if not asked[0].done() and self._budget.spend():
            asked.append(self._ask(sample))
        answer = None
        for future in asyncio.as_completed(asked):
            answer = await future
            if answer.result.status is Status.OK:
                break
        assert answer is not None
        return answer

    def _ask(self, sample: Sample) -> "asyncio.Future[_Answer]":
        asked = _Asked(sample, asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        self._send_soon()
        return asked.answer

    def _send_soon(self) -> None:
        # A moment later, so that all who ask now, from other threads too, share a request.
        if self._waiting and not self._sending and len(self._open) < self._in_flight:
            self._sending = True
            asyncio.get_running_loop().call_later(_GATHER_S, self._send)

    def _send(self) -> None:
        self._sending = False
        while len(self._open) < self._in_flight and (batch := self._batch()):
            task = asyncio.get_running_loop().create_task(self._request(batch))
            self._open.add(task)
            task.add_done_callback(self._sent)

    def _sent(self, task: "asyncio.Task[None]") -> None:
        self._open.discard(task)
        self._send_soon()

    def _batch(self) -> list[_Asked]:
        batch: list[_Asked] = []
        while self._waiting and len(batch) < self._max_items:
            asked = self._waiting.popleft()
            if not asked.answer.done():  # else nobody waits for it any more
                batch.append(asked)
        return batch

    async def _request(self, batch: list[_Asked]) -> None:
        """Settle every future of the batch."""
        try:
            await self._stream(batch)
        except TooLarge as error:
            await self._divide(batch, error)
        except ServiceFailure as error:
            after_s = error.retry_after_s if isinstance(error, Overloaded) else 0.0
            for asked in batch:
                asked.fail(error.status, str(error), after_s)
        except GuerdonError as error:
            _raise_in(batch, error)
        except asyncio.CancelledError:
            for asked in batch:
                asked.answer.cancel()
            raise
        except Exception as error:  # a client of the user's own: those who wait must hear of it
            _raise_in(batch, error)

    async def _stream(self, batch: list[_Asked]) -> None:
        samples = [asked.sample for asked in batch]
        stream = self._client.score_stream(samples, options=self._options, timeout_s=self._timeout_s)
        async with aclosing(stream):
            async for index, result in stream:
                batch[index].settle(_Answer(result))
        for asked in batch:
            asked.fail(Status.INTERNAL_ERROR, "the service gave no result")

    async def _divide(self, batch: list[_Asked], error: TooLarge) -> None:
        """Halve a request that is too large; one sample alone that is has itself to blame."""
        if len(batch) == 1:
            batch[0].fail(Status.INVALID_INPUT, str(error))
            return
        middle = len(batch) // 2
        await self._request(batch[:middle])
        await self._request(batch[middle:])


def _raise_in(batch: list[_Asked], error: Exception) -> None:
    for asked in batch:
        if not asked.answer.done():
            asked.answer.set_exception(error)
            asked.answer.exception()  # whoever left does not miss it


def _pause_s(number: int) -> float:
    """Twice as long each time, at random between half and all of it: many who failed together come back apart."""
    return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(number, 10)) * random.uniform(0.5, 1.0)


async def score_each(
    judge: Judge, samples: Iterable[Sample], *, window: int = 4096
) -> AsyncGenerator[Result, None]:
    """The result of each sample, in order; at most `window` samples are under way, so `samples` may be endless."""
    tasks: deque[asyncio.Task[Result]] = deque()
    rest = iter(samples)
    try:
        while True:
            for sample in _first(rest, window - len(tasks)):
                tasks.append(asyncio.create_task(judge.score_one(sample)))
            if not tasks:
                return
            result = await tasks[0]
            tasks.popleft()
            yield result
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _first(samples: Iterator[Sample], count: int) -> Iterator[Sample]:
    for _ in range(count):
        with suppress(StopIteration):
            yield next(samples)
            continue
        return


async def score_many_async(
    samples: Sequence[Sample],
    url: str,
    *,
    service: str | None = None,
    token: str | None = None,
    options: Options | None = None,
    max_items: int = 64,
    in_flight: int = 16,
    timeout_s: float = 120.0,
    retries: int = 4,
    hedge_after_s: float | None = None,
    progress: ProgressOption = False,
) -> list[Result]:
    """One result per sample, in order; see `score_many`."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            AsyncClient(url, service=service, token=token, timeout_s=timeout_s, retries=0)
        )
        bulk = Bulk(
            client,
            options=options,
            max_items=max_items,
            in_flight=in_flight,
            timeout_s=timeout_s,
            retries=retries,
            hedge_after_s=hedge_after_s,
        )
        stack.push_async_callback(bulk.aclose)
        done = stack.enter_context(reporting(progress, len(samples)))
        each = await stack.enter_async_context(aclosing(score_each(bulk, samples)))
        results: list[Result] = []
        async for result in each:
            results.append(result)
            done(result)
        return results


def score_many(
    samples: Sequence[Sample],
    url: str,
    *,
    service: str | None = None,
    token: str | None = None,
    options: Options | None = None,
    max_items: int = 64,
    in_flight: int = 16,
    timeout_s: float = 120.0,
    retries: int = 4,
    hedge_after_s: float | None = None,
    progress: ProgressOption = False,
) -> list[Result]:
    """One result per sample, in order; works inside a running event loop, too.

    Arguments are those of `Client` and `Bulk`. `progress` is True for a bar on stderr (tqdm where it is
    installed, else rich), or a function that is called with each result.

    Raises:
        InvalidRequest: the URL, the service or the options are wrong.
        Unauthorized: the service wants another token.
    """
    from guerdon.background import run_here

    return run_here(
        score_many_async(
            samples,
            url,
            service=service,
            token=token,
            options=options,
            max_items=max_items,
            in_flight=in_flight,
            timeout_s=timeout_s,
            retries=retries,
            hedge_after_s=hedge_after_s,
            progress=progress,
        )
    )
