"""Accuracy, pass@k and their intervals against hand-computed values, scipy's, and their own promise of coverage."""

from itertools import combinations

import numpy as np
import pytest

from guerdon_trainer.evaluation.estimates import accuracy, mean_over_questions, pass_at, unbiased, wilson


def test_pass_at_k_equals_trying_every_choice_of_k_answers() -> None:
    for n in range(1, 8):
        for right in range(n + 1):
            answers = [True] * right + [False] * (n - right)
            for k in range(1, n + 1):
                tried = [any(choice) for choice in combinations(answers, k)]
                assert unbiased(right, n, k) == pytest.approx(sum(tried) / len(tried), abs=1e-15)


def test_pass_at_k_by_hand() -> None:
    # C(3, 2) / C(5, 2) = 3 / 10, and with 4 of 4 wrong no choice helps.
    estimate = pass_at([2, 0], [5, 4], 2)
    assert estimate is not None
    assert estimate.value == pytest.approx((0.7 + 0) / 2)
    assert (estimate.count, estimate.method) == (2, "bootstrap")


def test_pass_at_k_leaves_out_questions_with_fewer_answers() -> None:
    estimate = pass_at([1, 3, 0], [1, 3, 2], 3)
    assert estimate is not None
    assert (estimate.value, estimate.count) == (1.0, 1)
    assert pass_at([1], [2], 4) is None


# Of scipy 1.17, binomtest(right, count).proportion_ci(confidence, "wilson").
@pytest.mark.parametrize(
    ("right", "count", "confidence", "low", "high"),
    [
        (7, 10, 0.95, 0.39677814746114526, 0.892208732593699),
        (7, 10, 0.90, 0.4416997958698351, 0.8731234160968021),
        (0, 10, 0.95, 0.0, 0.27753279986288926),
        (10, 10, 0.95, 0.7224672001371109, 1.0),
        (180, 400, 0.95, 0.40195222801404185, 0.4989990014193878),
    ],
)
def test_wilson_equals_scipy(right: int, count: int, confidence: float, low: float, high: float) -> None:
    estimate = wilson(right, count, confidence)
    assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=1e-12)


def test_one_answer_per_question_has_wilsons_interval() -> None:
    estimate = accuracy([1, 0, 1, 1, 0, 1, 1, 1, 0, 1, 0], [1] * 10 + [0])
    assert estimate is not None
    assert (estimate.value, estimate.method, estimate.count) == (0.7, "wilson", 10)
    assert estimate.low == pytest.approx(0.39677814746114526)


def test_questions_count_alike_however_many_of_their_answers_were_judged() -> None:
    estimate = accuracy([1, 1], [1, 4])
    assert estimate is not None
    assert estimate.value == pytest.approx((1 + 0.25) / 2)
    assert accuracy([0, 0], [0, 0]) is None


def test_the_same_data_give_the_same_interval() -> None:
    values = [0.0, 0.25, 0.25, 0.5, 1.0]
    first = mean_over_questions(values, 0.95)
    assert first == mean_over_questions(values, 0.95)
    assert 0 <= first.low < first.value < first.high <= 1
    assert mean_over_questions(values, 0.5).low > first.low


def test_without_spread_between_questions_the_interval_is_not_empty() -> None:
    estimate = accuracy([8] * 10, [8] * 10)
    assert estimate is not None
    assert (estimate.value, estimate.high, estimate.method) == (1.0, 1.0, "wilson")
    assert estimate.low == pytest.approx(0.7224672001371109)


@pytest.mark.parametrize(
    ("questions", "answers", "k", "shape"),
    [
        (60, 1, None, (1.0, 3.0)),
        (500, 1, None, (2.0, 1.0)),
        (30, 8, None, (1.0, 2.0)),
        (100, 4, None, (1.0, 1.0)),
        (100, 8, 4, (0.5, 1.0)),
    ],
)
def test_the_95_percent_interval_holds_the_truth_about_95_times_of_100(
    questions: int, answers: int, k: int | None, shape: tuple[float, float]
) -> None:
    """Questions whose difficulty follows a beta distribution; the truth is the mean over that distribution."""
    generator = np.random.default_rng(1)
    difficulty = generator.beta(*shape, size=400_000)
    truth = float(np.mean(difficulty if k is None else 1 - (1 - difficulty) ** k))
    inside, trials = 0, 200
    for _ in range(trials):
        right = generator.binomial(answers, generator.beta(*shape, size=questions)).tolist()
        judged = [answers] * questions
        estimate = accuracy(right, judged) if k is None else pass_at(right, judged, k)
        assert estimate is not None
        inside += estimate.low <= truth <= estimate.high
    assert 0.90 <= inside / trials <= 0.99
