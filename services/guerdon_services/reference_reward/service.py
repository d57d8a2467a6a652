"""The reference reward service: how probable a right answer is after the response's own reasoning.

How it differs from the released code of RLPR and VeriFree is listed in docs/papers/.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from guerdon.functional import aggregate_logprobs, debiased
from guerdon.types import Result, Sample, Span, Status, Verdict, failed
from guerdon_services import models
from guerdon_services.reference_reward import splice
from guerdon_services.reference_reward.settings import ReferenceRewardOptions, ReferenceRewardSettings
from guerdon_services.reference_reward.splice import NoAnswer, Splice, Tokenised
from guerdon_services.runtime.scorer import RELEASE, Batching, ScoreJob, Scorer, Unscorable
from guerdon_services.scoring import ScoredSequence, token_logprobs

Job = ScoreJob[ReferenceRewardOptions]
#: Equal sequences under one temperature are computed once: the baseline of a group, for instance.
Logprobs = dict[tuple[float, ScoredSequence], Tensor]


@dataclass(frozen=True)
class Candidate:
    """One reference of a sample, ready to be scored."""

    reference: str
    text: Splice
    tokens: Tokenised
    sequence: ScoredSequence
    baseline: ScoredSequence | None


class ReferenceRewardScorer(Scorer[ReferenceRewardSettings, ReferenceRewardOptions]):
    """`value` is the best reference's; its token log-probs are the token rewards."""

    name: ClassVar[str] = "reference_reward"
    version: ClassVar[str] = RELEASE
    settings_type = ReferenceRewardSettings
    options_type = ReferenceRewardOptions

    def __init__(self, settings: ReferenceRewardSettings) -> None:
        super().__init__(settings)
        self.batching = Batching(max_items=64, max_tokens=settings.max_tokens, concurrency=1)

    def open(self) -> None:
        """Load the model."""
        settings = self.settings
        models.set_threads(settings.threads)
        self._followed = models.FollowedModel(settings.model, settings.weights_dir, device=settings.device)
        splice.check_tokenizer(self._followed.tokenizer)

    @property
    def model_version(self) -> int | None:
        """The version of the weights that answer now."""
        return self._followed.version

    def details(self) -> dict[str, str]:
        """Where the model comes from."""
        settings = self.settings
        return {"model": str(settings.model), "weights_dir": str(settings.weights_dir or "")}

    def tokens(self, job: Job) -> int:
        """Prompt and response once per reference; estimated where only text is given."""
        return models.approximate_tokens(job.sample) * max(1, len(job.sample.references))

    def score(self, batch: Sequence[Job]) -> list[Result]:
        """One result per job; samples at fault are `invalid_input`, their neighbours unharmed."""
        wanted = max((job.min_version or 0 for job in batch), default=0)
        self._followed.wait_for(wanted, self.settings.version_wait_s)
        prepared = [self._prepare(job) for job in batch]
        logprobs = self._logprobs(batch, prepared)
        return [
            candidates if isinstance(candidates, Result) else self._best(job, candidates, logprobs)
            for job, candidates in zip(batch, prepared, strict=True)
        ]

    def _prepare(self, job: Job) -> list[Candidate] | Result:
        version = self._followed.version
        if job.min_version is not None and job.min_version > version:
            reason = f"version {job.min_version} is not published, the latest is {version}"
            return failed(Status.UNAVAILABLE, reason, id=job.sample.id)
        try:
            return self._candidates(job)
        except Unscorable as error:
            return failed(Status.INVALID_INPUT, str(error), id=job.sample.id)
        except NoAnswer as error:
            return self._without_answer(job, str(error))

    def _candidates(self, job: Job) -> list[Candidate]:
        """One candidate per reference.

        Raises:
            Unscorable: a field of the sample is missing or wrong.
            NoAnswer: the response has no place for an answer.
        """
        sample, model = job.sample, self._followed.language_model
        _check_references(sample)
        prompt = models.encode_prompt(
            model.tokenizer,
            sample.prompt,
            sample.prompt_token_ids,
            chat_template=self.settings.chat_template,
            context=model.context_length,
        )
        models.check_ids(model, "prompt_token_ids", prompt)
        models.check_ids(model, "response_token_ids", sample.response_token_ids)
        if sample.response_token_ids:
            response, sampled = splice.response_text(model.tokenizer, sample.response_token_ids)
        elif sample.response is not None:
            response, sampled = sample.response, ()
            models.check_characters(model.tokenizer, model.context_length, "response", len(response))
        else:
            raise Unscorable("response: missing; give response or response_token_ids")
        for index, reference in enumerate(sample.references):
            models.check_characters(
                model.tokenizer, model.context_length, f"references[{index}]", len(reference)
            )
        return [
            self._candidate(job.options, tuple(prompt), response, sampled, index, reference)
            for index, reference in enumerate(sample.references)
        ]

    def _candidate(
        self,
        options: ReferenceRewardOptions,
        prompt: tuple[int, ...],
        response: str,
        sampled: tuple[int, ...],
        index: int,
        reference: str,
    ) -> Candidate:
        tokenizer = self._followed.tokenizer
        if options.template == "verifree":
            text = splice.verifree(response, reference)
            without = splice.verifree_without_reasoning(reference)
        else:
            end = str(tokenizer.eos_token or "")
            text = splice.rlpr(response, reference, require_think=options.require_think, end=end)
            without = splice.rlpr_without_reasoning(reference)
        tokens = splice.tokenise(tokenizer, text, sampled)
        sequence = self._sequence(prompt, tokens, index)
        baseline = (
            self._sequence(prompt, splice.tokenise(tokenizer, without), index) if options.debias else None
        )
        return Candidate(reference, text, tokens, sequence, baseline)

    def _sequence(self, prompt: tuple[int, ...], tokens: Tokenised, index: int) -> ScoredSequence:
        """The scored tokens and all before them: what follows cannot change a causal model's mind."""
        if tokens.first == tokens.last:
            raise Unscorable(f"references[{index}]: the tokenizer makes no token of it")
        model = self._followed.language_model
        models.check_ids(model, f"references[{index}]", tokens.ids[: tokens.last])
        models.check_length(model, "response", len(prompt), tokens.last)
        return ScoredSequence(prompt + tokens.ids[: tokens.first], tokens.ids[tokens.first : tokens.last])

    def _logprobs(self, batch: Sequence[Job], prepared: Sequence[list[Candidate] | Result]) -> Logprobs:
        wanted: dict[float, dict[ScoredSequence, None]] = {}
        for job, candidates in zip(batch, prepared, strict=True):
            if not isinstance(candidates, Result):
                unique = wanted.setdefault(job.options.temperature, {})
                unique.update(dict.fromkeys(_sequences(candidates)))
        logprobs: Logprobs = {}
        for temperature, sequences in wanted.items():
            rows = token_logprobs(
                self._followed.model,
                list(sequences),
                temperature=temperature,
                max_tokens=self.settings.max_tokens,
            )
            for sequence, row in zip(sequences, rows, strict=True):
                logprobs[temperature, sequence] = row
        return logprobs

    def _best(self, job: Job, candidates: Sequence[Candidate], logprobs: Logprobs) -> Result:
        options = job.options

        def value(candidate: Candidate) -> float:
            with_reasoning = logprobs[options.temperature, candidate.sequence]
            probability = aggregate_logprobs(with_reasoning, options.aggregation)
            if candidate.baseline is None:
                return probability
            without = logprobs[options.temperature, candidate.baseline]
            return debiased(probability, aggregate_logprobs(without, options.aggregation))

        best = max(candidates, key=value)
        method = f"{options.template} {options.aggregation}" + (" debiased" if options.debias else "")
        span = Span(
            start=best.text.start,
            end=best.text.end,
            token_start=best.tokens.first,
            token_end=best.tokens.last,
        )
        return self._ok(
            job,
            value(best),
            _reason(job.sample, best, len(candidates)),
            verdict=Verdict(extracted=best.reference, method=method, span=span),
            token_rewards=logprobs[options.temperature, best.sequence].tolist(),
            token_ids=best.sequence.response_ids,
        )

    def _without_answer(self, job: Job, why: str) -> Result:
        if job.options.aggregation == "mean_logprob":
            reason = f"response: {why}, and no finite log-probability stands for that"
            return failed(Status.INVALID_INPUT, reason, id=job.sample.id)
        return self._ok(job, 0.0, why)

    def _ok(
        self,
        job: Job,
        value: float,
        reason: str,
        *,
        verdict: Verdict | None = None,
        token_rewards: Sequence[float] = (),
        token_ids: Sequence[int] = (),
    ) -> Result:
        version = self._followed.version
        return Result(
            id=job.sample.id,
            status=Status.OK,
            value=value,
            reason=reason,
            verdict=verdict,
            token_rewards=list(token_rewards),
            token_ids=list(token_ids),
            model_version=version,
            # The baseline is computed by the same weights, never cached from earlier ones.
            reference_version=version if job.options.debias else None,
            temperature=job.options.temperature,
        )


def _sequences(candidates: Iterable[Candidate]) -> Iterable[ScoredSequence]:
    for candidate in candidates:
        yield candidate.sequence
        if candidate.baseline is not None:
            yield candidate.baseline


def _check_references(sample: Sample) -> None:
    if not sample.references:
        raise Unscorable("references: missing; give at least one right answer")
    for index, reference in enumerate(sample.references):
        if not reference.strip():
            raise Unscorable(f"references[{index}]: blank")


def _reason(sample: Sample, best: Candidate, count: int) -> str:
    """What a reader should know beyond the value: which reference it is, and what was tokenised anew."""
    parts: list[str] = []
    if count > 1:
        parts.append(f"the best of {count} references")
    if sample.response_token_ids:
        parts.append(f"{best.tokens.sampled} sampled tokens before the reference kept as sampled")
    return "; ".join(parts)
