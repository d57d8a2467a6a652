"""Golden values and gradients worked out by hand."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from guerdon_trainer.advantages import group_rates, grpo_advantages
from guerdon_trainer.losses import (
    Loss,
    gspo_loss,
    gspo_token_loss,
    kl_estimate,
    nft_loss,
    ppo_clip_loss,
    reinforce_loss,
    verifree_loss,
)
from guerdon_trainer.losses.aggregate import aggregate


def gspo(logps: Tensor, old: Tensor, advantages_B: Tensor, mask: Tensor, **kw: float) -> Loss:
    return gspo_loss(logps, old, advantages_B, mask, **kw)


def gspo_token(logps: Tensor, old: Tensor, advantages_B: Tensor, mask: Tensor, **kw: float) -> Loss:
    return gspo_token_loss(logps, old, advantages_B[:, None].expand_as(mask), mask, **kw)


def ppo(logps: Tensor, old: Tensor, advantages_B: Tensor, mask: Tensor, **kw: float) -> Loss:
    return ppo_clip_loss(
        logps,
        old,
        advantages_B[:, None].expand_as(mask),
        mask,
        aggregation="seq-mean-token-mean",
        denominator=kw.get("denominator"),
    )


LOSSES = pytest.mark.parametrize("loss", [gspo, gspo_token, ppo])
Call = Callable[..., Loss]


def gradient(loss: Loss, logps: Tensor) -> Tensor:
    logps.grad = None
    loss.value.backward()
    assert logps.grad is not None
    return logps.grad


@LOSSES
def test_on_policy_the_gradient_is_the_length_normalised_score_function(loss: Call) -> None:
    logps = torch.tensor([[-1.0, -3.0], [-2.0, 0.0]], requires_grad=True)
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    result = loss(logps, logps.detach(), torch.tensor([1.0, -1.0]), mask)
    # -mean_i(s_i A_i) at s_i = 1 is 0 here, and its gradient -A_i / (B |y_i|).
    assert result.value.item() == 0.0
    torch.testing.assert_close(gradient(result, logps), torch.tensor([[-0.25, -0.25], [0.5, 0.0]]))


@pytest.mark.parametrize("loss", [gspo, gspo_token])
def test_gspo_golden_value(loss: Call) -> None:
    logps = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    old = torch.tensor([[-1.2, -2.2]])
    result = loss(logps, old, torch.tensor([-2.0]), torch.ones(1, 2))
    # s = exp(0.2); A < 0 is not clipped from above: the loss is 2 s, its gradient 2 s / 2 per token.
    assert result.value.item() == pytest.approx(2 * math.exp(0.2), rel=1e-6)
    torch.testing.assert_close(gradient(result, logps), torch.full((1, 2), math.exp(0.2)))
    assert result.metrics["clip_fraction"].item() == 0.0
    assert result.metrics["ratio_mean"].item() == pytest.approx(math.exp(0.2), rel=1e-6)


@pytest.mark.parametrize(("step", "advantage"), [(1.0, 1.0), (-1.0, -1.0)])
@LOSSES
def test_a_binding_clip_stops_the_gradient(loss: Call, step: float, advantage: float) -> None:
    logps = torch.tensor([[-1.0]], requires_grad=True)
    result = loss(logps, torch.tensor([[-1.0 - step]]), torch.tensor([advantage]), torch.ones(1, 1))
    assert gradient(result, logps).item() == 0.0
    assert result.metrics["clip_fraction"].item() == 1.0


@LOSSES
def test_a_huge_ratio_keeps_a_finite_gradient_that_points_down(loss: Call) -> None:
    logps = torch.tensor([[-1.0, -1.0]], requires_grad=True)
    result = loss(logps, torch.tensor([[-900.0, -900.0]]), torch.tensor([-1.0]), torch.ones(1, 2))
    assert result.value.isfinite()
    assert (gradient(result, logps) > 0).all()  # descending lowers the log-probabilities
    assert (
        gradient(loss(logps, logps.detach() - 900, torch.tensor([-1.0]), torch.ones(1, 2)), logps)
        .isfinite()
        .all()
    )


def test_both_forms_of_gspo_agree_off_policy() -> None:
    torch.manual_seed(1)
    logps = (-torch.rand(8, 6)).requires_grad_()
    old = logps.detach() + 3e-4 * torch.randn(8, 6)
    mask = (torch.arange(6) < torch.randint(1, 7, (8, 1))).float()
    advantages = torch.randn(8)
    sequence = gspo(logps, old, advantages, mask)
    expected = gradient(sequence, logps).clone()
    token = gspo_token(logps, old, advantages, mask)
    torch.testing.assert_close(token.value, sequence.value)
    torch.testing.assert_close(gradient(token, logps), expected)
    assert (expected == 0).any(dim=-1).any(), "no row was clipped: the test shows less than it should"


def test_dual_clip_must_exceed_one() -> None:
    ones = torch.ones(1, 1)
    with pytest.raises(ValueError, match="dual_clip must be greater than 1"):
        ppo_clip_loss(ones, ones, ones, ones, dual_clip=1.0)


def test_aggregations_of_one_table() -> None:
    losses = torch.tensor([[1.0, 2.0, 9.0], [4.0, 9.0, 9.0], [9.0, 9.0, 9.0]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]])
    assert aggregate(losses, mask, "token-mean").item() == pytest.approx(7 / 3)
    assert aggregate(losses, mask, "seq-mean-token-mean").item() == pytest.approx((1.5 + 4) / 2)
    assert aggregate(losses, mask, "seq-mean-token-sum").item() == pytest.approx((3 + 4) / 2)
    assert aggregate(losses, mask, "seq-mean-token-sum-norm", norm=10).item() == pytest.approx(0.35)
    with pytest.raises(ValueError, match="norm belongs"):
        aggregate(losses, mask, "token-mean", norm=10)
    with pytest.raises(ValueError, match="none of token-mean"):
        aggregate(losses, mask, "mean")  # pyright: ignore[reportArgumentType]


def test_kl_estimators_of_one_ratio() -> None:
    logps, reference = torch.tensor([[-1.0]]), torch.tensor([[-1.5]])
    assert kl_estimate(logps, reference, "k1").item() == pytest.approx(0.5)
    assert kl_estimate(logps, reference, "k2").item() == pytest.approx(0.125)
    assert kl_estimate(logps, reference, "k3").item() == pytest.approx(math.exp(-0.5) + 0.5 - 1)
    assert kl_estimate(logps, torch.tensor([[900.0]]), "k3").isfinite().all()
    with pytest.raises(ValueError, match="none of k1"):
        kl_estimate(logps, reference, "k4")  # pyright: ignore[reportArgumentType]


def test_kl_by_verls_names_and_with_the_gradient_of_k2() -> None:
    logps = torch.tensor([-1.0, -1.0, -30.0], requires_grad=True)
    reference = torch.tensor([-1.5, -0.2, -1.0])
    for name, ours in (("kl", "k1"), ("mse", "k2"), ("low_var_kl", "k3")):
        torch.testing.assert_close(
            kl_estimate(logps, reference, name),  # pyright: ignore[reportArgumentType]
            kl_estimate(logps, reference, ours),  # pyright: ignore[reportArgumentType]
        )
    for name in ("k1+", "k3+"):
        logps.grad = None
        estimate = kl_estimate(logps, reference, name)  # pyright: ignore[reportArgumentType]
        torch.testing.assert_close(estimate, kl_estimate(logps, reference, name[:-1]))  # pyright: ignore[reportArgumentType]
        estimate.sum().backward()
        # k3 itself has no gradient for the last token, which left the reference by 29 nats.
        torch.testing.assert_close(logps.grad, torch.tensor([0.5, -0.8, -20.0]))


@pytest.mark.parametrize("loss", [gspo, gspo_token, ppo])
def test_delta_bounds_the_ratio_of_a_negative_advantage_alone(loss: Call) -> None:
    if loss is ppo:
        loss = lambda logps, old, a, m, **kw: ppo_clip_loss(logps, old, a[:, None], m, **kw)  # noqa: E731
    logps = torch.tensor([[0.0]], requires_grad=True)
    old, mask = torch.tensor([[-2.0]]), torch.ones(1, 1)  # a ratio of e^2
    down = loss(logps, old, torch.tensor([-1.0]), mask, delta=3.0)
    assert down.value.item() == pytest.approx(3.0)
    assert gradient(down, logps).item() == 0.0
    assert down.metrics["clip_fraction"].item() == 1.0
    free = loss(logps, old, torch.tensor([-1.0]), mask, delta=8.0)
    assert gradient(free, logps).item() == pytest.approx(math.exp(2))
    with pytest.raises(ValueError, match="delta must be greater than 1"):
        loss(logps, old, torch.tensor([-1.0]), mask, delta=1.0)


def test_dual_clip_overrides_the_clip_and_delta_yields_to_it() -> None:
    logps, old = torch.tensor([[math.log(1.15)]]), torch.zeros(1, 1)
    down, mask = torch.tensor([[-1.0]]), torch.ones(1, 1)
    assert ppo_clip_loss(logps, old, down, mask, dual_clip=1.1).value.item() == pytest.approx(1.1)
    assert ppo_clip_loss(logps, old, down, mask, delta=1.1).value.item() == pytest.approx(1.15)
    for c in (1.2, 2.0, 5.0):
        for ratio in (0.5, 1.0, 1.3, 4.0, 9.0):
            logps = torch.tensor([[math.log(ratio)]])
            same = [
                ppo_clip_loss(logps, old, down, mask, dual_clip=c).value,
                ppo_clip_loss(logps, old, down, mask, delta=c).value,
            ]
            torch.testing.assert_close(same[0], same[1])


def test_reinforce_golden() -> None:
    logps = torch.tensor([[-1.0, -2.0], [-3.0, -9.0]], requires_grad=True)
    advantages = torch.tensor([[0.5, -1.0], [2.0, 7.0]])
    mask = torch.tensor([[1, 1], [1, 0]])
    result = reinforce_loss(logps, advantages, mask)
    assert result.value.item() == pytest.approx(-(0.5 * -1 - 1 * -2 + 2 * -3) / 3)
    torch.testing.assert_close(gradient(result, logps), torch.tensor([[-0.5, 1.0], [-2.0, 0.0]]) / 3)
    by_rows = reinforce_loss(logps, advantages, mask, aggregation="seq-mean-token-sum")
    torch.testing.assert_close(gradient(by_rows, logps), torch.tensor([[-0.5, 1.0], [-2.0, 0.0]]) / 2)


def rollout_of_two_groups(outcomes: list[float]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Log-probabilities, mask, outcomes, groups of four and rates."""
    torch.manual_seed(3)
    logps = (-torch.rand(8, 5)).requires_grad_()
    mask = (torch.arange(5) < torch.tensor([5, 3, 2, 1, 4, 2, 5, 3])[:, None]).float()
    outcomes_B, groups_B = torch.tensor(outcomes, dtype=torch.float32), torch.arange(8) // 4
    return (
        logps,
        mask,
        outcomes_B,
        groups_B,
        group_rates(outcomes_B, groups_B, torch.ones(8, dtype=torch.bool)),
    )


