"""Measures of a reward against hand-computed values and those of scikit-learn 1.9.1 (as constants)."""

import numpy as np
import pytest

from guerdon_trainer.evaluation.quality import (
    auc_difference,
    calibration_error,
    quality,
    reliability,
    roc_auc,
)

VALUES = [
    0.05,
    0.1,
    0.1,
    0.2,
    0.2,
    0.35,
    0.4,
    0.4,
    0.5,
    0.55,
    0.62,
    0.7,
    0.7,
    0.7,
    0.81,
    0.88,
    0.9,
    0.95,
    1.0,
    0.0,
]
LABELS = [bool(label) for label in (0, 0, 1, 0, 0, 1, 0, 1, 0, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0)]
WEIGHTS = [1, 2, 0, 3, 1, 1, 0, 2, 1, 1, 4, 1, 0, 1, 1, 2, 1, 1, 0, 1]
ALONE = [str(number) for number in range(len(VALUES))]


def auc(values: list[float], labels: list[bool], weights: list[float] | None = None) -> float:
    drawn = np.asarray([weights or [1.0] * len(values)], dtype=np.float64)
    return float(roc_auc(np.asarray(values, dtype=np.float64), np.asarray(labels), drawn)[0])


def test_roc_auc_by_hand() -> None:
    assert auc([1, 2, 3, 4], [False, False, True, True]) == 1.0
    assert auc([1, 2, 3, 4], [True, True, False, False]) == 0.0
    assert auc([5, 5, 5], [False, True, True]) == 0.5
    # Of the four pairs: 3 > 1, 3 > 2, 2 > 1, and 2 against 2 is half.
    assert auc([1, 2, 2, 3], [False, False, True, True]) == 3.5 / 4
    assert np.isnan(auc([1, 2], [True, True]))


def test_roc_auc_equals_scikit_learn() -> None:
    assert auc(VALUES, LABELS) == pytest.approx(0.7777777777777778, abs=1e-15)
    assert auc(VALUES, LABELS, [float(weight) for weight in WEIGHTS]) == pytest.approx(0.78125, abs=1e-15)
    generator = np.random.default_rng(5)
    values = np.round(generator.random(500), 2)
    labels = generator.random(500) < values
    assert auc(values.tolist(), labels.tolist()) == pytest.approx(0.8182532555006736, abs=1e-15)


def test_a_weight_is_a_row_that_often() -> None:
    rows = [row for row, weight in enumerate(WEIGHTS) for _ in range(weight)]
    repeated = auc([VALUES[row] for row in rows], [LABELS[row] for row in rows])
    assert auc(VALUES, LABELS, [float(weight) for weight in WEIGHTS]) == pytest.approx(repeated, abs=1e-15)


def test_rates_at_a_threshold_equal_the_confusion_matrix() -> None:
    found = quality(VALUES, LABELS, ALONE, threshold=0.5, confidence=0.95)
    # scikit-learn: 6 true and 3 false negatives' row, 3 and 8 in the other.
    assert found.false_positives is not None
    assert found.false_negatives is not None
    assert (found.rows, found.right) == (20, 11)
    assert found.accuracy.value == pytest.approx(14 / 20)
    assert (found.false_positives.value, found.false_positives.count) == (pytest.approx(3 / 9), 9)
    assert (found.false_negatives.value, found.false_negatives.count) == (pytest.approx(3 / 11), 11)
    assert {found.accuracy.method, found.false_positives.method} == {"wilson"}


def test_the_reliability_table_equals_scikit_learns() -> None:
    bins = reliability(np.asarray(VALUES), np.asarray(LABELS), 0.95)
    right = [0.25, 0.0, 0.6666666666666666, 0.0, 1.0, 0.75, 0.6666666666666666, 1.0]
    values = [0.0625, 0.2, 0.3833333333333333, 0.5, 0.55, 0.6799999999999999, 0.8633333333333333, 0.975]
    assert [found.share_right.value for found in bins] == pytest.approx(right)
    assert [found.mean_value for found in bins] == pytest.approx(values)
    assert [found.count for found in bins] == [4, 2, 3, 1, 1, 4, 3, 2]
    assert [(found.low, found.high) for found in bins][:2] == [(0.0, 0.1), (0.1, 0.2)]


