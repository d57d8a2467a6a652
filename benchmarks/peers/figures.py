"""Figures from passes: shares over the labels, speed and percentiles over CPU times."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from peers.cases import Case
from peers.runs import NO_REPLY, Outcome, Pass

#: Methods that need no algebra: plain values were compared, or there was no answer to compare.
FAST_METHODS = ("string", "rational", "none")


@dataclass(frozen=True)
class Shares:
    """How often the verdicts meet the labels; whatever is no clear yes counts as a no."""

    cases: int
    accuracy: float
    false_positives: float
    false_negatives: float
    no_reply: int


@dataclass(frozen=True)
class Speed:
    """CPU cost of a verification: the median over the passes of each figure."""

    cases: int
    per_cpu_s: float
    p50_ms: float
    p99_ms: float


def shares(cases: Sequence[Case], outcomes: Sequence[Outcome]) -> Shares:
    """Accuracy over all cases, false positives of the wrong answers, false negatives of the right ones."""
    pairs = list(zip(cases, outcomes, strict=True))
    right = [outcome for case, outcome in pairs if case.right]
    wrong = [outcome for case, outcome in pairs if not case.right]
    missed = sum(not outcome.right for outcome in right)
    taken = sum(outcome.right for outcome in wrong)
    return Shares(
        cases=len(pairs),
        accuracy=1 - (missed + taken) / len(pairs),
        false_positives=taken / len(wrong) if wrong else 0.0,
        false_negatives=missed / len(right) if right else 0.0,
        no_reply=sum(outcome.status in NO_REPLY for outcome in outcomes),
    )


def speed(passes: Iterable[Pass], chosen: Sequence[int]) -> Speed:
    """Figures over the cases at the chosen positions."""
    costs = [sorted(each.outcomes[index].cpu_ms for index in chosen) for each in passes]
    return Speed(
        cases=len(chosen),
        per_cpu_s=statistics.median(_per_cpu_s(cost) for cost in costs),
        p50_ms=statistics.median(_percentile(cost, 0.50) for cost in costs),
        p99_ms=statistics.median(_percentile(cost, 0.99) for cost in costs),
    )


def ratio(passes: Sequence[Pass], others: Sequence[Pass], chosen: Sequence[int]) -> float:
    """How many times as many verifications per CPU-second as the other side: the median over pairs of passes."""
    return statistics.median(
        _total(other, chosen) / _total(one, chosen) for one, other in zip(passes, others, strict=True)
    )


def needs_algebra(outcome: Outcome) -> bool:
    """Whether our fast path left the case open, as the verdict's method tells; one without a reply counts."""
    return outcome.status in NO_REPLY or (outcome.status == "ok" and outcome.method not in FAST_METHODS)


def positions(cases: Sequence[Case], keep: Callable[[Case], bool]) -> list[int]:
    """Where the cases stand that are to be kept."""
    return [index for index, case in enumerate(cases) if keep(case)]


def _total(one: Pass, chosen: Sequence[int]) -> float:
    return sum(one.outcomes[index].cpu_ms for index in chosen)


def _per_cpu_s(cost_ms: Sequence[float]) -> float:
    return 1000 * len(cost_ms) / sum(cost_ms)


def _percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
