"""Golden values worked out by hand, and the one policy for missing rewards, uniform groups and single responses."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from guerdon_trainer.advantages import grpo_advantages, keep_by_accuracy, prime_advantages, rloo_advantages


def prime(rewards_B: Tensor, groups_B: Tensor, valid_B: Tensor) -> Tensor:
    """PRIME on one-token responses without process rewards: the outcome term alone, shape (B,)."""
    zeros = torch.zeros(len(rewards_B), 1)
    mask = torch.ones(len(rewards_B), 1)
    return prime_advantages(zeros, rewards_B, mask, groups_B, valid_B, whiten=False)[:, 0]


ESTIMATORS = pytest.mark.parametrize("estimator", [grpo_advantages, rloo_advantages, prime])
Estimator = Callable[[Tensor, Tensor, Tensor], Tensor]


def yes(n: int) -> Tensor:
    return torch.ones(n, dtype=torch.bool)


def test_grpo_golden() -> None:
    advantages = grpo_advantages(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([7, 7, 7]), yes(3), eps=0.0)
    # mean 1/3, unbiased std sqrt(1/3)
    torch.testing.assert_close(advantages, torch.tensor([2.0, -1.0, -1.0]) / 3 / (1 / 3) ** 0.5)


def test_rloo_golden() -> None:
    advantages = rloo_advantages(torch.tensor([1.0, 0.0, 0.5]), torch.tensor([0, 0, 0]), yes(3))
    torch.testing.assert_close(advantages, torch.tensor([0.75, -0.75, 0.0]))


@ESTIMATORS
def test_a_response_without_reward_leaves_the_baseline_and_gets_nothing(estimator: Estimator) -> None:
    groups = torch.tensor([0, 0, 0, 1, 1])
    valid = torch.tensor([True, True, False, True, True])
    missing = estimator(torch.tensor([1.0, 0.0, float("nan"), 1.0, 0.0]), groups, valid)
    without = estimator(torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([0, 0, 1, 1]), yes(4))
    assert missing[2].item() == 0.0
    torch.testing.assert_close(missing[[0, 1, 3, 4]], without)


@ESTIMATORS
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3])
def test_a_uniform_group_is_exactly_zero(estimator: Estimator, reward: float) -> None:
    rewards = torch.tensor([reward] * 7 + [1.0, 0.0])
    advantages = estimator(rewards, torch.tensor([3] * 7 + [4, 4]), yes(9))
    torch.testing.assert_close(advantages[:7], torch.zeros(7), atol=1e-7, rtol=0)
    assert advantages[7] > 0


@ESTIMATORS
def test_a_single_response_has_nothing_to_be_compared_with(estimator: Estimator) -> None:
    assert estimator(torch.tensor([1.0, 1.0, 0.0]), torch.tensor([0, 1, 1]), yes(3))[0].item() == 0.0


@ESTIMATORS
@given(data=st.data())
def test_order_and_names_of_groups_do_not_matter(estimator: Estimator, data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 12))
    rewards = torch.tensor(data.draw(st.lists(st.floats(0, 1, width=32), min_size=size, max_size=size)))
    groups = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)))
    valid = torch.tensor(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    order = torch.tensor(data.draw(st.permutations(range(size))))
    here = estimator(rewards, groups, valid)
    there = estimator(rewards[order], groups[order] * -5 + 2, valid[order])
    torch.testing.assert_close(there, here[order], atol=1e-4, rtol=1e-4)
    assert here.isfinite().all()
    assert (here[~valid] == 0).all()


def test_prime_golden_in_both_forms() -> None:
    rewards = torch.tensor([[1.0, 3.0], [2.0, 0.0]])
    mask = torch.tensor([[1, 1], [1, 0]])
    outcomes = torch.tensor([1.0, 0.0])
    groups = torch.zeros(2, dtype=torch.long)
    # Averages 2 and 2; paper: r - 2, summed to go, plus the outcome's +-1.
    paper = prime_advantages(rewards, outcomes, mask, groups, yes(2), whiten=False)
    torch.testing.assert_close(paper, torch.tensor([[(-1 + 1) + 1.0, 1 + 1.0], [0 - 1.0, 0.0]]))
    # Released: r * 2 - (2 + 2).
    released = prime_advantages(rewards, outcomes, mask, groups, yes(2), form="released", whiten=False)
    torch.testing.assert_close(released, torch.tensor([[(-2 + 2) + 1.0, 2 + 1.0], [0 - 1.0, 0.0]]))


def test_prime_discounts_each_term_with_its_own_gamma() -> None:
    rewards = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    mask = torch.ones(2, 2)
    groups = torch.zeros(2, dtype=torch.long)
    advantages = prime_advantages(
        rewards,
        torch.tensor([1.0, 0.0]),
        mask,
        groups,
        yes(2),
        gamma_process=0.5,
        gamma_outcome=0.1,
        whiten=False,
    )
    # Row 0: process 0 then 1 (the other's average is 0), outcome +1 on the last token.
    torch.testing.assert_close(advantages[0], torch.tensor([0.5 + 0.1, 1.0 + 1.0]))


def test_prime_whitens_over_the_valid_tokens_only() -> None:
    torch.manual_seed(0)
    rewards = torch.randn(6, 4)
    mask = (torch.arange(4) < torch.tensor([4, 2, 3, 1, 4, 2])[:, None]).bool()
    rewards = torch.where(mask, rewards, torch.tensor(float("nan")))
    groups = torch.tensor([0, 0, 0, 1, 1, 1])
    valid = torch.tensor([True, True, True, True, True, False])
    advantages = prime_advantages(rewards, torch.rand(6), mask, groups, valid)
    used = advantages[mask & valid[:, None]]
    assert used.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert used.std().item() == pytest.approx(1.0, abs=1e-4)
    assert (advantages[~(mask & valid[:, None])] == 0).all()


def test_filters_are_inclusive_and_ignore_missing_rewards() -> None:
    outcomes = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0] + [1.0] * 5 + [1.0, 0.0, 0.5])
    groups = torch.tensor([0] * 5 + [1] * 5 + [2] * 3)
    valid = torch.tensor([True] * 10 + [True, False, False])
    assert keep_by_accuracy(outcomes, groups, valid, lower=0.2, upper=0.8) == {0}
    assert keep_by_accuracy(outcomes, groups, yes(13), lower=0.2, upper=1.0) == {0, 1, 2}


def test_unknown_choices_are_refused() -> None:
    ones = torch.ones(2)
    groups = torch.zeros(2, dtype=torch.long)
    with pytest.raises(ValueError, match="none of std, batch_std, none"):
        grpo_advantages(ones, groups, yes(2), scale="max")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="neither paper nor released"):
        prime_advantages(ones[:, None], ones, ones[:, None], groups, yes(2), form="both")  # pyright: ignore[reportArgumentType]
