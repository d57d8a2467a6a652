"""Accuracy and pass@k of repeated samples, with confidence intervals over questions.

Shapes: Q questions, B resamples. Two intervals are in use:

- Wilson's score interval where each question has one answer, right or wrong: the answers are independent trials.
- The bootstrap over questions everywhere else: questions are drawn with replacement, each with all of its answers, so
  that answers to one question, which resemble each other, do not count as independent. Where all questions agree the
  bootstrap sees no spread at all; then Wilson's interval over the questions stands in.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Resamples of every bootstrap, and the seed they are drawn with: the same data give the same interval.
RESAMPLES = 4000
SEED = 0
#: Numbers that one block of resamples may hold.
_BLOCK = 2_000_000


@dataclass(frozen=True)
class Estimate:
    """A number with its confidence interval; `count` questions or rows are behind it."""

    value: float
    low: float
    high: float
    method: Literal["wilson", "bootstrap"]
    count: int


def accuracy(right: Sequence[int], judged: Sequence[int], confidence: float = 0.95) -> Estimate | None:
    """The mean over questions of the share of right answers (avg@k); None without a judged answer.

    `right` of `judged` answers of each question; questions without a judged answer are left out.
    """
    pairs = [(good, all) for good, all in zip(right, judged, strict=True) if all]
    if not pairs:
        return None
    if all(count == 1 for _, count in pairs):
        return wilson(sum(good for good, _ in pairs), len(pairs), confidence)
    return mean_over_questions([good / count for good, count in pairs], confidence)


def pass_at(right: Sequence[int], judged: Sequence[int], k: int, confidence: float = 0.95) -> Estimate | None:
    """The chance that one of k answers is right, over the questions with k judged answers or more; None without any.

    Unbiased for each question: 1 - C(n - c, k) / C(n, k). Chen et al. 2021, "Evaluating Large Language Models Trained
    on Code", equation 1.
    """
    chances = [unbiased(good, count, k) for good, count in zip(right, judged, strict=True) if count >= k]
    return mean_over_questions(chances, confidence) if chances else None


def unbiased(right: int, judged: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k), exact in integers up to the division."""
    return 1.0 - math.comb(judged - right, k) / math.comb(judged, k)


def mean_over_questions(values_Q: Sequence[float], confidence: float) -> Estimate:
    """The mean of one value in [0, 1] per question."""
    values = np.asarray(values_Q, dtype=np.float64)
    mean = float(values.mean())
    if len(set(values_Q)) == 1:
        low, high = _wilson(mean * len(values), len(values), confidence)
        return Estimate(mean, low, high, "wilson", len(values))
    means_B = bootstrap(len(values), lambda weights_BQ: weights_BQ @ values / len(values))
    low, high = percentiles(means_B, confidence)
    return Estimate(mean, low, high, "bootstrap", len(values))


def wilson(right: int, count: int, confidence: float) -> Estimate:
    """A share of independent trials. E. B. Wilson 1927, "Probable inference"."""
    low, high = _wilson(right, count, confidence)
    return Estimate(right / count, low, high, "wilson", count)


def bootstrap(count: int, statistic: Callable[[Floats], Floats], *, width: int = 0) -> Floats:
    """The statistic on `RESAMPLES` resamples of `count` items.

    `statistic` is given blocks of weights [B, count], how often each item was drawn, and returns [B] numbers; `width`
    is how many numbers it makes of one row of weights where that is more than `count`.
    """
    generator = np.random.default_rng(SEED)
    at_once = max(1, min(RESAMPLES, _BLOCK // max(count, width)))
    found: list[Floats] = []
    for start in range(0, RESAMPLES, at_once):
        size = min(at_once, RESAMPLES - start)
        drawn = generator.integers(0, count, size=(size, count))
        drawn += count * np.arange(size)[:, None]
        weights = np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count)
        found.append(statistic(weights.astype(np.float64)))
    return np.concatenate(found)


def percentiles(values_B: Floats, confidence: float) -> tuple[float, float]:
    """The middle `confidence` of resampled values; those that are nan, where the statistic has none, are left out."""
    outside = 50 * (1 - confidence)
    low, high = np.nanpercentile(values_B, [outside, 100 - outside])
    return float(low), float(high)


def _wilson(right: float, count: int, confidence: float) -> tuple[float, float]:
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = right / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    # At 0 and 1 the bounds are exact; rounding must not put them outside, nor the value outside of them.
    return (0.0 if right == 0 else max(0.0, middle - half)), (
        1.0 if right == count else min(1.0, middle + half)
    )
