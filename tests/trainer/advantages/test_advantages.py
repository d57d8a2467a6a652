"""Golden values worked out by hand, and the one policy for missing rewards, uniform groups and single responses."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from guerdon_trainer.advantages import (
    gae_advantages,
    group_rates,
    grpo_advantages,
    keep_by_accuracy,
    prime_advantages,
    reinforce_pp_advantages,
    rloo_advantages,
)


def prime(rewards_B: Tensor, groups_B: Tensor, valid_B: Tensor) -> Tensor:
    """PRIME on one-token responses without process rewards: the outcome term alone, shape (B,)."""
    zeros = torch.zeros(len(rewards_B), 1)
    mask = torch.ones(len(rewards_B), 1)
    return prime_advantages(zeros, rewards_B, mask, groups_B, valid_B, whiten=False)[:, 0]


def dr_grpo(rewards_B: Tensor, groups_B: Tensor, valid_B: Tensor) -> Tensor:
    return grpo_advantages(rewards_B, groups_B, valid_B, scale="none")


def reinforce_pp(rewards_B: Tensor, groups_B: Tensor, valid_B: Tensor) -> Tensor:
    """REINFORCE++-baseline on one-token responses, shape (B,)."""
    mask = torch.ones(len(rewards_B), 1)
    return reinforce_pp_advantages(rewards_B, mask, groups_B, valid_B, baseline="group", whiten=False)[:, 0]


def nft_signal(rewards_B: Tensor, groups_B: Tensor, valid_B: Tensor) -> Tensor:
    """What NFT's loss makes of a group's rate on policy: outcome - r, and nothing where the rate is 0."""
    rates_B = group_rates(rewards_B, groups_B, valid_B)
    return torch.where((rates_B > 0) & (rates_B < 1), rewards_B - rates_B, 0)


#: By name, all with one policy for what cannot be compared.
ESTIMATORS = pytest.mark.parametrize(
    "estimator", [grpo_advantages, dr_grpo, rloo_advantages, prime, reinforce_pp, nft_signal]
)
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
def test_rule_3_a_response_without_reward_leaves_the_baseline_and_gets_nothing(estimator: Estimator) -> None:
    groups = torch.tensor([0, 0, 0, 1, 1])
    valid = torch.tensor([True, True, False, True, True])
    missing = estimator(torch.tensor([1.0, 0.0, float("nan"), 1.0, 0.0]), groups, valid)
    without = estimator(torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([0, 0, 1, 1]), yes(4))
    assert missing[2].item() == 0.0
    torch.testing.assert_close(missing[[0, 1, 3, 4]], without)


@ESTIMATORS
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3])
def test_rule_3_a_uniform_group_is_exactly_zero(estimator: Estimator, reward: float) -> None:
    rewards = torch.tensor([reward] * 7 + [1.0, 0.0])
    advantages = estimator(rewards, torch.tensor([3] * 7 + [4, 4]), yes(9))
    assert (advantages[:7] == 0).all()
    assert advantages[7] > 0


@ESTIMATORS
def test_rule_3_a_single_response_has_nothing_to_be_compared_with(estimator: Estimator) -> None:
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


@pytest.mark.parametrize("reward", [0.1, 1e6 / 3])
def test_equal_returns_of_a_batch_are_whitened_to_exactly_zero(reward: float) -> None:
    mask = torch.ones(3, 7)
    advantages = reinforce_pp_advantages(torch.full((3,), reward), mask, torch.tensor([0, 0, 1]), yes(3))
    assert (advantages == 0).all()


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
    with pytest.raises(ValueError, match="neither batch nor group"):
        reinforce_pp_advantages(ones, ones[:, None], groups, yes(2), baseline="none")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="neither paper nor released"):
        prime_advantages(ones[:, None], ones, ones[:, None], groups, yes(2), form="both")  # pyright: ignore[reportArgumentType]


@ESTIMATORS
def test_rule_3_ragged_groups_are_what_they_are_alone(estimator: Estimator) -> None:
    rewards = torch.tensor([1.0, 0.0, 0.25, 1.0, 0.5])
    groups = torch.tensor([5, 8, 5, 8, 5])
    together = estimator(rewards, groups, yes(5))
    for rows in ([0, 2, 4], [1, 3]):
        alone = estimator(rewards[rows], groups[rows], yes(len(rows)))
        torch.testing.assert_close(together[rows], alone)


def test_a_uniform_group_of_any_size_has_no_rounding_to_be_blown_up() -> None:
    # The mean of 64 times 0.3 is not 0.3 in fp32, and 1e-6 is all that would stand between that and an advantage.
    rewards = torch.full((64,), 0.3)
    assert (grpo_advantages(rewards, torch.zeros(64, dtype=torch.long), yes(64)) == 0).all()


def test_a_floor_for_the_deviation_silences_groups_below_it() -> None:
    rewards = torch.tensor([0.5, 0.5001, 0.2, 0.4])
    groups = torch.tensor([0, 0, 1, 1])
    for scale in ("std", "none"):
        advantages = grpo_advantages(rewards, groups, yes(4), scale=scale, min_std=0.01)
        assert (advantages[:2] == 0).all()
        assert (advantages[2:] != 0).all()


def test_reinforce_pp_golden() -> None:
    rewards, mask = torch.tensor([1.0, 0.0, 0.5]), torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0]])
    groups = torch.tensor([0, 0, 1])
    plain = reinforce_pp_advantages(rewards, mask, groups, yes(3), gamma=0.5, whiten=False)
    torch.testing.assert_close(plain, torch.tensor([[0.25, 0.5, 1.0], [0, 0, 0], [0.25, 0.5, 0]]))
    values = torch.tensor([0.25, 0.5, 1.0, 0, 0.25, 0.5])
    whitened = reinforce_pp_advantages(rewards, mask, groups, yes(3), gamma=0.5)
    torch.testing.assert_close(whitened[mask.bool()], (values - values.mean()) / values.std())
    centred = reinforce_pp_advantages(
        rewards, mask, groups, yes(3), baseline="group", gamma=0.5, whiten=False
    )
    # Group 1 has one response and stays out.
    torch.testing.assert_close(centred, torch.tensor([[0.125, 0.25, 0.5], [-0.5, 0, 0], [0, 0, 0]]))


def test_reinforce_pp_takes_rewards_per_token() -> None:
    rewards, mask = torch.tensor([1.0, 0.0]), torch.tensor([[1, 1], [1, 1]])
    penalty = torch.tensor([[-0.5, -0.25], [0.0, -1.0]])
    advantages = reinforce_pp_advantages(
        rewards, mask, torch.tensor([0, 0]), yes(2), token_rewards_BT=penalty, whiten=False
    )
    torch.testing.assert_close(advantages, torch.tensor([[0.25, 0.75], [-1.0, -1.0]]))


def returns(rewards: Tensor, mask: Tensor, gamma: float) -> dict[str, Tensor]:
    """One row's returns by each estimator that has some, without any baseline."""
    groups, valid = torch.zeros(1, dtype=torch.long), yes(1)
    plus = reinforce_pp_advantages(
        torch.zeros(1), mask, groups, valid, token_rewards_BT=rewards, gamma=gamma, whiten=False
    )
    _, gae = gae_advantages(rewards, torch.zeros_like(rewards), mask, gamma=gamma, lam=1.0, whiten=False)
    return {"reinforce_pp": plus, "gae": gae}


