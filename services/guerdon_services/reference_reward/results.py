"""From log-probs to the result of a sample: each reference's value, and what they are worth together."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from guerdon.functional import aggregate_logprobs, debiased
from guerdon.types import ReferenceVerdict, Result, Sample, Span, Status, Verdict
from guerdon_services.reference_reward.candidates import Candidate, Place, Prepared
from guerdon_services.reference_reward.settings import ReferenceRewardOptions
from guerdon_services.scoring import ScoredSequence

#: Log-probs (nats) of the scored tokens of a sequence under a temperature.
Logprobs = dict[tuple[float, ScoredSequence], Tensor]


@dataclass(frozen=True)
class Stamp:
    """Whose scores they are."""

    model_version: int
    reference_version: int | None


def result(
    sample: Sample,
    options: ReferenceRewardOptions,
    prepared: Prepared,
    logprobs: Logprobs,
    baselines: Sequence[float | None],
    stamp: Stamp,
) -> Result:
    """The result of one sample; `baselines` are those of its references, in order."""
    verdicts = [
        _verdict(options, candidate, logprobs, baseline)
        for candidate, baseline in zip(prepared.candidates, baselines, strict=True)
    ]
    values = [verdict.value for verdict in verdicts]
    best = max(range(len(values)), key=values.__getitem__)
    place = prepared.candidates[best].place
    return Result(
        id=sample.id,
        status=Status.OK,
        value=values[best] if options.references == "max" else sum(values) / len(values),
        reason=prepared.no_answer or _reason(sample, options, place),
        verdict=Verdict(
            extracted=None if place is None else verdicts[best].reference,
            method=_method(options),
            span=verdicts[best].span,
            references=verdicts,
        ),
        token_rewards=[] if place is None else _token_rewards(options, logprobs, place),
        token_ids=[] if place is None else list(place.sequence.response_ids),
        model_version=stamp.model_version,
        reference_version=stamp.reference_version,
        temperature=options.temperature,
    )


def _verdict(
    options: ReferenceRewardOptions, candidate: Candidate, logprobs: Logprobs, baseline: float | None
) -> ReferenceVerdict:
    place, score = candidate.place, 0.0
    if place is not None:
        score = aggregate_logprobs(logprobs[options.temperature, place.sequence], options.aggregation)
    if options.shaping is not None:
        value = options.shaping(score - (baseline or 0.0))
    else:
        value = score if baseline is None else debiased(score, baseline)
    return ReferenceVerdict(
        reference=candidate.reference,
        value=value,
        score=score,
        baseline=baseline,
        span=None if place is None else _span(place),
    )


def _span(place: Place) -> Span:
    return Span(
        start=place.text.start,
        end=place.text.end,
        token_start=place.tokens.first,
        token_end=place.tokens.last,
        sampled_tokens=place.tokens.sampled,
    )


def _token_rewards(options: ReferenceRewardOptions, logprobs: Logprobs, place: Place) -> list[float]:
    logps_T = logprobs[options.temperature, place.sequence]
    match options.token_rewards:
        case "logprobs":
            return logps_T.tolist()
        case "probabilities":
            return logps_T.exp().tolist()
        case "none":
            return []


def _method(options: ReferenceRewardOptions) -> str:
    parts: list[str] = [options.template, options.aggregation]
    if options.debias:
        parts.append("debiased" if options.baseline == "refreshed" else "debiased (fixed)")
    if options.shaping is not None:
        parts.append(options.shaping.kind)
    return " ".join(parts)


def _reason(sample: Sample, options: ReferenceRewardOptions, place: Place | None) -> str:
    """What a reader should know beyond the value: which reference it is, and what was tokenised anew."""
    parts: list[str] = []
    count = len(sample.references)
    if count > 1 and options.references == "max":
        parts.append(f"the best of {count} references")
    elif count > 1:
        parts.append(f"the mean of {count} references, of which the best one's span and tokens are given")
    if sample.response_token_ids and place is not None:
        parts.append(f"{place.tokens.sampled} sampled tokens before the reference kept as sampled")
    return "; ".join(parts)
