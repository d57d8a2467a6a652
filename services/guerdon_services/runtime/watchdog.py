"""Notices an event loop that no longer turns and a batch that no longer moves."""

import asyncio
import faulthandler
import os
import sys
from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)

#: Exit code of a process that its watchdog ended because of a stuck batch.
STUCK_EXIT_CODE = 70
#: Longest time between two looks, in seconds.
_LOOK_EVERY_S = 1.0


class Watchdog:
    """Looks after one process; `silent_s` says for how long its slowest batch has given no sign of life.

    A batch is stuck after `after_s` seconds of silence: `/healthz` then says so. With `ends_process`, the process
    also ends, and so does one whose event loop stands still for as long. A loop cannot notice that of itself, so
    it puts off, at every look, an alarm of the C runtime: that one goes off even while some library holds the
    interpreter's lock.
    """

    def __init__(self, silent_s: Callable[[], float], after_s: float, *, ends_process: bool) -> None:
        self._silent_s = silent_s
        self._after_s = after_s
        self._ends_process = ends_process and after_s > 0
        self._task: asyncio.Task[None] | None = None
        self._noticed = False

    @property
    def stuck(self) -> str | None:
        """A sentence when a batch is stuck, None otherwise."""
        silent_s = self._silent_s()
        if not self._after_s or silent_s <= self._after_s:
            return None
        return f"a batch has given no sign of life for {silent_s:.0f} s"

    def start(self) -> None:
        """Begin to look, on the running event loop."""
        if self._after_s:
            self._task = asyncio.get_running_loop().create_task(self._watch())

    def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
        if self._ends_process:
            faulthandler.cancel_dump_traceback_later()

    async def _watch(self) -> None:
        while True:
            if self._ends_process:
                faulthandler.dump_traceback_later(self._after_s, exit=True)
            self._look()
            await asyncio.sleep(min(_LOOK_EVERY_S, self._after_s / 4))

    def _look(self) -> None:
        stuck = self.stuck
        if stuck and not self._noticed:
            log.error("stuck", reason=stuck)
            # What every thread is doing: the one thing that whoever reads this needs.
            faulthandler.dump_traceback(sys.stderr, all_threads=True)
        self._noticed = stuck is not None
        if stuck and self._ends_process:
            os._exit(STUCK_EXIT_CODE)
