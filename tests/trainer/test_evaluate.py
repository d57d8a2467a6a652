"""What an evaluation counts, and what it does not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guerdon.types import GenerateSample, Status
from guerdon_trainer.config import RunConfig
from guerdon_trainer.evaluate import Chance, Evaluation, evaluate
from guerdon_trainer.groups import Group
from guerdon_trainer.questions import Question
from guerdon_trainer.rollouts import Rollouts
from guerdon_trainer.service_stats import ServiceStats

Make = Callable[..., RunConfig]
QUESTIONS = [Question(id=f"q{n}", prompt="1+2=", references=["3"]) for n in range(4)]


def _texts(sample: GenerateSample) -> list[str]:
    """Questions are 0 to 3 greedily, all right but one, and 4 to 7 sampled, with 0 to 3 right ones of 4."""
    place = int(sample.id or 0)
    return ["+" if place == 1 else "1"] if place < 4 else ["1"] * (place - 4) + ["+"] * (8 - place)


@pytest.fixture
def run(make_services: Any, make_config: Make, tmp_path: Path) -> Callable[..., Any]:
    def run(
        *overrides: str, fault: Status | None = None, served: int = 7
    ) -> tuple[Evaluation, list[Group], Any]:
        services = make_services(tmp_path, _texts)
        services.rollout.version_served = served
        services.math.faults.extend([fault] if fault else [])
        config = make_config("failures.attempts=1", "failures.window=1000", *overrides)
        with Rollouts(services.clients, config, ServiceStats(), policy_version=7) as rollouts:
            evaluation, groups = evaluate(rollouts, QUESTIONS, config, step=3, policy_version=7)
        return evaluation, groups, services

    return run


def test_greedy_responses_alone_by_default(run: Callable[..., Any]) -> None:
    evaluation, groups, _ = run()
    assert (evaluation.step, evaluation.accuracy, evaluation.judged, evaluation.failed) == (3, 0.75, 4, 0)
    assert evaluation.pass_at == {}
    assert [group.position for group in groups] == [0, 1, 2, 3]
    assert evaluation.summary == "held-out greedy accuracy 75.0% of 4 questions"


def test_pass_at_k_is_the_unbiased_estimate(run: Callable[..., Any]) -> None:
    evaluation, groups, _ = run("evaluation.samples=4")
    assert (evaluation.accuracy, evaluation.samples_failed, len(groups)) == (0.75, 0, 4)
    # Of 4 samples 0, 1, 2, 3 are right; 1 - C(4-c, k) / C(4, k).
    assert {k: chance.value for k, chance in evaluation.pass_at.items()} == {
        "1": pytest.approx((0 + 1 + 2 + 3) / 16),
        "2": pytest.approx((0 + 3 / 6 + 5 / 6 + 1) / 4),
        "4": pytest.approx(3 / 4),
    }
    assert all(chance.low <= chance.value <= chance.high for chance in evaluation.pass_at.values())
    assert evaluation.summary.endswith("75.0% of 4 questions, pass@1 37.5%, pass@2 58.3%, pass@4 75.0%")


def test_samples_are_drawn_with_the_evaluations_temperature_and_the_same_seeds(
    run: Callable[..., Any],
) -> None:
    seeds = [sorted(run("evaluation.samples=2")[2].rollout.seeds, key=str) for _ in range(2)]
    assert seeds[0] == seeds[1]
    # The greedy ones need none.
    assert sum(seed is None for seed in seeds[0]) == 4
    assert len(set(seeds[0])) == 5


def test_what_has_no_verdict_is_neither_right_nor_wrong(run: Callable[..., Any]) -> None:
    evaluation, _, _ = run("evaluation.samples=4", fault=Status.TIMEOUT)
    lost = evaluation.failed + evaluation.samples_failed
    assert lost in (1, 4)  # one greedy response or one question's samples, whichever was asked first
    assert evaluation.judged == 4 - evaluation.failed
    if evaluation.samples_failed:
        assert {chance.questions for chance in evaluation.pass_at.values()} == {3}


def test_only_the_version_that_is_evaluated_answers(run: Callable[..., Any]) -> None:
    evaluation, _, _ = run("rollout.max_policy_age=3", "optimizer.old_logprobs=engine", served=6)
    assert (evaluation.accuracy, evaluation.judged, evaluation.failed) == (None, 0, 4)


def test_a_summary_says_what_it_does_not_know() -> None:
    assert Evaluation(0, 0.5, 0.5, 8, 2, 3.0).summary.endswith("8 questions, 2 without a verdict")
    chance = Chance(0.25, 0.1, 0.4, 8)
    assert Evaluation(0, None, None, 0, 8, 3.0, {"2": chance}).summary == (
        "held-out accuracy unknown: none of 8 responses could be judged, pass@2 25.0%"
    )