@pytest.mark.parametrize(
    "outcomes", [[1, 0, 0, 0, 1, 1, 0, 1], [0.3, 0.9, 0.0, 1.0, 1, 0.25, 0.5, 0.5], [1, 1, 1, 1, 0, 1, 0, 0]]
)
def test_on_policy_nft_is_dr_grpo(outcomes: list[float]) -> None:
    logps, mask, outcomes_B, groups_B, rates_B = rollout_of_two_groups(outcomes)
    nft = gradient(nft_loss(logps, logps.detach(), outcomes_B, rates_B, mask), logps)
    advantages_B = grpo_advantages(outcomes_B, groups_B, torch.ones(8, dtype=torch.bool), scale="none")
    dr_grpo = ppo_clip_loss(logps, logps.detach(), advantages_B[:, None].expand_as(mask), mask)
    torch.testing.assert_close(nft, gradient(dr_grpo, logps))
    assert (nft != 0).any()


def test_on_policy_nft_with_the_other_weight_is_grpo() -> None:
    logps, mask, outcomes_B, groups_B, rates_B = rollout_of_two_groups([1, 0, 0, 0, 1, 1, 0, 1])
    nft = gradient(nft_loss(logps, logps.detach(), outcomes_B, rates_B, mask, omega="grpo"), logps)
    advantages_B = grpo_advantages(outcomes_B, groups_B, torch.ones(8, dtype=torch.bool), eps=1e-12)
    # NFT's weight has the deviation over K, GRPO's code the one over K - 1.
    advantages_B = advantages_B * math.sqrt(4 / 3)
    grpo = ppo_clip_loss(logps, logps.detach(), advantages_B[:, None].expand_as(mask), mask)
    torch.testing.assert_close(nft, gradient(grpo, logps))


