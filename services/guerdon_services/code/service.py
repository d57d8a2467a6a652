"""The code verifier as a service: extract the program, run it on every test, report verdicts and a reward."""

import os
import queue
import tempfile
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field, field_validator

from guerdon.types import Result, Status, TestVerdict, Verdict, failed
from guerdon_services.code import judge, programs, selftest, tasks
from guerdon_services.code.asserted import asserted
from guerdon_services.code.checker import checked
from guerdon_services.code.extraction import last_code_block
from guerdon_services.code.sandbox import Profile
from guerdon_services.code.supervision import Infrastructure, Run, RunLimits, Starved
from guerdon_services.code.worker import Worker, remove_stale_scratch
from guerdon_services.runtime.scorer import (
    RELEASE,
    Batching,
    ScoreJob,
    Scorer,
    ScorerOptions,
    ScorerSettings,
    Unscorable,
)

_Answer = TypeVar("_Answer")


class CodeSettings(ScorerSettings):
    """How programs are isolated, and what they get."""

    #: host and pod need Landlock, seccomp and resource limits; gvisor is for pods in that RuntimeClass, which lack
    #: Landlock. host adds an empty network namespace where permitted. A missing layer stops the service.
    profile: Profile = "host"
    #: Programs that run at once; default: one per core.
    workers: Annotated[int, Field(ge=1, le=1024)] | None = None
    #: Packages that programs may import beside the standard library; default: numpy where installed.
    packages: tuple[str, ...] | None = None
    #: Where each program's empty working folder is made; default: the system's temporary folder.
    scratch: str | None = None
    #: Runs after which a fork server is replaced.
    recycle_after: Annotated[int, Field(ge=1)] = 2000
    #: RunLimits of a task that names none ...
    cpu_s: Annotated[float, Field(gt=0)] = 4.0
    wall_s: Annotated[float, Field(gt=0)] = 12.0
    memory_mb: Annotated[int, Field(gt=0)] = 512
    output_kb: Annotated[int, Field(gt=0)] = 32 * 1024
    #: ... and the most that a task may ask for.
    max_cpu_s: Annotated[float, Field(gt=0)] = 60.0
    max_wall_s: Annotated[float, Field(gt=0)] = 180.0
    max_memory_mb: Annotated[int, Field(gt=0)] = 4096
    max_output_kb: Annotated[int, Field(gt=0)] = 64 * 1024
    max_tests: Annotated[int, Field(ge=1)] = 1000

    @field_validator("packages", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(name for name in value.split(",") if name) if isinstance(value, str) else value

    def limit_range(self) -> tasks.LimitRange:
        """The limits as the tasks module wants them."""
        return tasks.LimitRange(
            default=RunLimits(self.cpu_s, self.wall_s, self.memory_mb, self.output_kb * 1024),
            most=RunLimits(self.max_cpu_s, self.max_wall_s, self.max_memory_mb, self.max_output_kb * 1024),
        )


class CodeOptions(ScorerOptions):
    """Per-request options."""

    #: last_block: the last fenced block of the response, Python-tagged ones first. whole: the response is the program.
    extraction: Literal["last_block", "whole"] = "last_block"
    #: fraction: passed tests / tests. all_or_nothing: 1 only when all passed.
    reward: Literal["fraction", "all_or_nothing"] = "fraction"
    #: Tests after the first failure do not run; they count as failed.
    stop_at_first_failure: bool = False
    #: Run only the first tests; the reason says so.
    max_tests: Annotated[int, Field(ge=1)] | None = None


@dataclass(frozen=True)
class Slot:
    """Room for one program at a time; `tests` starts when first needed, and waits while `program` works."""

    program: Worker
    tests: Worker


class CodeScorer(Scorer[CodeSettings, CodeOptions]):
    """Runs untrusted programs in sandboxes and judges what comes out."""

    name: ClassVar[str] = "code"
    version: ClassVar[str] = RELEASE
    settings_type: ClassVar[type[ScorerSettings]] = CodeSettings
    options_type: ClassVar[type[ScorerOptions]] = CodeOptions

    def __init__(self, settings: CodeSettings) -> None:
        super().__init__(settings)
        workers = settings.workers or len(os.sched_getaffinity(0))
        self.batching = Batching(max_items=1, max_wait_ms=0.0, concurrency=workers)
        packages = settings.packages
        if packages is None:
            packages = ("numpy",) if find_spec("numpy") else ()
        scratch = settings.scratch or tempfile.gettempdir()
        self.slots = [
            Slot(
                *(Worker(settings.profile, list(packages), scratch, settings.recycle_after) for _ in range(2))
            )
            for _ in range(workers)
        ]
        self._idle: queue.LifoQueue[Slot] = queue.LifoQueue()
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="code-program")
        self._limits = settings.limit_range()
        self._scratch = scratch
        self._layers = ""

    def open(self) -> None:
        """Start the fork servers and prove every layer of the profile.

        Raises:
            selftest.NotIsolated: a layer is missing or does not hold; the message says what can be done.
        """
        remove_stale_scratch(self._scratch)
        try:
            for slot in self.slots:
                self._layers = selftest.check(slot.program, self.settings.profile)
                self._idle.put(slot)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the fork servers; nothing stays behind."""
        for slot in self.slots:
            slot.program.stop()
            slot.tests.stop()
        self._executor.shutdown()

    @property
    def workers(self) -> list[Worker]:
        """The fork servers that programs run on."""
        return [slot.program for slot in self.slots]

    def details(self) -> dict[str, str]:
        """The isolation profile and the layers found at start."""
        return {"profile": self.settings.profile, "layers": self._layers, "languages": "python"}

    def score(self, batch: Sequence[ScoreJob[CodeOptions]]) -> list[Result]:
        """One result per job: the fraction of tests passed, and a verdict for each."""
        return [self._score(job) for job in batch]

    def _score(self, job: ScoreJob[CodeOptions]) -> Result:
        try:
            return self._judged(job)
        except Unscorable as error:
            return failed(Status.INVALID_INPUT, str(error))
        except Starved as error:
            return failed(Status.TIMEOUT, str(error))
        except Infrastructure as error:
            return failed(Status.INTERNAL_ERROR, str(error))

    def _judged(self, job: ScoreJob[CodeOptions]) -> Result:
        plan = tasks.plan(job.sample, self._limits)
        if len(plan.tests) > self.settings.max_tests:
            raise Unscorable(f"code.tests: {len(plan.tests)}, over this service's {self.settings.max_tests}")
        if job.sample.response is None:
            raise Unscorable("response: missing; it holds the program")
        tests = plan.tests[: job.options.max_tests]
        program = job.sample.response
        if job.options.extraction == "last_block":
            block = last_code_block(program)
            if block is None:
                return self._without_program(job, len(tests), "the response has no closed fenced code block")
            program = block
        try:
            program.encode()
        except UnicodeEncodeError:
            return self._without_program(job, len(tests), "the program is not valid Unicode")
        verdicts: list[TestVerdict] = []
        for test in tests:
            verdicts.append(self._test(plan, test, program))
            if verdicts[-1].verdict != "AC" and job.options.stop_at_first_failure:
                break
        return self._result(job, verdicts, len(tests), program)

    def _without_program(self, job: ScoreJob[CodeOptions], count: int, reason: str) -> Result:
        verdicts = [TestVerdict(verdict="CE", message=reason)] * count
        return self._result(job, verdicts, count, None, reason)

    def _result(
        self,
        job: ScoreJob[CodeOptions],
        verdicts: list[TestVerdict],
        count: int,
        program: str | None,
        reason: str = "",
    ) -> Result:
        """The reward of the verdicts; tests that did not run count as failed."""
        passed = sum(verdict.verdict == "AC" for verdict in verdicts)
        fraction = passed / count
        value = fraction if job.options.reward == "fraction" else float(passed == count)
        assert job.sample.code
        notes = [reason] if reason else [f"{passed} of {count} tests passed"]
        if count < len(job.sample.code.tests):
            notes.append(f"only the first {count} of {len(job.sample.code.tests)} tests count (max_tests)")
        if len(verdicts) < count:
            notes.append(f"stopped at the first failure, test {len(verdicts)}")
        verdict = Verdict(
            extracted=program,
            method=job.options.extraction,
            tests=verdicts,
            fraction=fraction,
            profile=self.settings.profile,
        )
        return Result(status=Status.OK, value=value, reason="; ".join(notes), verdict=verdict)

    def _test(self, plan: tasks.Plan, test: tasks.Test, program: str) -> TestVerdict:
        if plan.kind in ("assert", "unittest"):
            return self._twice(
                lambda slot: asserted(slot.program, slot.tests, self._executor, plan, test, program)
            )
        run, verdict = self._twice(lambda slot: self._run(slot.program, plan, test, program))
        if verdict is not None:
            return verdict
        if plan.compare.mode == "checker":
            return self._twice(lambda slot: checked(slot.program, plan, test, run))
        return judge.compared(run, plan, test)

    def _run(
        self, worker: Worker, plan: tasks.Plan, test: tasks.Test, program: str
    ) -> tuple[Run, TestVerdict | None]:
        job = programs.Job(
            kind=plan.kind,
            code=program,
            setup=plan.setup,
            function=plan.function,
            arguments=test.arguments,
            encoded_arguments="",
            cpu_s=plan.limits.cpu_s,
            memory_mb=plan.limits.memory_mb,
        )
        run = worker.run(job, test.stdin, plan.limits)
        return run, judge.failure(run, plan.limits)

    def _twice(self, attempt: Callable[[Slot], _Answer]) -> _Answer:
        """Try in one slot and, when that told nothing about the program, once more."""
        with self._borrowed() as slot:
            try:
                return attempt(slot)
            except Infrastructure:
                return attempt(slot)

    @contextmanager
    def _borrowed(self) -> Generator[Slot]:
        slot = self._idle.get()
        try:
            yield slot
        finally:
            self._idle.put(slot)
