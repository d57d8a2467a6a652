"""What an update and a score can be asked for, through the service class: steps, losses, learning rates."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from guerdon.types import Sample, Status, UpdateRequest, UpdateResponse
from guerdon_services.process_reward.service import ProcessRewardScorer
from guerdon_services.process_reward.settings import ProcessRewardOptions, ProcessRewardSettings
from guerdon_services.runtime.scorer import ScoreJob

Start = Callable[..., ProcessRewardScorer]

SAMPLES = [
    Sample(id="a", prompt="1+1=", response="2\n\nso 2\n\n", outcome=1.0, group="q"),
    Sample(id="b", prompt="1+1=", response="3, I think", outcome=0.0, group="q"),
    Sample(id="c", prompt="2+3=", response="one\n\ntwo\n\n5", outcome=0.5, group="q"),
    Sample(id="d", prompt="2+3=", response="five", outcome=1.0, group="r"),
    Sample(id="e", prompt="2+3=", response="six", outcome=0.0, group="r"),
]


def updated(scorer: ProcessRewardScorer, name: str, **given: Any) -> UpdateResponse:
    request = UpdateRequest.model_validate({"request_id": name, "samples": SAMPLES, "order": "after"} | given)
    response = scorer.update(request)
    assert response.status is Status.OK, response.reason
    return response


def state(scorer: ProcessRewardScorer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in scorer._trained.model.parameters()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_steps_carry_the_sums_of_their_tokens(start: Start) -> None:
    scorer = start()
    updated(scorer, "u1")
    token, step, response, words = scorer.score(
        [
            ScoreJob(SAMPLES[2], ProcessRewardOptions.model_validate(given))
            for given in (
                {},
                {"granularity": "step"},
                {"granularity": "response"},
                {"granularity": "step", "step_separator": "o"},
            )
        ]
    )
    rewards = token.token_rewards
    assert step.token_ids == token.token_ids
    placed = [at for at, reward in enumerate(step.token_rewards) if reward]
    assert placed == [4, 9, 10]
    cuts = [rewards[:5], rewards[5:10], rewards[10:]]
    assert [step.token_rewards[at] for at in placed] == pytest.approx([sum(cut) for cut in cuts], rel=1e-6)
    assert [at for at, reward in enumerate(words.token_rewards) if reward] == [0 + 7, 10]
    for other in (step, response, words):
        assert other.value == pytest.approx(token.value, rel=1e-12)


def test_an_updates_scores_have_its_granularity(start: Start) -> None:
    scorer = start()
    updated(scorer, "u1")
    response = updated(scorer, "u2", order="before", options={"granularity": "step"})
    alone = scorer.score([ScoreJob(sample, ProcessRewardOptions(granularity="step")) for sample in SAMPLES])
    for one, other in zip(response.results, alone, strict=True):
        assert one.token_rewards == pytest.approx(other.token_rewards, abs=1e-6)


@pytest.mark.parametrize("weights", ["none", "acc", "rm"])
def test_the_pairwise_loss_learns_the_outcomes(start: Start, weights: str) -> None:
    scorer = start(lr=1e-2, beta=0.5)
    options = {"loss": "pairwise", "pair_weights": weights}
    losses = [updated(scorer, f"u{n}", options=options).metrics["loss"] for n in range(12)]
    assert losses[-1] < losses[0] / 2
    values = [
        result.value or 0.0 for result in scorer.score([ScoreJob(s, ProcessRewardOptions()) for s in SAMPLES])
    ]
    assert values[0] > values[2] > values[1]
    assert values[3] > values[4]


@pytest.mark.parametrize("weights", ["none", "acc", "rm"])
def test_parts_of_any_size_make_the_same_pairwise_step(start: Start, weights: str, tmp_path: Path) -> None:
    """Rows of a group in different parts: what each is compared with is gathered from all of them first."""
    states, losses = [], []
    for tokens in (1, 40, 10_000):
        scorer = start(weights_dir=tmp_path / f"{tokens}", max_tokens=tokens, lr=1e-2, beta=0.5)
        updated(scorer, "u1")
        response = updated(scorer, "u2", options={"loss": "pairwise", "pair_weights": weights})
        states.append(state(scorer))
        losses.append(response.metrics["loss"])
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)
    for other in states[1:]:
        for one, two in zip(states[0], other, strict=True):
            torch.testing.assert_close(one, two, atol=2e-4, rtol=1e-3)


def test_binary_and_fractional_labels_are_told_apart(start: Start) -> None:
    """The gradient of a fraction is that of its share of both labels."""
    scorer = start()
    losses = [
        updated(
            scorer,
            f"u{outcome}",
            base_version=0,
            samples=[SAMPLES[0].model_copy(update={"outcome": outcome})],
        ).metrics["grad_norm"]
        for outcome in (0.0, 0.25, 0.5, 1.0)
    ]
    # In version 0 the logit is 0: |1/2 - outcome| on the same direction.
    assert losses == pytest.approx([losses[0], losses[0] / 2, 0.0, losses[0]], rel=1e-4, abs=1e-6)


def test_the_learning_rate_follows_the_version(start: Start) -> None:
    settings = {"lr_schedule": "cosine", "warmup_updates": 2, "schedule_updates": 4, "keep_last": 10}
    scorer = start(**settings)
    rates = [updated(scorer, f"u{n}").metrics["lr"] for n in range(5)]
    assert rates == pytest.approx([0.0, 5e-4, 1e-3, 5e-4, 0.0])
    straight = state(scorer)
    scorer = start(**settings)  # a restart counts on
    assert updated(scorer, "again", base_version=3).metrics["lr"] == pytest.approx(5e-4)
    assert updated(scorer, "end").metrics["lr"] == 0.0
    assert same(straight, state(scorer))


def test_an_update_at_rate_0_leaves_the_weights(start: Start) -> None:
    scorer = start(warmup_updates=1)
    before = state(scorer)
    assert updated(scorer, "u1").version_after == 1
    assert same(before, state(scorer))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"lr_schedule": "linear"}, "schedule_updates: linear needs one"),
        ({"lr_schedule": "cosine", "schedule_updates": 5, "warmup_updates": 5}, "schedule_updates: cosine"),
        ({"schedule_updates": 5}, "schedule_updates: a constant"),
        ({"lr_schedule": "step"}, "lr_schedule"),
        ({"reference": "policy"}, "policy_weights_dir"),
        ({"policy_weights_dir": "p"}, "policy_weights_dir"),
        ({"lora_rank": -1}, "lora_rank"),
        ({"lr_floor": 2}, "lr_floor"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        ProcessRewardSettings.model_validate({"model": Path("m"), "weights_dir": Path("w")} | given)


@pytest.mark.parametrize(
    "given",
    [
        {"granularity": "word"},
        {"step_separator": ""},
        {"step_separator": "x" * 101},
        {"loss": "hinge"},
        {"pair_weights": "bon"},
    ],
)
def test_options_that_are_unknown_are_refused_by_name(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(given))):
        ProcessRewardOptions.model_validate(given)
