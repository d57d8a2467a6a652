"""The code verifier as a service: extract the program, run it on every test, report verdicts and a reward."""

import os
import platform
import queue
import tempfile
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from fastapi import APIRouter
from pydantic import Field, field_validator

from guerdon import errors
from guerdon.types import (
    CodeTask,
    CodeTest,
    Limits,
    Result,
    Sample,
    Status,
    TestVerdict,
    Verdict,
    failed,
)
from guerdon_services.code import judge, programs, selftest, tasks
from guerdon_services.code.asserted import asserted
from guerdon_services.code.checker import checked
from guerdon_services.code.extraction import last_code_block
from guerdon_services.code.languages import native
from guerdon_services.code.languages.selftest import check_all
from guerdon_services.code.sandbox import Profile
from guerdon_services.code.single_runs import ran, uncompiled
from guerdon_services.code.supervision import Infrastructure, Run, RunLimits, Starved
from guerdon_services.code.warm import WarmTests
from guerdon_services.code.worker import Worker, remove_stale_scratch
from guerdon_services.compat import sandbox_fusion
from guerdon_services.runtime.dispatch import Dispatcher
from guerdon_services.runtime.progress import report_progress
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
    #: Languages beside Python; default: all whose tools are on this machine. One that is named must be there.
    languages: tuple[str, ...] | None = None
    #: What a compiler may use for one program.
    compile_cpu_s: Annotated[float, Field(gt=0)] = 15.0
    compile_wall_s: Annotated[float, Field(gt=0)] = 45.0
    compile_memory_mb: Annotated[int, Field(gt=0)] = 1024

    @field_validator("packages", "languages", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(name for name in value.split(",") if name) if isinstance(value, str) else value

    def compile_limits(self) -> RunLimits:
        """The limits of a compiler; what it says is kept, up to 1 MiB."""
        return RunLimits(self.compile_cpu_s, self.compile_wall_s, self.compile_memory_mb, 1 << 20)

    def limit_range(self) -> tasks.LimitRange:
        """The limits as the tasks module wants them."""
        return tasks.LimitRange(
            default=RunLimits(self.cpu_s, self.wall_s, self.memory_mb, self.output_kb * 1024),
            most=RunLimits(self.max_cpu_s, self.max_wall_s, self.max_memory_mb, self.max_output_kb * 1024),
        )


class CodeOptions(ScorerOptions):
    """Per-request options."""

    #: last_block: the last fenced block of the response, those tagged with the language
    #: first. whole: the response is the program.
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
    #: For tests that leave nothing behind; starts when first needed.
    warm: WarmTests
    #: Compilers and programs of other languages; starts when first needed.
    native: Worker


class CodeScorer(Scorer[CodeSettings, CodeOptions]):
    """Runs untrusted programs in sandboxes and judges what comes out."""

    name: ClassVar[str] = "code"
    version: ClassVar[str] = RELEASE
    settings_type: ClassVar[type[ScorerSettings]] = CodeSettings
    options_type: ClassVar[type[ScorerOptions]] = CodeOptions
    deterministic: ClassVar[bool] = True

    def __init__(self, settings: CodeSettings) -> None:
        super().__init__(settings)
        workers = settings.workers or len(os.sched_getaffinity(0))
        self.batching = Batching(max_items=1, max_wait_ms=0.0, concurrency=workers)
        packages = settings.packages
        if packages is None:
            packages = ("numpy",) if find_spec("numpy") else ()
        scratch = settings.scratch or tempfile.gettempdir()
        self._toolchains, self._missing = native.find_toolchains(settings.languages)
        self.slots = [self._slot(settings, list(packages), scratch) for _ in range(workers)]
        self._idle: queue.LifoQueue[Slot] = queue.LifoQueue()
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="code-program")
        self._limits = settings.limit_range()
        self._scratch = scratch
        self._layers = ""

    def _slot(self, settings: CodeSettings, packages: list[str], scratch: str) -> Slot:
        of_python = (settings.profile, packages, scratch, settings.recycle_after)
        rooms = native.rooms(self._toolchains)
        of_others = Worker(settings.profile, [], scratch, settings.recycle_after, rooms)
        return Slot(Worker(*of_python), Worker(*of_python), WarmTests(*of_python), of_others)

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
            self._check_languages()
        except BaseException:
            self.close()
            raise

    def _check_languages(self) -> None:
        """Leave out those that do not work; all slots are alike, so one is asked.

        Raises:
            selftest.NotIsolated: a wall gives way, or a language named in the settings does not work.
        """
        worker = self.slots[0].native
        try:
            faults = check_all(worker, self._toolchains, self.settings.profile)
        finally:
            worker.stop()  # until a program needs it
        if faults and self.settings.languages is not None:
            raise selftest.NotIsolated(f"languages: {faults}")
        for name, fault in faults.items():
            del self._toolchains[name]
            self._missing[name] = fault

    def close(self) -> None:
        """End the fork servers; nothing stays behind."""
        for slot in self.slots:
            slot.program.stop()
            slot.tests.stop()
            slot.warm.stop()
            slot.native.stop()
        self._executor.shutdown()

    @property
    def workers(self) -> list[Worker]:
        """The fork servers that programs run on."""
        return [slot.program for slot in self.slots]

    def details(self) -> dict[str, str]:
        """The isolation profile, the layers found at start, and the languages."""
        others = [f"{name} ({toolchain.version})" for name, toolchain in self._toolchains.items()]
        languages = ", ".join([f"python ({platform.python_version()})", *others])
        return {"profile": self.settings.profile, "layers": self._layers, "languages": languages}

    def routes(self, dispatch: Dispatcher) -> APIRouter:
        """SandboxFusion's `/run_code`."""
        return sandbox_fusion.build_router(self, dispatch)

    def run_program(
        self, language: str, source: str, stdin: str, wall_s: float, memory_mb: int | None
    ) -> sandbox_fusion.Ran:
        """Run a program once; no limit is above the service's own.

        Raises:
            errors.InvalidRequest: the language is not offered, or a text is none.
            errors.Unavailable: the run told nothing about the program.
        """
        most = self._limits.most
        limits = Limits(
            cpu_s=min(wall_s, most.cpu_s),
            wall_s=min(wall_s, most.wall_s),
            memory_mb=min(memory_mb, most.memory_mb) if memory_mb else None,
        )
        task = CodeTask(
            language=language, kind="stdio", tests=[CodeTest(input=stdin, output="")], limits=limits
        )
        try:
            plan = tasks.plan(Sample(code=task), self._limits)
            self._check_offered(plan)
            with self._ready(plan, source) as ready:
                if isinstance(ready, TestVerdict):
                    return uncompiled(ready)
                return ran(*self._twice(lambda slot: self._run(slot, plan, plan.tests[0], ready)))
        except Unscorable as error:
            raise errors.InvalidRequest(str(error)) from None
        except Infrastructure as error:
            raise errors.Unavailable(str(error)) from error

    def score(self, batch: Sequence[ScoreJob[CodeOptions]]) -> list[Result]:
        """One result per job: the fraction of tests passed, and a verdict for each."""
        return [self._score(job) for job in batch]

    def _score(self, job: ScoreJob[CodeOptions]) -> Result:
        try:
            return self._judged(replace(job, sample=tasks.with_task(job.sample)))
        except Unscorable as error:
            return failed(Status.INVALID_INPUT, str(error))
        except Starved as error:
            return failed(Status.TIMEOUT, str(error))
        except (Infrastructure, OSError) as error:
            return failed(Status.INTERNAL_ERROR, str(error))

    def _judged(self, job: ScoreJob[CodeOptions]) -> Result:
        plan = tasks.plan(job.sample, self._limits)
        if len(plan.tests) > self.settings.max_tests:
            raise Unscorable(f"code.tests: {len(plan.tests)}, over this service's {self.settings.max_tests}")
        if job.sample.response is None:
            raise Unscorable("response: missing; it holds the program")
        self._check_offered(plan)
        tests = plan.tests[: job.options.max_tests]
        program = job.sample.response
        if job.options.extraction == "last_block":
            block = last_code_block(program, plan.language.names)
            if block is None:
                return self._without_program(job, len(tests), "the response has no closed fenced code block")
            program = block
        try:
            program.encode()
        except UnicodeEncodeError:
            return self._without_program(job, len(tests), "the program is not valid Unicode")
        with self._ready(plan, program) as ready:
            if isinstance(ready, TestVerdict):
                return self._result(job, [ready] * len(tests), len(tests), program)
            verdicts: list[TestVerdict] = []
            for test in tests:
                verdicts.append(self._test(plan, test, ready))
                report_progress()
                if verdicts[-1].verdict != "AC" and job.options.stop_at_first_failure:
                    break
        return self._result(job, verdicts, len(tests), program)

    def _check_offered(self, plan: tasks.Plan) -> None:
        name = plan.language.name
        if name in self._missing:
            raise Unscorable(f"code.language: {name!r} is not offered here: {self._missing[name]}")

    @contextmanager
    def _ready(self, plan: tasks.Plan, program: str) -> Generator[str | native.Built | TestVerdict]:
        """The program as it is run: Python source; or what was built of another, forgotten afterwards; or CE."""
        toolchain = self._toolchains.get(plan.language.name)
        if toolchain is None:
            yield program
            return
        limits = self.settings.compile_limits()
        built = self._twice(lambda slot: native.build(slot.native, plan.language, toolchain, program, limits))
        try:
            yield built
        finally:
            if isinstance(built, native.Built):
                built.close()

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

    def _test(self, plan: tasks.Plan, test: tasks.Test, program: str | native.Built) -> TestVerdict:
        if isinstance(program, str) and plan.kind in ("assert", "unittest"):
            return self._twice(
                lambda slot: asserted(
                    slot.program, slot.tests, slot.warm, self._executor, plan, test, program
                )
            )
        run, verdict = self._twice(lambda slot: self._run(slot, plan, test, program))
        if verdict is not None:
            return verdict
        if plan.compare.mode == "checker":
            return self._twice(lambda slot: checked(slot.program, plan, test, run))
        return judge.compared(run, plan, test)

    def _run(
        self, slot: Slot, plan: tasks.Plan, test: tasks.Test, program: str | native.Built
    ) -> tuple[Run, TestVerdict | None]:
        if isinstance(program, native.Built):
            return native.run(slot.native, program, test.stdin, plan.limits)
        job = programs.Job(
            kind=plan.kind,
            code=program,
            setup=plan.setup,
            function=plan.function,
            arguments=test.arguments,
            encoded_arguments="",
            cpu_s=plan.limits.cpu_s,
            memory_mb=plan.limits.memory_mb,
            report_arguments=test.expected_arguments is not None,
        )
        run = slot.program.fit(program, plan.setup).run(job, test.stdin, plan.limits)
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
