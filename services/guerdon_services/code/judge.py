"""From a finished run to a verdict. The rules, in order; the first that holds decides.

IE   the sandbox failed, the server died, SIGKILL from outside     not a verdict: retried, then a status
OLE  more output than allowed
CE   the program does not compile
TLE  over the wall limit without the machine being busy, or more processor time than allowed
RE   ended by a signal
MLE  an uncaught MemoryError (the address space limit is the memory limit)
RE   an exit code other than 0; no value returned
AC   the output or the value is what was expected
WA   it is not
"""

import os
import signal
from typing import Any, Literal

from guerdon.types import Compare, TestVerdict
from guerdon_services.code import codec, compare, programs
from guerdon_services.code.supervision import Infrastructure, Run, RunLimits, died_of
from guerdon_services.code.tasks import Plan, Test
from guerdon_services.runtime.scorer import Unscorable

Kind = Literal["AC", "WA", "TLE", "MLE", "OLE", "RE", "CE"]
_MESSAGE_CHARACTERS = 300


def verdict(run: Run, kind: Kind, message: str = "") -> TestVerdict:
    """A verdict with what the run used."""
    return TestVerdict(
        verdict=kind,
        message=message[:_MESSAGE_CHARACTERS] or None,
        cpu_ms=round(run.cpu_s * 1e3, 3),
        wall_ms=round(run.wall_s * 1e3, 3),
        memory_mb=round(run.max_rss_kb / 1024, 1),
    )


def failure(run: Run, limits: RunLimits) -> TestVerdict | None:
    """The verdict of a run that did not end well, else None.

    Raises:
        Infrastructure: the program was killed from outside.
        Unscorable: the task's own set-up code failed.
    """
    report = run.report[len(programs.READY) :]
    if run.over_output:
        return verdict(run, "OLE", f"more than {limits.output_bytes // 1024} KiB of output")
    if report.startswith(programs.SETUP_ERROR):
        raise Unscorable(f"code.setup: {_text(report[1:])}")
    if report.startswith(programs.COMPILE_ERROR):
        return verdict(run, "CE", _text(report[1:]))
    ended_by = died_of(run)
    if run.cpu_s > limits.cpu_s or ended_by is signal.SIGXCPU:
        return verdict(run, "TLE", f"processor time over {limits.cpu_s:g} s")
    if run.over_time:
        return verdict(
            run, "TLE", f"wall time over {limits.wall_s:g} s, of which {run.cpu_s:.2f} s on a core"
        )
    if ended_by is signal.SIGKILL:
        # Programs cannot send it to themselves: out of memory on the machine, or an operator.
        raise Infrastructure("the program was killed from outside the sandbox")
    if ended_by:
        return verdict(run, "RE", f"ended by {ended_by.name}")
    return _exit_failure(run, limits)


def _exit_failure(run: Run, limits: RunLimits) -> TestVerdict | None:
    code = os.waitstatus_to_exitcode(run.exit_status)
    if code == programs.EXIT_MEMORY:
        return verdict(run, "MLE", f"memory over {limits.memory_mb} MiB")
    if code:
        lines = _text(run.stderr_tail).strip().splitlines()
        return verdict(run, "RE", lines[-1] if lines else f"exit code {code}")
    return None


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def returned_bytes(run: Run) -> bytes:
    """What a call reported as its value, not looked at.

    Raises:
        codec.Malformed: it reported none.
    """
    opening = programs.READY + programs.BEGUN + programs.VALUE
    if not run.report.startswith(opening):
        raise codec.Malformed("no value was returned")
    return run.report[len(opening) :]


def returned(run: Run) -> Any:
    """The value a call returned, decoded without trusting a byte of it.

    Raises:
        codec.Malformed: it is no value.
    """
    return codec.decode(returned_bytes(run), json_only=True)


def compared(run: Run, plan: Plan, test: Test) -> TestVerdict:
    """AC or WA of a run that ended well, for every mode but checker."""
    options = plan.compare
    if plan.kind == "call":
        return _compared_value(run, plan, test)
    mode = "tokens" if options.mode == "any_of" else options.mode
    for output in test.outputs:
        if compare.text_matches(mode, run.stdout, output, rel=options.rel, abs=options.abs):
            return verdict(run, "AC")
    return verdict(run, "WA", "the output differs from the expected one")


def _compared_value(run: Run, plan: Plan, test: Test) -> TestVerdict:
    try:
        reader = codec.Reader(returned_bytes(run), json_only=True)
        value = reader.value()
        arguments: Any = [] if test.expected_arguments is None else reader.value()
        reader.end()
    except codec.Malformed as error:
        return verdict(run, "RE", str(error))
    if test.compares_value and not _equal(plan.compare, value, test.expected):
        if isinstance(value, codec.Opaque):
            return verdict(run, "WA", f"returned {value.type_name}, which no test can expect")
        return verdict(run, "WA", f"returned {type(value).__name__}, not the expected value")
    if not _equal(plan.compare, arguments, test.expected_arguments or []):
        return verdict(run, "WA", "the arguments are not as expected after the call")
    return verdict(run, "AC")


def _equal(options: Compare, value: Any, expected: Any) -> bool:
    rel, abs = options.rel, options.abs
    if options.mode == "float" and rel is None and abs is None:
        rel, abs = compare.DEFAULT_REL, compare.DEFAULT_ABS
    return compare.value_matches(value, expected, tuple_as_list=bool(options.tuple_as_list), rel=rel, abs=abs)
