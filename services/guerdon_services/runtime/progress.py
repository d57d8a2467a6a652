"""Signs of life from the threads that run batches, so that a slow batch can be told from a stuck one."""

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_current = threading.local()


class Calls:
    """The calls that run now, each with the time of its last sign of life. Used from any thread."""

    def __init__(self) -> None:
        self._signs: dict[int, float] = {}

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call `function` in this thread; until it returns, it counts as running."""
        thread = threading.get_ident()
        self._signs[thread] = time.monotonic()
        _current.calls = self
        try:
            return function(*arguments)
        finally:
            _current.calls = None
            del self._signs[thread]

    def sign(self) -> None:
        """The call of this thread makes progress."""
        self._signs[threading.get_ident()] = time.monotonic()

    @property
    def silent_s(self) -> float:
        """Seconds since the last sign of the call that gave none for longest; 0 while nothing runs."""
        now = time.monotonic()
        return max((now - sign for sign in self._signs.copy().values()), default=0.0)


def report_progress() -> None:
    """Say that the batch which runs in this thread makes progress.

    For scorers whose batches may rightly take longer than `--stuck-after-s`: between two programs, two tokens,
    two micro-batches. Cheap, and without effect outside a batch.
    """
    calls: Calls | None = getattr(_current, "calls", None)
    if calls is not None:
        calls.sign()
