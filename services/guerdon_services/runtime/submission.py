"""One request's items on their way through a batcher: what its door waits for."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import structlog

from guerdon.types import Status
from guerdon_services.runtime import origin
from guerdon_services.runtime.listening import Inbox, Piece

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
class Ran:
    """The batch that items were in: times in milliseconds, and the version of the weights."""

    queue_ms: float = 0.0
    exec_ms: float = 0.0
    model_version: int | None = None


#: Of what was in no batch.
NOT_RUN = Ran()


class Finish(Protocol[ResultT]):
    """Turns what the service said of some items of a request, named by the client, into their final results."""

    def __call__(
        self, ids: Sequence[str | None], values: Sequence[ResultT | Failure], ran: Ran, /
    ) -> Sequence[ResultT]: ...


class Submission(Generic[ResultT]):
    """The results of one request, filled in by the batcher as batches end.

    `ids` are the client's own names of the items. `finish` makes the final result of each item, exactly once. Every
    item gets one, except after `cancel`. Where items are the same, `places` says which ones each outcome is for.
    Pieces of results under way come in `inbox`, where somebody listens.
    """

    def __init__(
        self,
        ids: Sequence[str | None],
        finish: Finish[ResultT],
        places: Sequence[Sequence[int]] | None = None,
        inbox: Inbox | None = None,
    ) -> None:
        self._places = [(index,) for index in range(len(ids))] if places is None else places
        self._results: list[ResultT | None] = [None] * len(ids)
        self._missing = len(ids)
        self._ids = ids
        #: The request whose items these are.
        self.origin = origin.current()
        self._finish = finish
        self._fresh: list[int] = []
        self._news = asyncio.Event()
        self._on_end: Callable[[], None] | None = None
        self._inbox = inbox
        if inbox is not None:
            inbox.news = self._news.set
        self.cancelled = False
        #: When its items were lined up (monotonic seconds).
        self.admitted = 0.0
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
            "id": self._ids[item],
        }

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when the last item has its result or the request is cancelled."""
        self._on_end = callback
        if self.done:
            self._ended()

    def resolve(self, places: Sequence[int], values: Sequence[ResultT | Failure], ran: Ran = NOT_RUN) -> None:
        """Take the outcomes of `places`, but for those that are there already; none when nobody waits any more."""
        items, found = list[int](), list[ResultT | Failure]()
        for place, value in zip(places, values, strict=True):
            for item in self._places[place]:
                if self._results[item] is None:
                    items.append(item)
                    found.append(value)
        if self.cancelled or not items:
            return
        for item, result in zip(items, self._finished(items, found, ran), strict=True):
            self._results[item] = result
        self._fresh += items
        self._missing -= len(items)
        self._news.set()
        if self._missing == 0:
            self._ended()

    def _finished(
        self, items: Sequence[int], values: Sequence[ResultT | Failure], ran: Ran
    ) -> Sequence[ResultT]:
        try:
            return self._finish([self._ids[item] for item in items], values, ran)
        except Exception as error:  # the service put a result together wrongly, past all checks
            if len(items) > 1:
                alone = [
                    self._finished([item], [value], ran) for item, value in zip(items, values, strict=True)
                ]
                return [result for [result] in alone]
            log.exception("a result cannot be read")
            reason = f"the result cannot be read: {type(error).__name__}: {error}"
            return self._finish([self._ids[items[0]]], [Failure(Status.INTERNAL_ERROR, reason)], NOT_RUN)

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

    async def chunks(self) -> AsyncGenerator[list[tuple[int, ResultT | Piece]], None]:
        """Results with their indices as they finish, in lists of all that finished at the same time.

        Where somebody listens, pieces of them come ahead.
        """
        try:
            while self._fresh or not self.done:
                if not self._fresh and not self._inbox:
                    self._news.clear()
                    await self._news.wait()
                    continue
                fresh, self._fresh = self._fresh, []
                news: list[tuple[int, ResultT | Piece]] = [*self._pieces(fresh)]
                news += [(index, result) for index in fresh if (result := self._results[index]) is not None]
                if news:
                    yield news
        finally:
            self.cancel()
            if self._inbox is not None:
                self._inbox.close()

    def _pieces(self, fresh: Sequence[int]) -> list[tuple[int, Piece]]:
        """The pieces that have come, but for those of a result that was given out: its deadline may have passed."""
        pieces = [] if self._inbox is None else self._inbox.take()
        return [one for one in pieces if one[0] in fresh or self._results[one[0]] is None]

    def _ended(self) -> None:
        if self._inbox is not None and self.cancelled:
            self._inbox.close()
        callback, self._on_end = self._on_end, None
        if callback is not None:
            callback()
