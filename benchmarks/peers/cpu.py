"""CPU time of this process and of the processes below it, in nanoseconds."""

import contextlib
import ctypes
import resource
import time
from collections.abc import Callable, Sequence

import psutil


class ChildrenClock:
    """CPU time of all processes below this one: of those that live, and of those that were waited for.

    A reading costs about a microsecond per process, so that it can stand beside calls of some ten microseconds.
    """

    def __init__(self) -> None:
        self._readers: list[Callable[[], int]] = []
        self.refresh()

    def refresh(self) -> None:
        """Find the processes anew; call it once they have started."""
        self._readers = [_reader(child) for child in psutil.Process().children(recursive=True)]

    def read_ns(self) -> int:
        """Nanoseconds up to now."""
        try:
            living = sum(read() for read in self._readers)
        except (OSError, psutil.Error):  # one of them ended, another may have taken its place
            self.refresh()
            living = sum(_or_zero(read) for read in self._readers)
        gone = resource.getrusage(resource.RUSAGE_CHILDREN)
        return living + int((gone.ru_utime + gone.ru_stime) * 1e9)


class TreesClock:
    """CPU time of other processes, each with all that lives below it; 0 where there is none."""

    def __init__(self, pids: Sequence[int | None]) -> None:
        self._trees = [_tree(pid) for pid in pids]

    def read_ns(self) -> list[int]:
        """Nanoseconds up to now, per process given."""
        return [sum(_or_zero(read) for read in tree) for tree in self._trees]


def _tree(pid: int | None) -> list[Callable[[], int]]:
    if pid is None:
        return []
    root = psutil.Process(pid)
    return [_reader(process) for process in (root, *root.children(recursive=True))]


def _reader(child: psutil.Process) -> Callable[[], int]:
    """The process's CPU clock; where the system has none to offer, the coarser times of psutil."""
    clock = ctypes.c_int()
    find = getattr(ctypes.CDLL(None), "clock_getcpuclockid", None)
    if find is not None and find(child.pid, ctypes.byref(clock)) == 0:
        number = clock.value
        return lambda: time.clock_gettime_ns(number)

    def coarse() -> int:
        times = child.cpu_times()
        return int((times.user + times.system) * 1e9)

    return coarse


def _or_zero(read: Callable[[], int]) -> int:
    with contextlib.suppress(OSError, psutil.Error):
        return read()
    return 0
