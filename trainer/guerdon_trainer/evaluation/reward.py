"""Several rewards on the same labelled responses, side by side."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from guerdon.client import AsyncClient
from guerdon.types import Options, Result, Sample, Status
from guerdon_trainer.config import FailureConfig
from guerdon_trainer.evaluation.asking import Addresses, connected, greet, not_scored, side_by_side
from guerdon_trainer.evaluation.estimates import Estimate
from guerdon_trainer.evaluation.labelled import Labelled
from guerdon_trainer.evaluation.quality import Quality, auc_difference, quality
from guerdon_trainer.service_calls import ServiceCalls
from guerdon_trainer.service_stats import FailureBudget, ServiceStats

#: Samples of one request, and requests to one service at the same time.
_BATCH = 32
_IN_FLIGHT = 4


@dataclass(frozen=True)
class Comparison:
    """One service: counts of statuses, its quality where it gave values, and its ROC-AUC less that of the first.

    The difference is taken over the rows where both gave a value.
    """

    service: str
    statuses: dict[str, int]
    quality: Quality | None
    auc_difference: Estimate | None


async def score_all(
    rows: Sequence[Labelled],
    addresses: Addresses,
    options: Mapping[str, Options],
    failures: FailureConfig,
    progress: Callable[[int], None],
) -> dict[str, list[Result]]:
    """One result per row of every service, in the order of the rows; `progress` is told how many more there are.

    Raises:
        FailureBudgetExceeded: too many of the latest rows got no value.
        GuerdonError: a service does not answer at all, or refuses the request.
    """
    async with connected(addresses, failures) as clients:
        await greet(clients)
        return {
            name: await _score(name, client, rows, options.get(name, {}), failures, progress)
            for name, client in clients.items()
        }


async def _score(
    name: str,
    client: AsyncClient,
    rows: Sequence[Labelled],
    options: Options,
    failures: FailureConfig,
    progress: Callable[[int], None],
) -> list[Result]:
    stats = ServiceStats()
    calls, budget = ServiceCalls(failures, stats), FailureBudget(failures, stats)
    found: dict[int, list[Result]] = {}

    async def call(samples: list[Sample], attempt: int) -> list[Result]:
        return await client.score(samples, options=options)

    async def batch(start: int) -> None:
        samples = [row.sample for row in rows[start : start + _BATCH]]
        results = await calls.each(name, samples, call, not_scored)
        found[start] = results
        progress(len(results))
        budget.add([result.value is not None for result in results])

    await side_by_side(range(0, len(rows), _BATCH), batch, _IN_FLIGHT)
    return [result for start in sorted(found) for result in found[start]]


def compare(
    rows: Sequence[Labelled],
    results: Mapping[str, Sequence[Result]],
    thresholds: Mapping[str, float],
    confidence: float,
) -> list[Comparison]:
    """The quality of every service, in the order of `results`."""
    first = next(iter(results.values()))
    return [
        Comparison(
            service=name,
            statuses=dict(Counter(result.status.value for result in found)),
            quality=_quality(rows, found, thresholds[name], confidence),
            auc_difference=None if found is first else _difference(rows, found, first, confidence),
        )
        for name, found in results.items()
    ]


def _quality(
    rows: Sequence[Labelled], results: Sequence[Result], threshold: float, confidence: float
) -> Quality | None:
    pairs = [
        (row, result.value) for row, result in zip(rows, results, strict=True) if result.value is not None
    ]
    if not pairs:
        return None
    return quality(
        [value for _, value in pairs],
        [row.right for row, _ in pairs],
        [row.group for row, _ in pairs],
        threshold=threshold,
        confidence=confidence,
    )


def _difference(
    rows: Sequence[Labelled], results: Sequence[Result], first: Sequence[Result], confidence: float
) -> Estimate | None:
    both = [
        (row, one.value, other.value)
        for row, one, other in zip(rows, results, first, strict=True)
        if one.value is not None and other.value is not None
    ]
    if not both:
        return None
    return auc_difference(
        [one for _, one, _ in both],
        [other for _, _, other in both],
        [row.right for row, _, _ in both],
        [row.group for row, _, _ in both],
        confidence,
    )


def table(comparisons: Sequence[Comparison], confidence: float) -> Table:
    """The services side by side for a terminal; intervals in brackets."""
    shown = Table(
        title=f"rewards against labels, {confidence:.0%} intervals", title_justify="left", title_style="bold"
    )
    shown.add_column("", no_wrap=True)
    for comparison in comparisons:
        shown.add_column(comparison.service, justify="right", no_wrap=True)
    for name, read in _SHOWN.items():
        shown.add_row(name, *(read(comparison) for comparison in comparisons))
    return shown


def scored_line(row: Labelled, results: Mapping[str, Result]) -> dict[str, Any]:
    """One row with what every service said of it."""
    said = {
        name: {"status": result.status.value, "value": result.value, "reason": result.reason}
        for name, result in results.items()
    }
    return {"row": row.sample.id, "group": row.sample.group, "label": row.right, "scores": said}


def _of(read: Callable[[Quality], Estimate | None], form: str) -> Callable[[Comparison], str]:
    def shown(comparison: Comparison) -> str:
        estimate = None if comparison.quality is None else read(comparison.quality)
        return _estimate(estimate, form)

    return shown


def _estimate(estimate: Estimate | None, form: str) -> str:
    if estimate is None:
        return "-"
    return f"{estimate.value:{form}} [{estimate.low:{form}}, {estimate.high:{form}}]"


def _failed(comparison: Comparison) -> str:
    others = {status: count for status, count in comparison.statuses.items() if status != Status.OK}
    return ", ".join(f"{count} {status}" for status, count in sorted(others.items())) or "0"


def _calibration(comparison: Comparison) -> str:
    error = None if comparison.quality is None else comparison.quality.calibration_error
    return "-" if error is None else f"{error:.3f}"


_SHOWN: dict[str, Callable[[Comparison], str]] = {
    "rows with a value": lambda one: "0" if one.quality is None else f"{one.quality.rows:,}",
    "of them right": lambda one: "0" if one.quality is None else f"{one.quality.right:,}",
    "without a value": _failed,
    "ROC-AUC": _of(lambda found: found.auc, ".3f"),
    "ROC-AUC less the first": lambda one: _estimate(one.auc_difference, "+.3f"),
    "accuracy": _of(lambda found: found.accuracy, ".1%"),
    "false positive rate": _of(lambda found: found.false_positives, ".1%"),
    "false negative rate": _of(lambda found: found.false_negatives, ".1%"),
    "calibration error": _calibration,
}
