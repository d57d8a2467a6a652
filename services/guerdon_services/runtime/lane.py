"""Who of a service's waiting lines runs next, and in which thread. All state lives on the event loop."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import Any, Protocol, TypeVar

import structlog

from guerdon_services.runtime.progress import Calls

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: Timers of uvloop tick in milliseconds: a batch due within this many seconds is due.
_TIMER_SLACK_S = 0.0005


def contained(function: Callable[..., T], *arguments: Any) -> T:
    """Call a service's `function`; for a thread of asyncio.

    What asyncio cannot bring back from there (StopIteration), and what would end the process (a library's SystemExit),
    becomes a RuntimeError.
    """
    try:
        return function(*arguments)
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


class Line(Protocol):
    """What a lane needs of a waiting line; see `batcher.Batcher`."""

    @property
    def waiting(self) -> int:
        """Items admitted and not started."""
        ...

    @property
    def half_done(self) -> bool:
        """Whether a request that is to be kept whole has some of its answers, and waits for others."""
        ...

    def due(self) -> float | None:
        """When the next batch may start (monotonic seconds); None while nothing waits."""
        ...

    def take(self) -> list[Any]:
        """The next batch."""
        ...

    def run(self, batch: list[Any], *, fresh: bool) -> Coroutine[Any, Any, None]:
        """Run what was taken; a `fresh` batch continues no request."""
        ...


class Lane:
    """The threads of one service. At most `workers` batches run at a time, whatever their operation."""

    def __init__(self, workers: int, name: str) -> None:
        #: What runs in the threads, but for `call`.
        self.calls = Calls()
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix=name)
        self._free = workers
        self._workers = workers
        self._calls = 0
        self._lines: list[Line] = []
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._paused = True
        self._idle = asyncio.Event()
        self._idle.set()

    def attach(self, line: Line) -> None:
        """Let `line` run its batches here."""
        self._lines.append(line)

    async def call(self, function: Callable[[], Any]) -> Any:
        """Run `function` in one of the threads, outside any batch; the lane is not idle before it has ended."""
        self._calls += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, contained, function)
        finally:
            self._calls -= 1
            self.pump()

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a part of a batch in one of the threads."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self.calls.run, contained, function, *arguments)

    async def call_when_free(self, function: Callable[[], None]) -> None:
        """Run `function` as if it were a batch, if none runs and no request is half done; else do nothing."""
        if self._paused or self._free < self._workers or any(line.half_done for line in self._lines):
            return
        self._free -= 1
        try:
            await self.run(function)
        finally:
            self._free += 1
            self.pump()

    def start(self) -> None:
        """Begin to run batches; until then items wait."""
        self._paused = False
        self.pump()

    def pump(self) -> None:
        """Start every batch that may start now; arm a timer for the next one otherwise."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._free and not self._paused:
            # A request that is half done is finished first: an update in between would change its weights.
            lines = [line for line in self._lines if line.half_done] or self._lines
            due = [(at, order) for order, line in enumerate(lines) if (at := line.due()) is not None]
            if not due:
                break
            at, order = min(due)
            delay = at - time.monotonic()
            if delay > _TIMER_SLACK_S:
                self._timer = asyncio.get_running_loop().call_later(delay, self.pump)
                break
            self._start(lines[order])
        if self.busy:
            self._idle.clear()
        else:
            self._idle.set()

    @property
    def busy(self) -> bool:
        """Whether anything runs or waits."""
        return self._free < self._workers or self._calls > 0 or any(line.waiting for line in self._lines)

    async def idle(self) -> None:
        """Return when nothing runs and nothing waits."""
        while self.busy:
            self._idle.clear()
            await self._idle.wait()

    def stop(self) -> None:
        """Let no new batch start; the threads end with their batches."""
        self._paused = True
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _start(self, line: Line) -> None:
        self._free -= 1
        fresh = not line.half_done
        # A batch belongs to many requests: its log must not bear the name of the one that set it off.
        task = asyncio.get_running_loop().create_task(line.run(line.take(), fresh=fresh), context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._free += 1
        self.pump()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("batcher failed", exc_info=error)
