"""Ends an engine's processes when the service that started them is gone, however it went and however far they had come.

vLLM's own notice that late or not at all: one that is just starting waits minutes for its parent. So a process beside
them waits for a pipe from the service to close, and kills every process with the engine's mark in its environment. It
is this file, run alone.
"""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker

import psutil

#: Environment variable that marks an engine's processes.
_MARK = "GUERDON_ENGINE"
#: Processes name themselves by writing over their arguments and environment; with this set they leave the latter.
_KEEP_ENVIRONMENT = "SPT_NOENV"
#: One that was being started when the others were killed is found by another look.
_LOOKS, _LOOK_EVERY_S = 50, 0.1


class Guard:
    """Guards one engine's processes."""

    def __init__(self) -> None:
        self._mark = uuid.uuid4().hex
        self._process = subprocess.Popen(
            # -P: this file's neighbours must not be found in the place of libraries.
            [sys.executable, "-P", __file__, self._mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            # Ctrl-C goes to the service, and is no order to let go of its processes.
            start_new_session=True,
        )

    @contextmanager
    def marking(self) -> Iterator[None]:
        """Processes that are started within are guarded, and what they start."""
        # It serves the whole service, and outlives it to tidy up.
        resource_tracker.ensure_running()
        os.environ[_MARK] = self._mark
        os.environ[_KEEP_ENVIRONMENT] = "1"
        try:
            yield
        finally:
            del os.environ[_MARK]

    def close(self) -> None:
        """Kill what is left of the processes."""
        self._process.communicate()


def _kill(mark: str) -> int:
    """How many processes with the mark there were."""
    killed = 0
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # somebody else's, or gone
            if process.environ().get(_MARK) == mark:
                process.kill()
                killed += 1
    return killed


if __name__ == "__main__":
    sys.stdin.read()
    for _ in range(_LOOKS):
        if not _kill(sys.argv[1]):
            break
        time.sleep(_LOOK_EVERY_S)
