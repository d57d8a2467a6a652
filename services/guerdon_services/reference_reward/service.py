"""The reference reward service: how probable a right answer is after the response's own reasoning.

How it differs from the released code of RLPR and VeriFree is listed in docs/papers/.
"""

from collections.abc import Sequence
from typing import ClassVar

from transformers import PreTrainedModel

from guerdon.functional import Aggregation, aggregate_logprobs
from guerdon.types import Result, Status, failed
from guerdon_services import models
from guerdon_services.models import FollowingScorer
from guerdon_services.reference_reward import splice
from guerdon_services.reference_reward.baselines import BaseModel, Remembered
from guerdon_services.reference_reward.candidates import Prepared, Preparer, sequences
from guerdon_services.reference_reward.results import Logprobs, Stamp, result
from guerdon_services.reference_reward.settings import ReferenceRewardOptions, ReferenceRewardSettings
from guerdon_services.runtime.scorer import RELEASE, ScoreJob, Unscorable
from guerdon_services.scoring import ScoredSequence, check_head, token_logprobs

Job = ScoreJob[ReferenceRewardOptions]
#: Sequences by temperature; a dict so that each is scored once, in the order in which they came.
_Wanted = dict[float, dict[ScoredSequence, None]]
_Baselines = dict[tuple[str, float, Aggregation, ScoredSequence], float]


class ReferenceRewardScorer(FollowingScorer[ReferenceRewardSettings, ReferenceRewardOptions]):
    """`value` is the best reference's, or the mean over all; token rewards are the best one's log-probs."""

    name: ClassVar[str] = "reference_reward"
    version: ClassVar[str] = RELEASE
    settings_type = ReferenceRewardSettings
    options_type = ReferenceRewardOptions

    def open(self) -> None:
        """Load the model, and the one of fixed baselines where there is one."""
        super().open()
        settings = self.settings
        tokenizer = self._followed.tokenizer
        splice.check_tokenizer(tokenizer)
        check_head(self._followed.model)
        self._base = (
            BaseModel(settings.base_model, settings.base_version, tokenizer, device=settings.device)
            if settings.base_model is not None
            else None
        )
        self._remembered = {kind: Remembered(settings.baseline_cache) for kind in ("refreshed", "fixed")}
        self._preparer = Preparer(self._followed.language_model, settings)

    def details(self) -> dict[str, str]:
        """Where the models come from."""
        settings = self.settings
        details = {"model": str(settings.model), "weights_dir": str(settings.weights_dir or "")}
        if self._base is not None:
            details |= {"base_model": str(settings.base_model), "base_version": str(self._base.version)}
        return details

    def tokens(self, job: Job) -> int:
        """Prompt and response once per reference; estimated where only text is given."""
        return models.approximate_tokens(job.sample) * max(1, len(job.sample.references))

    def refresh(self) -> None:
        """Take up newer weights, if there are any; their baselines have to be computed anew."""
        if self._followed.refresh():
            self._remembered["refreshed"].clear()

    def score(self, batch: Sequence[Job]) -> list[Result]:
        """One result per job; samples at fault are `invalid_input`, their neighbours unharmed.

        Nobody waits here for weights still to come: the runtime asks again, while others are served.
        """
        prepared = [self._prepare(job) for job in batch]
        ready = [(job, one) for job, one in zip(batch, prepared, strict=True) if not isinstance(one, Result)]
        logprobs, baselines = self._run(ready)
        return [
            one if isinstance(one, Result) else self._result(job, one, logprobs, baselines)
            for job, one in zip(batch, prepared, strict=True)
        ]

    def _prepare(self, job: Job) -> Prepared | Result:
        version = self._followed.version
        if job.min_version is not None and job.min_version > version:
            reason = f"version {job.min_version} is not published, the latest is {version}"
            return failed(Status.UNAVAILABLE, reason, id=job.sample.id)
        options = job.options
        try:
            if options.baseline == "fixed" and self._base is None:
                raise Unscorable("options.baseline: fixed needs the service's setting base_model")
            prepared = self._preparer.prepare(job.sample, options)
            if prepared.no_answer and options.aggregation == "mean_logprob":
                raise Unscorable(
                    f"response: {prepared.no_answer}, and no finite log-probability stands for that"
                )
            return prepared
        except Unscorable as error:
            return failed(Status.INVALID_INPUT, str(error), id=job.sample.id)

    def _run(self, ready: Sequence[tuple[Job, Prepared]]) -> tuple[Logprobs, _Baselines]:
        """Log-probs of every reference, and the baselines; equal sequences are computed once."""
        wanted: dict[str, _Wanted] = {"refreshed": {}, "fixed": {}}
        baselines: _Baselines = {}
        missing: dict[tuple[str, float, Aggregation, ScoredSequence], None] = {}
        for job, prepared in ready:
            options = job.options
            kind, temperature, aggregation = options.baseline, options.temperature, options.aggregation
            current = wanted["refreshed"].setdefault(temperature, {})
            current.update(dict.fromkeys(sequences(prepared.candidates)))
            for candidate in prepared.candidates:
                sequence = candidate.baseline
                if sequence is None or (kind, temperature, aggregation, sequence) in baselines:
                    continue
                score = self._remembered[kind].get(sequence, temperature, aggregation)
                if score is None:
                    missing[kind, temperature, aggregation, sequence] = None
                    wanted[kind].setdefault(temperature, {})[sequence] = None
                else:
                    baselines[kind, temperature, aggregation, sequence] = score
        logprobs = self._logprobs(self._followed.model, wanted["refreshed"])
        fixed = self._logprobs(self._base.model, wanted["fixed"]) if self._base is not None else {}
        for kind, temperature, aggregation, sequence in missing:
            rows = fixed if kind == "fixed" else logprobs
            score = aggregate_logprobs(rows[temperature, sequence], aggregation)
            self._remembered[kind].put(sequence, temperature, aggregation, score)
            baselines[kind, temperature, aggregation, sequence] = score
        return logprobs, baselines

    def _logprobs(self, model: PreTrainedModel, wanted: _Wanted) -> Logprobs:
        logprobs: Logprobs = {}
        for temperature, unique in wanted.items():
            rows = token_logprobs(
                model, list(unique), temperature=temperature, max_tokens=self.settings.max_tokens
            )
            logprobs |= {(temperature, sequence): row for sequence, row in zip(unique, rows, strict=True)}
        return logprobs

    def _result(self, job: Job, prepared: Prepared, logprobs: Logprobs, baselines: _Baselines) -> Result:
        options, version = job.options, self._followed.version
        scores = [
            baselines[options.baseline, options.temperature, options.aggregation, candidate.baseline]
            if candidate.baseline is not None
            else None
            for candidate in prepared.candidates
        ]
        base = version if self._base is None or options.baseline == "refreshed" else self._base.version
        stamp = Stamp(model_version=version, reference_version=base if options.debias else None)
        return result(job.sample, options, prepared, logprobs, scores, stamp)
