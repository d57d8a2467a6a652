"""A program that was run once, without tests, in the words of `/run_code`."""

import os

from guerdon.types import TestVerdict
from guerdon_services.code.supervision import Run, died_of
from guerdon_services.compat.sandbox_fusion import Ran


def ran(run: Run, verdict: TestVerdict | None) -> Ran:
    """How a run ended; what ended it early stands in `stderr`."""
    stderr = run.stderr_tail.decode("utf-8", "replace")
    if verdict is not None and verdict.verdict in ("MLE", "OLE", "TLE", "CE") and verdict.message:
        stderr = f"{stderr.rstrip()}\n{verdict.verdict}: {verdict.message}".lstrip()
    code = 0 if verdict is None else _exit_code(run)
    return Ran(
        stdout=run.stdout.decode("utf-8", "replace"),
        stderr=stderr,
        return_code=code,
        seconds=run.wall_s,
        timed_out=verdict is not None and verdict.verdict == "TLE",
    )


def uncompiled(verdict: TestVerdict) -> Ran:
    """What a compiler said of a program that it refused."""
    seconds = (verdict.wall_ms or 0.0) / 1000
    return Ran("", verdict.message or "", 1, seconds, timed_out=verdict.verdict == "TLE", compiled=False)


def _exit_code(run: Run) -> int:
    """A shell's: the exit code, or 128 and the signal; never 0 for a run that did not end well."""
    ended_by = died_of(run)
    if ended_by:
        return 128 + ended_by
    return os.waitstatus_to_exitcode(run.exit_status) or 1