@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_rule_7_returns_cross_a_gap_and_only_own_tokens_count_as_steps(gamma: float) -> None:
    garbage = float("nan")
    gap = torch.tensor([[1.0, garbage, garbage, 4.0, garbage]])
    mask = torch.tensor([[1, 0, 0, 1, 0]])
    for name, found in returns(gap, mask, gamma).items():
        expected = torch.tensor([[1 + gamma * 4, 0, 0, 4, 0]])
        torch.testing.assert_close(found, expected, msg=name)


@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_rule_7_so_do_the_returns_of_prime(gamma: float) -> None:
    rewards = torch.tensor([[0.0, 9.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    mask = torch.tensor([[1, 0, 1, 1], [1, 1, 0, 0]])
    advantages = prime_advantages(
        rewards,
        torch.tensor([1.0, 0.0]),
        mask,
        torch.zeros(2, dtype=torch.long),
        yes(2),
        gamma_process=gamma,
        gamma_outcome=gamma,
        whiten=False,
    )
    g = gamma
    torch.testing.assert_close(advantages[0], torch.tensor([g + g * g, 0, 1 + g, 1.0]))


def test_rule_7_a_penalty_is_masked_before_it_is_summed() -> None:
    rewards, mask = torch.tensor([1.0]), torch.tensor([[1, 1, 0]])
    for garbage in (0.0, 1e6, float("nan")):
        penalty = torch.tensor([[-0.1, -0.2, garbage]])
        advantages = reinforce_pp_advantages(
            rewards, mask, torch.zeros(1, dtype=torch.long), yes(1), token_rewards_BT=penalty, whiten=False
        )
        torch.testing.assert_close(advantages, torch.tensor([[0.7, 0.8, 0.0]]))


def test_rule_2_an_empty_response_has_no_last_token() -> None:
    rewards = torch.tensor([1.0, 0.0, 0.5])
    mask = torch.tensor([[1, 1], [0, 0], [1, 0]])
    groups = torch.zeros(3, dtype=torch.long)
    for baseline in ("batch", "group"):
        advantages = reinforce_pp_advantages(rewards, mask, groups, yes(3), baseline=baseline)
        assert advantages.isfinite().all()
        assert (advantages[~mask.bool()] == 0).all()
        assert advantages[0, 0] > advantages[2, 0]
