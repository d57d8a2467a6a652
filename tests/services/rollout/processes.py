"""What tests ask about processes that are killed. Tests import this by name."""

import threading
from collections.abc import Callable

import psutil
import pytest


def gone(process: psutil.Process) -> bool:
    """Whether it has ended."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def until(happened: Callable[[], bool], *, minutes: int) -> None:
    """Wait for something that must come, for at most so long."""
    for _ in range(600 * minutes):
        if happened():
            return
        threading.Event().wait(0.1)
    pytest.fail(f"it did not happen within {minutes} minutes")
