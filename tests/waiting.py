"""Waiting for what must happen, however slow the machine is."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import psutil
import pytest

#: Seconds after which something that should happen counts as never happening: less than a test may take.
PATIENCE_S = 240.0
#: Seconds between two looks.
_LOOK_EVERY_S = 0.02


def until(
    happened: Callable[[], object],
    *,
    said: Callable[[], object] = lambda: "",
    patience_s: float = PATIENCE_S,
) -> None:
    """Return once `happened` is true. `said` tells more about what is waited for when it never is, such as a log."""
    ends = time.monotonic() + patience_s
    while not happened():
        if time.monotonic() > ends:
            pytest.fail(f"it did not happen within {patience_s:g} s {said()}".strip())
        time.sleep(_LOOK_EVERY_S)


async def until_async(happened: Callable[[], Awaitable[object]]) -> None:
    """The same without holding up what else this loop does."""
    ends = time.monotonic() + PATIENCE_S
    while not await happened():
        if time.monotonic() > ends:
            pytest.fail(f"it did not happen within {PATIENCE_S:g} s")
        await asyncio.sleep(_LOOK_EVERY_S)


def gone(process: int | psutil.Process) -> bool:
    """Whether a process has ended: nothing has its number, or a zombie that nobody has waited for."""
    try:
        one = psutil.Process(process) if isinstance(process, int) else process
        return one.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