def test_calibration_error_by_hand() -> None:
    assert calibration_error(np.asarray(VALUES), np.asarray(LABELS)) == pytest.approx(0.1935)
    # Two bins of two: |0.5 - 0.25| and |1 - 0.85|, each half of the rows.
    four = calibration_error(np.asarray([0.25, 0.25, 0.85, 0.85]), np.asarray([True, False, True, True]))
    assert four == pytest.approx((0.25 + 0.15) / 2)
    assert calibration_error(np.asarray([0.0, 1.0]), np.asarray([False, True])) == 0.0


def test_values_that_are_no_probabilities_have_no_calibration() -> None:
    found = quality([-0.5, 0.2, 3.0], [False, True, True], ["a", "b", "c"], threshold=0.0, confidence=0.95)
    assert (found.calibration_error, found.bins) == (None, [])
    assert found.auc is not None
    assert found.auc.value == 1.0


def test_labels_of_one_kind_have_neither_auc_nor_both_rates() -> None:
    found = quality([0.2, 0.9], [True, True], ["a", "b"], threshold=0.5, confidence=0.95)
    assert (found.auc, found.false_positives) == (None, None)
    assert found.false_negatives is not None
    assert found.false_negatives.value == 0.5
    with pytest.raises(ValueError, match="no row has a value"):
        quality([], [], [], threshold=0.5, confidence=0.95)


def test_rows_of_one_prompt_are_drawn_together() -> None:
    """Four copies of every row say nothing new: the interval must stay as wide as with one."""
    once = quality(VALUES, LABELS, ALONE, threshold=0.5, confidence=0.95)
    copied = quality(VALUES * 4, LABELS * 4, ALONE * 4, threshold=0.5, confidence=0.95)
    naive = quality(VALUES * 4, LABELS * 4, [str(n) for n in range(80)], threshold=0.5, confidence=0.95)
    assert once.auc is not None
    assert copied.auc is not None
    assert naive.auc is not None
    assert (copied.auc.low, copied.auc.high) == pytest.approx((once.auc.low, once.auc.high))
    assert naive.auc.high - naive.auc.low < 0.6 * (once.auc.high - once.auc.low)
    assert copied.accuracy.method == "bootstrap"
    assert copied.accuracy.high - copied.accuracy.low == pytest.approx(
        once.accuracy.high - once.accuracy.low, abs=0.06
    )


def test_a_difference_of_two_rewards_is_taken_over_the_same_draws() -> None:
    same = auc_difference(VALUES, VALUES, LABELS, ALONE, 0.95)
    assert same is not None
    assert (same.value, same.low, same.high) == (0, 0, 0)
    oracle = auc_difference([float(label) for label in LABELS], VALUES, LABELS, ALONE, 0.95)
    assert oracle is not None
    assert oracle.value == pytest.approx(1 - 0.7777777777777778)
    assert 0 < oracle.low < oracle.value < oracle.high
    assert auc_difference([1, 2], [2, 1], [True, True], ["a", "b"], 0.95) is None


def test_the_interval_of_roc_auc_holds_the_truth_about_95_times_of_100() -> None:
    """Values that are normal with means 0 and 1: the true ROC-AUC is Phi(1 / sqrt 2)."""
    truth, generator, inside = 0.7602499389065233, np.random.default_rng(3), 0
    for _ in range(100):
        labels = generator.random(100) < 0.5
        values = generator.normal(size=100) + labels
        rows = [str(n) for n in range(100)]
        found = quality(values.tolist(), labels.tolist(), rows, threshold=0.5, confidence=0.95)
        assert found.auc is not None
        inside += found.auc.low <= truth <= found.auc.high
    assert 89 <= inside <= 99
