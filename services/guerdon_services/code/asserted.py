"""Runs assert and unittest tests: tests and program in two sandboxes at once, never both busy.

Pure tests (`pure`) of a program that answers with plain values share a sandbox with other such tests, one after the
other; all else gets two sandboxes of its own.
"""

import os
import socket
from concurrent.futures import Executor
from dataclasses import replace

from guerdon.types import TestVerdict
from guerdon_services.code import judge, linked, programs
from guerdon_services.code.supervision import Infrastructure, Link, Run
from guerdon_services.code.tasks import Plan, Test
from guerdon_services.code.warm import WarmTests
from guerdon_services.code.worker import Worker
from guerdon_services.runtime.scorer import Unscorable


def asserted(
    worker: Worker,
    tests_worker: Worker,
    warm: WarmTests,
    executor: Executor,
    plan: Plan,
    test: Test,
    program: str,
) -> TestVerdict:
    """The verdict of one test: the program's own failure first, then what the tests report.

    Raises:
        Unscorable: the tests themselves do not compile, import what is not there or hold no test, or
            their set-up fails.
        Infrastructure: a sandbox failed.
    """
    # What needs a package on one side may cross to the other.
    sources = (program, test.source, plan.setup)
    worker = worker.fit(*sources)
    if warm.takes(plan, test):
        verdict, final = _beside_others(worker, warm, plan, test, program)
        if verdict is not None and final:
            return verdict
    else:
        verdict = None
    again = _alone(worker, tests_worker.fit(*sources), executor, plan, test, program)
    # Who has failed once may fail in another way, but has no second try.
    return again if verdict is None or again.verdict != "AC" else verdict


def _beside_others(
    worker: Worker, warm: WarmTests, plan: Plan, test: Test, program: str
) -> tuple[TestVerdict | None, bool]:
    """The verdict where the tests are pure and only plain values cross, else None; and whether it is final."""
    worker.make_ready()
    try:
        link = warm.begin(plan, test)
    except Infrastructure:
        return None, False
    try:
        run = _run_closing(worker, _job(plan, "serve", program, plan.setup), plan, 1.0, link)
    except BaseException:
        warm.replace()
        raise
    outcome = warm.outcome(plan, test)
    if outcome is None:
        # How the program ended tells nothing: it may have been asked what the tests never ask.
        return None, False
    if outcome[:1] in (linked.FAILED, linked.PROGRAM_RAISED):
        # It may have been asked more than the tests came to; of all that it did then only its output counts.
        return _of_outcome(run, outcome), not run.over_output
    if run.unneeded and not run.over_output:
        return _of_outcome(run, outcome), True
    failure = judge.failure(run, plan.limits)
    if failure is not None and run.over_time and warm.waited_s() > plan.limits.wall_s / 10:
        # Maybe the tests kept it waiting, for want of a core: with two sandboxes that is told apart.
        return None, False
    return failure or _of_outcome(run, outcome), True


def _alone(
    worker: Worker, tests_worker: Worker, executor: Executor, plan: Plan, test: Test, program: str
) -> TestVerdict:
    """The verdict from a sandbox for these tests alone."""
    # Neither clock may run while the other side's server still starts.
    worker.make_ready()
    tests_worker.make_ready()
    pids = set[int]()
    program_link, tests_link = (Link(end.detach(), pids) for end in socket.socketpair())
    program_job = _job(plan, "serve", program, plan.setup)
    answers = executor.submit(_run_closing, worker, program_job, plan, 1.0, program_link)
    # The tests wait for the program: its limit must strike first.
    tests_job = _job(plan, plan.kind, test.source, plan.setup)
    try:
        tests_run = _run_closing(tests_worker, tests_job, plan, 3.0, tests_link)
    finally:
        answers.exception()
    return _verdict(answers.result(), tests_run, plan)


def _job(plan: Plan, kind: str, code: str, setup: str) -> programs.Job:
    return programs.Job(
        kind=kind,
        code=code,
        setup=setup,
        function=plan.function,
        arguments="",
        encoded_arguments="",
        cpu_s=plan.limits.cpu_s,
        memory_mb=plan.limits.memory_mb,
    )


def _run_closing(worker: Worker, job: programs.Job, plan: Plan, patience: float, link: Link) -> Run:
    """Run one side; closing its end of the link afterwards is what tells the other that it is over."""
    limits = replace(plan.limits, wall_s=plan.limits.wall_s * patience)
    try:
        return worker.run(job, b"", limits, link)
    finally:
        os.close(link.descriptor)


def _verdict(program_run: Run, tests_run: Run, plan: Plan) -> TestVerdict:
    failure = judge.failure(program_run, plan.limits)
    if failure is not None:
        return failure
    tests_failure = judge.failure(tests_run, plan.limits)
    if tests_failure is not None:
        if tests_failure.verdict == "CE":
            raise Unscorable(f"code.tests: {tests_failure.message}")
        return judge.verdict(
            program_run, "RE", f"the tests ended with {tests_failure.verdict} on its answers"
        )
    return _of_outcome(program_run, tests_run.report[len(programs.READY + programs.BEGUN) :])


def _of_outcome(program_run: Run, report: bytes) -> TestVerdict:
    message = report[1:].decode("utf-8", "replace")
    if report == linked.PASSED:
        return judge.verdict(program_run, "AC")
    if report.startswith(linked.BROKEN):
        raise Unscorable(f"code.tests: {message}")
    if report.startswith(linked.FAILED):
        return judge.verdict(program_run, "WA", message)
    if report.startswith(linked.PROGRAM_RAISED):
        return judge.verdict(program_run, "RE", message)
    return judge.verdict(program_run, "RE", message or "the program ended before its tests")
