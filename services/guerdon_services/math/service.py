"""The math service: is the final answer of a response equal to one of its references?"""

import os
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import version
from typing import Annotated, Any, ClassVar

from pydantic import Field

from guerdon.types import Result, Sample, Status, Verdict, failed
from guerdon_services.math.arithmetic.values import NeedsBalls, Values
from guerdon_services.math.decide import decide, decide_long, is_list
from guerdon_services.math.decision import Decision, UnreadableReference
from guerdon_services.math.extraction.extract import Extraction, Mode, extract
from guerdon_services.runtime.scorer import RELEASE, Batching, ScoreJob, Scorer, ScorerOptions, ScorerSettings
from guerdon_services.workers import CallFailed, NoWorker, WorkerCrashed, WorkerPool, WorkerTimeout

#: Characters of an answer or a reference that a verdict and a reason repeat.
_SHOWN = 200
#: Decisions that are kept.
_REMEMBERED = 10_000
#: Characters of answer and reference together that are compared in this process, and steps that may take: neither holds
#: up the threads beside it for long. Whatever needs more, or ball arithmetic, goes to a worker.
_SHORT, _STEPS = 1000, 3000


class MathSettings(ScorerSettings):
    """Start-up settings of the math service."""

    workers: Annotated[int, Field(ge=1, le=1024)] = os.cpu_count() or 1
    time_limit_s: Annotated[float, Field(gt=0, le=600)] = 2.0
    memory_mb: Annotated[int, Field(ge=256)] = 512
    #: Comparisons after which a worker is replaced, so that no cache in it grows for ever.
    recycle_after: Annotated[int, Field(ge=1)] = 50_000
    max_answer_chars: Annotated[int, Field(ge=1)] = 50_000
    max_reference_chars: Annotated[int, Field(ge=1)] = 200_000


class MathOptions(ScorerOptions):
    """Per-request options: how the final answer is found."""

    extraction: Mode = "last_box"


class MathScorer(Scorer[MathSettings, MathOptions]):
    """1.0 when the answer equals any of the references, 0.0 when it does not."""

    name: ClassVar[str] = "math"
    version: ClassVar[str] = RELEASE
    settings_type: ClassVar[type[ScorerSettings]] = MathSettings
    options_type: ClassVar[type[ScorerOptions]] = MathOptions
    deterministic: ClassVar[bool] = True

    def __init__(self, settings: MathSettings) -> None:
        super().__init__(settings)
        # One item a batch: an item that hangs must not make its neighbours wait.
        self.batching = Batching(max_items=1, max_wait_ms=0.0, concurrency=settings.workers)
        self._pool = WorkerPool(
            "guerdon_services.math.worker",
            settings.workers,
            time_limit_s=settings.time_limit_s,
            memory_mb=settings.memory_mb,
            recycle_after=settings.recycle_after,
        )
        # The responses of one group often give the same answer. Failures raise, and are not remembered; nor are long
        # texts, which would fill the memory.
        self._remembered = lru_cache(maxsize=_REMEMBERED)(self._compare)

    def open(self) -> None:
        """Start the workers; returns when each is ready."""
        self._pool.open()

    def close(self) -> None:
        """Kill the workers."""
        self._pool.close()

    def worker_pids(self) -> list[int]:
        """Process ids of the workers that live now."""
        return self._pool.pids()

    def details(self) -> dict[str, str]:
        """Engine, workers and their limits."""
        settings = self.settings
        return {
            "arithmetic": f"python-flint {version('python-flint')}",
            "workers": str(settings.workers),
            "time_limit_s": f"{settings.time_limit_s:g}",
            "memory_mb": str(settings.memory_mb),
        }

    def score(self, batch: Sequence[ScoreJob[MathOptions]]) -> list[Result]:
        """One result per job; long comparisons, and those in ball arithmetic, go to a worker each."""
        return [self._score_one(job.sample, job.options) for job in batch]

    def _score_one(self, sample: Sample, options: MathOptions) -> Result:
        problem = self._input_problem(sample)
        if problem:
            return failed(Status.INVALID_INPUT, problem)
        extraction = extract(sample.response or "", options.extraction)
        if extraction.answer is None:
            return _wrong(extraction.reason)
        try:
            return self._judge(extraction, sample.references)
        except WorkerTimeout as failure:
            return failed(Status.TIMEOUT, str(failure))
        except (WorkerCrashed, CallFailed) as failure:
            return failed(Status.INTERNAL_ERROR, str(failure))
        except NoWorker as failure:
            return failed(Status.UNAVAILABLE, str(failure))

    def _input_problem(self, sample: Sample) -> str | None:
        if sample.response is None:
            return "response is missing"
        if not sample.references:
            return "references is missing: give at least one"
        limit = self.settings.max_reference_chars
        for index, reference in enumerate(sample.references):
            if len(reference) > limit:
                return f"references[{index}] has {len(reference)} characters; the limit is {limit}"
        return None

    def _judge(self, extraction: Extraction, references: Sequence[str]) -> Result:
        """The first reference that the answer equals decides."""
        unread: list[str] = []
        wrong: list[tuple[str, str, Decision]] = []
        for index, reference in enumerate(references):
            answer = _answer_for(extraction, reference)
            outcome = self._compared(answer, reference)
            if isinstance(outcome, str):
                unread.append(f"references[{index}] {outcome}")
            elif outcome.equal:
                return _result(answer, reference, outcome)
            else:
                wrong.append((answer, reference, outcome))
        if unread:
            return failed(Status.INVALID_INPUT, "; ".join(unread))
        return _result(*wrong[0])

    def _compared(self, answer: str, reference: str) -> Decision | str:
        short = len(answer) + len(reference) <= _SHORT
        return self._remembered(answer, reference) if short else self._compare(answer, reference)

    def _compare(self, answer: str, reference: str) -> Decision | str:
        """The decision, or why the reference cannot be read."""
        try:
            if len(answer) > self.settings.max_answer_chars:
                return decide_long(answer, reference)
            if len(answer) + len(reference) <= _SHORT:
                return decide(answer, reference, Values(balls=False, steps=_STEPS))
        except UnreadableReference as problem:
            return str(problem)
        except NeedsBalls:
            pass
        reply: dict[str, Any] = self._pool.run({"answer": answer, "reference": reference})
        return str(reply["unreadable"]) if "unreadable" in reply else Decision(**reply)


def _answer_for(extraction: Extraction, reference: str) -> str:
    """The last box; the whole run of boxes when the reference is a list of several values."""
    if extraction.run and is_list(reference):
        return ", ".join(extraction.run)
    return extraction.answer or ""


def _wrong(reason: str) -> Result:
    return Result(status=Status.OK, value=0.0, reason=reason, verdict=Verdict(method="none"))


def _result(answer: str, reference: str, decision: Decision) -> Result:
    relation = "equals" if decision.equal else "differs from"
    because = decision.reason or decision.method
    return Result(
        status=Status.OK,
        value=float(decision.equal),
        reason=f"{_short(answer)} {relation} {_short(reference)} ({because})",
        verdict=Verdict(
            extracted=answer[: 10 * _SHOWN],
            normalised=decision.answer,
            normalised_reference=decision.reference,
            method=decision.method,
        ),
    )


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
