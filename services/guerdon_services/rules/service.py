"""The rules service: a weighted sum of rules that need no model."""

import os
import threading
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from guerdon.types import Result, RuleVerdict, Sample, Status, Verdict, failed
from guerdon_services.rules import (
    choice,
    exact,
    format,
    json_schema,
    length,
    reasoning_gym,
    regex,
    repetition,
)
from guerdon_services.rules.base import Outcome, RuleFailed, RuleTimeout, RuleUnavailable
from guerdon_services.runtime.scorer import (
    RELEASE,
    Batching,
    ScoreJob,
    Scorer,
    ScorerOptions,
    ScorerSettings,
    Unscorable,
)
from guerdon_services.workers import WorkerCrashed, WorkerPool, WorkerTimeout

#: Every rule that needs nothing but its options and the sample. To add one: a file with its options and `judge`,
#: a line here (or in `WORKER_RULES`), and its options in `AnyRule`.
RULES: dict[str, Callable[[Any, Sample], Outcome]] = {
    "format": format.judge,
    "exact": exact.judge,
    "choice": choice.judge,
    "regex": regex.judge,
    "length": length.judge,
    "repetition": repetition.judge,
}

#: Rules that run what may never end, each in worker processes of a module of its own.
WORKER_RULES: dict[str, tuple[str, Callable[[Any, Sample, WorkerPool], Outcome]]] = {
    "json_schema": ("guerdon_services.rules.schema_worker", json_schema.judge),
    "reasoning_gym": ("guerdon_services.rules.reasoning_worker", reasoning_gym.judge),
}

AnyRule = (
    format.FormatOptions
    | exact.ExactOptions
    | choice.ChoiceOptions
    | regex.RegexOptions
    | json_schema.JsonSchemaOptions
    | length.LengthOptions
    | repetition.RepetitionOptions
    | reasoning_gym.ReasoningGymOptions
)


class RulesSettings(ScorerSettings):
    """Start-up settings of the rules service; limits and workers concern json_schema and reasoning_gym."""

    workers: Annotated[int, Field(ge=1, le=1024)] = os.cpu_count() or 1
    time_limit_s: Annotated[float, Field(gt=0, le=600)] = 10.0
    memory_mb: Annotated[int, Field(ge=256)] = 2048
    recycle_after: Annotated[int, Field(ge=1)] = 2000


class RulesOptions(ScorerOptions):
    """Per-request options: the rules whose weighted values are added up."""

    rules: Annotated[
        list[Annotated[AnyRule, Field(discriminator="rule")]], Field(min_length=1, max_length=64)
    ]


class RulesScorer(Scorer[RulesSettings, RulesOptions]):
    """The weighted sum of what the rules give; the verdict lists each rule's own value."""

    name: ClassVar[str] = "rules"
    version: ClassVar[str] = RELEASE
    settings_type: ClassVar[type[ScorerSettings]] = RulesSettings
    options_type: ClassVar[type[ScorerOptions]] = RulesOptions
    deterministic: ClassVar[bool] = True

    def __init__(self, settings: RulesSettings) -> None:
        super().__init__(settings)
        self.batching = Batching(max_items=4, max_wait_ms=0.0, concurrency=settings.workers)
        self._lock = threading.Lock()
        self._pools: dict[str, WorkerPool] = {}

    def close(self) -> None:
        """Kill the workers, if any were started."""
        for pool in self._pools.values():
            pool.close()

    def details(self) -> dict[str, str]:
        """The rules there are."""
        return {"rules": ", ".join([*RULES, *WORKER_RULES])}

    def score(self, batch: Sequence[ScoreJob[RulesOptions]]) -> list[Result]:
        """One result per job; a rule that cannot judge a sample costs that sample its value."""
        return [self._score_one(job.sample, job.options) for job in batch]

    def _score_one(self, sample: Sample, options: RulesOptions) -> Result:
        verdicts: list[RuleVerdict] = []
        total = 0.0
        for rule in options.rules:
            try:
                outcome = self._judge(rule, sample)
            except Unscorable as problem:
                return failed(Status.INVALID_INPUT, f"{problem} (rule {rule.rule})")
            except RuleTimeout as problem:
                return failed(Status.TIMEOUT, f"rule {rule.rule}: {problem}")
            except RuleFailed as problem:
                return failed(Status.INTERNAL_ERROR, f"rule {rule.rule}: {problem}")
            except RuleUnavailable as problem:
                return failed(Status.UNAVAILABLE, f"rule {rule.rule}: {problem}")
            total += rule.weight * outcome.value
            verdicts.append(RuleVerdict(rule=rule.rule, value=outcome.value, reason=outcome.reason))
        reason = "; ".join(f"{verdict.rule} {verdict.value:g}: {verdict.reason}" for verdict in verdicts)
        return Result(status=Status.OK, value=total, reason=reason, verdict=Verdict(rules=verdicts))

    def _judge(self, rule: AnyRule, sample: Sample) -> Outcome:
        if rule.rule in WORKER_RULES:
            module, judge = WORKER_RULES[rule.rule]
            return judge(rule, sample, self._workers(module))
        return RULES[rule.rule](rule, sample)

    def _workers(self, module: str) -> WorkerPool:
        """The workers of a rule, started when the first sample needs them: most users never do."""
        with self._lock:
            if module in self._pools:
                return self._pools[module]
            settings = self.settings
            pool = WorkerPool(
                module,
                settings.workers,
                time_limit_s=settings.time_limit_s,
                memory_mb=settings.memory_mb,
                recycle_after=settings.recycle_after,
            )
            try:
                pool.open()
            except WorkerCrashed as problem:
                raise RuleUnavailable(f"{problem}; install guerdon-services[rules]") from problem
            except (WorkerTimeout, OSError) as problem:
                raise RuleUnavailable(str(problem)) from problem
            self._pools[module] = pool
            return pool
