"""How well a reward tells right responses from wrong ones: ROC-AUC, error rates, calibration.

Shapes: N rows, B resamples, G groups of rows that are drawn together. Every measure takes weights, how often each row
was drawn; the measure itself is the one with all weights 1.

`roc_auc` is the measure of RLPR (Yu et al. 2025), which compares its probability reward with verifiers by it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from guerdon_trainer.evaluation.estimates import Estimate, Floats, bootstrap, percentiles, wilson

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

#: Bins of the reliability table, of equal width.
BINS = 10


@dataclass(frozen=True)
class Bin:
    """The rows whose value lies in (low, high], and in the first bin also at low."""

    low: float
    high: float
    count: int
    mean_value: float
    share_right: Estimate


@dataclass(frozen=True)
class Quality:
    """A reward on labelled rows.

    `false_positives` is the share of wrong responses that are called right, `false_negatives` that of right ones called
    wrong. Both, and `auc`, are None without such rows; `calibration_error` and `bins` are there for values in [0, 1].
    """

    rows: int
    right: int
    auc: Estimate | None
    accuracy: Estimate
    false_positives: Estimate | None
    false_negatives: Estimate | None
    calibration_error: float | None
    bins: list[Bin]


def quality(
    values_N: Sequence[float],
    labels_N: Sequence[bool],
    groups_N: Sequence[str],
    *,
    threshold: float,
    confidence: float,
) -> Quality:
    """Every measure with its interval. Values from `threshold` on call a response right.

    Rows of one group (the responses to one prompt) resemble each other: where there are such, every interval is a
    bootstrap over groups. Otherwise rates have Wilson's interval, and ROC-AUC a bootstrap over rows.

    Raises:
        ValueError: there are no rows.
    """
    if not len(values_N):
        raise ValueError("no row has a value")
    values, labels = np.asarray(values_N, dtype=np.float64), np.asarray(labels_N, dtype=np.bool_)
    group_N = _numbered(groups_N)
    said = values >= threshold
    probabilities = bool(values.min() >= 0 and values.max() <= 1)
    return Quality(
        rows=len(values),
        right=int(labels.sum()),
        auc=_auc_estimate(values, labels, group_N, confidence),
        accuracy=_rate(said == labels, group_N, confidence),
        false_positives=None if labels.all() else _rate(said[~labels], group_N[~labels], confidence),
        false_negatives=_rate(~said[labels], group_N[labels], confidence) if labels.any() else None,
        calibration_error=calibration_error(values, labels) if probabilities else None,
        bins=reliability(values, labels, confidence) if probabilities else [],
    )


def roc_auc(values_N: Floats, labels_N: Bools, weights_BN: Floats) -> Floats:
    """The chance that a right response has the higher value of a right and a wrong one, ties counting half; [B].

    nan where a resample has no right or no wrong row. Equals the Mann-Whitney statistic over the number of pairs.
    """
    order = np.argsort(values_N, kind="stable")
    # The first row of each run of equal values.
    starts = np.flatnonzero(np.diff(values_N[order], prepend=-np.inf))
    sorted_BN, right_N = weights_BN[:, order], labels_N[order]
    right_BT = np.add.reduceat(np.where(right_N, sorted_BN, 0.0), starts, axis=1)
    wrong_BT = np.add.reduceat(np.where(right_N, 0.0, sorted_BN), starts, axis=1)
    below_BT = np.cumsum(wrong_BT, axis=1) - wrong_BT
    pairs_B = right_BT.sum(1) * wrong_BT.sum(1)
    won_B = (right_BT * (below_BT + wrong_BT / 2)).sum(1)
    return np.divide(won_B, pairs_B, out=np.full_like(won_B, np.nan), where=pairs_B > 0)


def calibration_error(values_N: Floats, labels_N: Bools) -> float:
    """Expected calibration error: |share of right rows - mean value| of each bin, weighted by its rows.

    Guo et al. 2017, "On Calibration of Modern Neural Networks", equation 3.
    """
    bin_N = _bins(values_N)
    gaps = np.bincount(bin_N, weights=labels_N - values_N, minlength=BINS)
    return float(np.abs(gaps).sum() / len(values_N))


def reliability(values_N: Floats, labels_N: Bools, confidence: float) -> list[Bin]:
    """The bins that hold rows, with the share of right ones in each."""
    bin_N = _bins(values_N)
    found: list[Bin] = []
    for number in range(BINS):
        inside = bin_N == number
        count = int(inside.sum())
        if count:
            share = wilson(int(labels_N[inside].sum()), count, confidence)
            mean = float(values_N[inside].mean())
            found.append(Bin(number / BINS, (number + 1) / BINS, count, mean, share))
    return found


def auc_difference(
    first_N: Sequence[float],
    second_N: Sequence[float],
    labels_N: Sequence[bool],
    groups_N: Sequence[str],
    confidence: float,
) -> Estimate | None:
    """ROC-AUC of the first reward less that of the second, on the same rows, resampled together."""
    first, second = np.asarray(first_N, dtype=np.float64), np.asarray(second_N, dtype=np.float64)
    labels = np.asarray(labels_N, dtype=np.bool_)
    if labels.all() or not labels.any():
        return None
    group_N = _numbered(groups_N)

    def difference(weights_BN: Floats) -> Floats:
        return roc_auc(first, labels, weights_BN) - roc_auc(second, labels, weights_BN)

    return _bootstrapped(difference, group_N, confidence)


def _auc_estimate(values: Floats, labels: Bools, group_N: Ints, confidence: float) -> Estimate | None:
    if labels.all() or not labels.any():
        return None
    return _bootstrapped(lambda weights_BN: roc_auc(values, labels, weights_BN), group_N, confidence)


def _rate(event_N: Bools, group_N: Ints, confidence: float) -> Estimate:
    """The share of rows with the event."""
    count, happened = len(event_N), int(event_N.sum())
    groups = len(set(group_N.tolist()))
    if groups == count:
        return wilson(happened, count, confidence)
    if happened in (0, count):
        # No spread for the bootstrap to see: as if each group were one row.
        bounds = wilson(groups if happened else 0, groups, confidence)
        return Estimate(happened / count, bounds.low, bounds.high, "wilson", count)
    return _bootstrapped(lambda weights_BN: weights_BN @ event_N / weights_BN.sum(1), group_N, confidence)


def _bootstrapped(statistic: Callable[[Floats], Floats], group_N: Ints, confidence: float) -> Estimate:
    """A statistic of weighted rows, with the interval of drawing groups with replacement."""
    used, rows = np.unique(group_N, return_inverse=True)
    value = float(statistic(np.ones((1, len(rows))))[0])
    drawn = bootstrap(len(used), lambda weights_BG: statistic(weights_BG[:, rows]), width=len(rows))
    low, high = percentiles(drawn, confidence)
    return Estimate(value, low, high, "bootstrap", len(rows))


def _numbered(groups: Sequence[str]) -> Ints:
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return np.asarray([numbers[group] for group in groups], dtype=np.int64)


def _bins(values_N: Floats) -> Ints:
    """The number of each value's bin; a value on an edge lies in the lower one."""
    edges = np.arange(1, BINS) / BINS
    return np.searchsorted(edges, values_N, side="left").astype(np.int64)
