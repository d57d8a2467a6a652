"""One request's items on their way through a batcher: what its door waits for."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from guerdon.types import Status
from guerdon_services.runtime import origin

ResultT = TypeVar("ResultT")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an item has no result: a status other than ok, and a sentence."""

    status: Status
    reason: str

    def __post_init__(self) -> None:
        # An exception may quote text that no door can carry (a lone surrogate); its item still gets an answer.
        object.__setattr__(self, "reason", self.reason.encode("utf-8", "backslashreplace").decode())


@dataclass(frozen=True, slots=True)
class Outcome(Generic[ResultT]):
    """What became of one item; times in milliseconds, the version of the weights when it ran."""

    value: ResultT | Failure
    queue_ms: float = 0.0
    exec_ms: float = 0.0
    model_version: int | None = None


class Submission(Generic[ResultT]):
    """The results of one request, filled in by the batcher as batches end.

    `finish(index, outcome)` turns an outcome into the final result, exactly once per item. Every item gets a
    result, except after `cancel`. Where items are the same, `places` says which ones each outcome is for. `ids` are
    the clients' own names of the items.
    """

    def __init__(
        self,
        count: int,
        finish: Callable[[int, Outcome[ResultT]], ResultT],
        places: Sequence[Sequence[int]] | None = None,
        ids: Sequence[str | None] = (),
    ) -> None:
        self._places = [(index,) for index in range(count)] if places is None else places
        self._results: list[ResultT | None] = [None] * count
        self._missing = count
        self._ids = ids
        #: The request whose items these are.
        self.origin = origin.current()
        self._finish = finish
        self._fresh: list[int] = []
        self._news = asyncio.Event()
        self._on_end: Callable[[], None] | None = None
        self.cancelled = False
        #: True once a batch holds one of the items: from then on it cannot be handed back.
        self.started = False

    @property
    def done(self) -> bool:
        """True when nothing is left to wait for."""
        return self._missing == 0 or self.cancelled

    @property
    def count(self) -> int:
        """How many outcomes it waits for in all."""
        return len(self._places)

    def named(self, index: int) -> dict[str, str | None]:
        """What the log calls outcome number `index`."""
        item = self._places[index][0]
        return {
            "request_id": self.origin.request_id if self.origin else None,
            "id": self._ids[item] if item < len(self._ids) else None,
        }

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when the last item has its result or the request is cancelled."""
        self._on_end = callback
        if self.done:
            self._ended()

    def resolve(self, index: int, outcome: Outcome[ResultT]) -> None:
        """Take outcome number `index`, unless it is there already or nobody waits any more."""
        if self.resolved(index):
            return
        for item in self._places[index]:
            self._results[item] = self._finished(item, outcome)
            self._fresh.append(item)
            self._missing -= 1
        self._news.set()
        if self._missing == 0:
            self._ended()

    def _finished(self, item: int, outcome: Outcome[ResultT]) -> ResultT:
        try:
            return self._finish(item, outcome)
        except Exception as error:  # the service put its result together wrongly, past all checks
            log.exception("a result cannot be read")
            reason = f"the result cannot be read: {type(error).__name__}: {error}"
            return self._finish(item, Outcome(Failure(Status.INTERNAL_ERROR, reason)))

    def resolved(self, index: int) -> bool:
        """Whether there is no need for outcome number `index`."""
        return self.cancelled or self._results[self._places[index][0]] is not None

    def cancel(self) -> None:
        """Nobody waits any more: items that have not started never will."""
        if not self.done:
            self.cancelled = True
            self._news.set()
            self._ended()

    async def all(self) -> list[ResultT]:
        """Every result, in the order of the items. Cancelling the waiter cancels the submission."""
        try:
            while not self.done:
                self._news.clear()
                await self._news.wait()
        finally:
            self.cancel()
        return [result for result in self._results if result is not None]

    async def chunks(self) -> AsyncGenerator[list[tuple[int, ResultT]], None]:
        """Results with their indices as they finish, in lists of all that finished at the same time."""
        try:
            while self._fresh or not self.done:
                if not self._fresh:
                    self._news.clear()
                    await self._news.wait()
                    continue
                fresh, self._fresh = self._fresh, []
                yield [(index, result) for index in fresh if (result := self._results[index]) is not None]
        finally:
            self.cancel()

    def _ended(self) -> None:
        callback, self._on_end = self._on_end, None
        if callback is not None:
            callback()
