"""How calls to services run: on an event loop in a thread, repeated while that can help, and counted."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from guerdon.errors import InvalidRequest, ServiceFailure, Unauthorized
from guerdon.queue import stats
from guerdon.types import (
    GenerateResult,
    GenerateSample,
    Options,
    Result,
    Sample,
    Sampling,
    ServiceInfo,
    Status,
    UpdateRequest,
    UpdateResponse,
    VersionsResponse,
)
from guerdon_trainer.config import FailureConfig
from guerdon_trainer.service_stats import ServiceStats

#: Longest pause between two attempts, in seconds.
_LONGEST_PAUSE_S = 10.0
#: How long calls and clients may take to end, in seconds.
_CLOSE_TIMEOUT_S = 5.0


class Answer(Protocol):
    """What results of every kind have in common."""

    @property
    def status(self) -> Status: ...

    @property
    def reason(self) -> str: ...


T = TypeVar("T")
ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT", bound=Answer)


class ServiceClient(Protocol):
    """What the trainer needs of `guerdon.AsyncClient`."""

    async def score(
        self,
        samples: Sequence[Sample],
        *,
        options: Options | None = None,
        min_version: int | None = None,
        timeout_s: float | None = None,
        key: str | None = None,
    ) -> list[Result]: ...

    async def generate(
        self,
        samples: Sequence[GenerateSample],
        sampling: Sampling,
        *,
        min_version: int | None = None,
        timeout_s: float | None = None,
    ) -> list[GenerateResult]: ...

    async def update(self, request: UpdateRequest, *, timeout_s: float | None = None) -> UpdateResponse: ...

    async def versions(self) -> VersionsResponse: ...

    async def info(self) -> ServiceInfo: ...

    async def aclose(self) -> None: ...


async def reach_queues(places: Iterable[tuple[str, str | None]]) -> None:
    """Make sure that the Redis of each URL and queue answers; other URLs are left to the first request.

    A client on a queue would go on trying, with a warning each time.

    Raises:
        Unavailable: one cannot be reached; the message names its URL.
    """
    queues = {
        url: service for url, service in places if service and url.startswith(("redis://", "rediss://"))
    }
    for url, service in queues.items():
        await stats(url, service)


@contextmanager
def refusals_named(service: str) -> Generator[None]:
    """Within it what a service refuses altogether, a wrong request or token, says which service it was."""
    try:
        yield
    except (InvalidRequest, Unauthorized) as error:
        raise type(error)(f"{service}: {error}") from error


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="services", daemon=True)
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine; the caller's thread goes on."""
        return asyncio.run_coroutine_threadsafe(self._tracked(coroutine), self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and wait for it; an interrupt of the waiting thread cancels it."""
        future = self.start(coroutine)
        try:
            return future.result()
        finally:
            future.cancel()

    def close(self, last: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Cancel what was started here, run the `last` coroutines and end the thread.

        Clients have tasks of their own on this loop; those end by `last`.
        """
        self.run(self._finish(list(last)))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _tracked(self, coroutine: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await coroutine
        finally:
            self._tasks.discard(task)

    async def _finish(self, last: list[Coroutine[Any, Any, None]]) -> None:
        others = self._tasks - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=_CLOSE_TIMEOUT_S)
        # A server that is gone must not keep the run from ending.
        closing = asyncio.gather(*last, return_exceptions=True)
        await asyncio.wait([closing], timeout=_CLOSE_TIMEOUT_S)


class ServiceCalls:
    """Repeats calls as the recipe's section `failures` says, and counts every answer."""

    def __init__(self, config: FailureConfig, stats: ServiceStats) -> None:
        self._config = config
        self._stats = stats

    async def each(
        self,
        service: str,
        items: Sequence[ItemT],
        call: Callable[[list[ItemT], int], Awaitable[list[AnswerT]]],
        failure: Callable[[ItemT, Status, str], AnswerT],
        final: Callable[[AnswerT], bool] = lambda _: False,
    ) -> list[AnswerT]:
        """Call with all items, then with those that failed retryably; one answer per item, in order.

        `call(items, attempt)` counts its attempts from 0. A failure that `final` accepts is not tried again.
        A call that fails as a whole gives each of its items the answer `failure(item, status, reason)`.
        """
        answers: dict[int, AnswerT] = {}
        remaining = list(range(len(items)))
        for attempt in range(self._config.attempts):
            if attempt:
                await asyncio.sleep(self._pause_s(attempt))
            batch = [items[index] for index in remaining]
            started = time.monotonic()
            try:
                with refusals_named(service):
                    results = await call(batch, attempt)
            except ServiceFailure as error:
                results = [failure(item, error.status, str(error)) for item in batch]
            self._stats.round_trip(service, time.monotonic() - started)
            answers.update(zip(remaining, results, strict=True))
            remaining = [
                index for index in remaining if answers[index].status.retryable and not final(answers[index])
            ]
            if not remaining:
                break
            if attempt + 1 < self._config.attempts:
                for index in remaining:
                    self._stats.retried(service, answers[index].status, answers[index].reason)
        for answer in answers.values():
            self._stats.answered(service, answer.status, answer.reason)
        return [answers[index] for index in range(len(items))]

    async def until(
        self, service: str, time_limit_s: float, call: Callable[[], Awaitable[AnswerT]]
    ) -> AnswerT:
        """Call until an answer is not retryable or the time limit is over.

        Raises:
            ServiceFailure: the service could still not be reached when the time was over.
        """
        deadline = time.monotonic() + time_limit_s
        attempt = 0
        while True:
            attempt += 1
            started = time.monotonic()
            over = started + self._pause_s(attempt) > deadline
            try:
                with refusals_named(service):
                    answer = await call()
            except ServiceFailure as error:
                if over:
                    self._stats.answered(service, error.status, str(error))
                    raise
                self._stats.retried(service, error.status, str(error))
            else:
                self._stats.round_trip(service, time.monotonic() - started)
                if not answer.status.retryable or over:
                    return answer
                self._stats.retried(service, answer.status, answer.reason)
            await asyncio.sleep(self._pause_s(attempt))

    def _pause_s(self, attempt: int) -> float:
        return min(self._config.pause_s * 2 ** (attempt - 1), _LONGEST_PAUSE_S)
