"""Kills a process at any step that it takes on a file system. Tests load this by path; scripts import it."""

import os
import signal
from collections.abc import Callable
from typing import Any

#: Everything that changes names or makes bytes durable.
_STEPS = ("rename", "replace", "fsync", "mkdir", "rmdir", "unlink", "link")


def crashes(step: int, work: Callable[[], object]) -> bool:
    """Whether `work`, in a process of its own, was killed before its step number `step`; else it came to its end."""
    child = os.fork()
    if child == 0:
        _arm(step)
        try:
            work()
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), status
    return status != 0


def _arm(step: int) -> None:
    taken = 0

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal taken
            if taken == step:
                os.kill(os.getpid(), signal.SIGKILL)
            taken += 1
            return original(*args, **kwargs)

        return call

    for name in _STEPS:
        setattr(os, name, counted(getattr(os, name)))
