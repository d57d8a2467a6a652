"""Runs the caller's own `check(input, output, expected)` on what a program produced, in a sandbox of its own.

The checker is trusted to be meant well, not to be right: it meets hostile output. For kind call it gets the list of
arguments, the returned value and the expected one. True (or a number above 0) passes.
"""

import json

from guerdon.types import TestVerdict
from guerdon_services.code import codec, judge, programs
from guerdon_services.code.supervision import Run
from guerdon_services.code.tasks import Plan, Test
from guerdon_services.code.worker import Worker
from guerdon_services.runtime.scorer import Unscorable


def checked(worker: Worker, plan: Plan, test: Test, run: Run) -> TestVerdict:
    """AC or WA of a run that ended well.

    Raises:
        Unscorable: the checker does not accept even the expected output without failing, or answers nonsense.
        Infrastructure: its sandbox failed.
    """
    try:
        answer, problem = _ask(worker, plan, test, _produced(plan, run))
    except codec.Malformed as error:
        return judge.verdict(run, "RE", str(error))
    if problem is None:
        if not isinstance(answer, (bool, int, float, type(None))):
            raise Unscorable(f"code.compare.checker: returned {type(answer).__name__}, not True or False")
        accepted = answer is not None and answer > 0
        return judge.verdict(run, "AC" if accepted else "WA", "" if accepted else "refused by the checker")
    # Garbage may break a sound checker; the expected output may not.
    own_problem = _ask(worker, plan, test, codec.encode(test.expected))[1]
    if own_problem is not None:
        raise Unscorable(f"code.compare.checker: {own_problem}")
    return judge.verdict(run, "WA", f"the checker failed on this output: {problem}")


def _produced(plan: Plan, run: Run) -> bytes:
    if plan.kind == "call":
        return judge.returned_bytes(run)
    return codec.encode(run.stdout.decode("utf-8", "replace"))


def _ask(worker: Worker, plan: Plan, test: Test, produced: bytes) -> tuple[object, str | None]:
    """What the checker answered, or what went wrong with it."""
    given = json.loads(test.arguments) if plan.kind == "call" else test.stdin.decode()
    arguments = codec.encode_list([codec.encode(given), produced, codec.encode(test.expected)])
    job = programs.Job(
        kind="call",
        code=plan.compare.checker or "",
        setup="",
        function="check",
        arguments="",
        encoded_arguments=arguments.hex(),
        cpu_s=plan.limits.cpu_s,
        memory_mb=plan.limits.memory_mb,
    )
    run = worker.fit(job["code"]).run(job, b"", plan.limits)
    failure = judge.failure(run, plan.limits)
    if failure is not None:
        return None, f"{failure.verdict}: {failure.message}"
    try:
        return judge.returned(run), None
    except codec.Malformed as error:
        return None, str(error)