def test_rft_is_nft_without_its_wrong_responses() -> None:
    logps, mask, outcomes_B, _, rates_B = rollout_of_two_groups([1, 0, 0, 0, 1, 1, 0, 1])
    options: dict[str, Any] = {"omega": "none", "neg_weight": 0.0}
    rft = gradient(nft_loss(logps, logps.detach(), outcomes_B, rates_B, mask, **options), logps)
    likelihood = reinforce_loss(logps, outcomes_B[:, None].expand_as(mask), mask)
    torch.testing.assert_close(rft, gradient(likelihood, logps))


def test_nft_golden_off_policy() -> None:
    logps = torch.tensor([[math.log(1.5)], [math.log(0.8)], [math.log(3.0)]], requires_grad=True)
    old, mask = torch.zeros(3, 1), torch.ones(3, 1)
    rates = torch.tensor([0.25, 0.5, 0.5])
    result = nft_loss(logps, old, torch.tensor([1.0, 0.0, 0.0]), rates, mask, omega="none")
    # Right: -log 1.5. Wrong: x = (1 - 0.4) / 0.5 = 1.2, and (1 - 1.5) / 0.5 = -1, whose value stops at 1.
    assert result.value.item() == pytest.approx(-(math.log(1.5) + math.log(1.2)) / 3)
    torch.testing.assert_close(
        gradient(result, logps), torch.tensor([[-1.0], [1 * 0.8 / 1.2], [1 * 3.0 / 1.0]]) / 3
    )
    assert result.metrics["negative_floor"].item() == pytest.approx(1 / 3)
    lower = nft_loss(logps, old, torch.tensor([1.0, 0.0, 0.0]), rates, mask, omega="none", eps=0.5)
    assert lower.value.item() == pytest.approx(-(math.log(1.5) + math.log(1.2) + math.log(0.5)) / 3)


@pytest.mark.parametrize("poison", [-1.0, 1.5, math.nan])
def test_nft_refuses_outcomes_that_are_no_fractions(poison: float) -> None:
    logps, mask, outcomes_B, _, rates_B = rollout_of_two_groups([1, 0, 0, 0, 1, 1, 0, 1])
    outcomes_B[2] = poison
    with pytest.raises(ValueError, match=r"outcomes must lie in \[0, 1\]"):
        nft_loss(logps, logps.detach(), outcomes_B, rates_B, mask)
    mask[2] = 0  # a response that is not learned from may have none
    assert nft_loss(logps, logps.detach(), outcomes_B, rates_B, mask).value.isfinite()


def test_nft_refuses_unknown_choices() -> None:
    logps, mask, outcomes_B, _, rates_B = rollout_of_two_groups([1, 0, 0, 0, 1, 1, 0, 1])
    with pytest.raises(ValueError, match="none of drgrpo, grpo, none"):
        nft_loss(logps, logps, outcomes_B, rates_B, mask, omega="rloo")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="eps must be above 0"):
        nft_loss(logps, logps, outcomes_B, rates_B, mask, eps=0.0)


def test_verifree_golden() -> None:
    logps = torch.tensor([[-1.0, -2.0, -0.5], [-3.0, -9.0, -9.0]], requires_grad=True)
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    reference = torch.tensor([[0, 0, 1], [0, 0, 0]])
    result = verifree_loss(logps, torch.tensor([0.4, -0.4]), torch.tensor([0.6, math.nan]), mask, reference)
    assert result.value.item() == pytest.approx((-0.4 * -3 - 0.6 * -0.5 + 0.4 * -3) / 2)
    torch.testing.assert_close(gradient(result, logps), torch.tensor([[-0.4, -0.4, -0.6], [0.4, 0, 0]]) / 2)
    assert result.metrics["reference_share"].item() == 0.25


def test_verifree_is_reinforce_where_there_is_no_reference() -> None:
    logps, mask, *_ = rollout_of_two_groups([1, 0, 0, 0, 1, 1, 0, 1])
    advantages_B = torch.randn(8)
    none = torch.zeros_like(mask)
    ours = gradient(verifree_loss(logps, advantages_B, torch.rand(8), mask, none), logps)
    plain = reinforce_loss(
        logps, advantages_B[:, None].expand_as(mask), mask, aggregation="seq-mean-token-sum"
    )
    torch.testing.assert_close(ours, gradient(plain, logps))
