"""Rules that every loss keeps; docs/papers/mistakes.md numbers them and says who broke them."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

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


def spread(values_B: Tensor, mask_BT: Tensor) -> Tensor:
    return values_B[:, None].expand(mask_BT.shape)


def gspo(logps: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, **kw: Any) -> Loss:
    return gspo_loss(logps, old, advantages, mask, **kw)


def gspo_token(logps: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, **kw: Any) -> Loss:
    return gspo_token_loss(logps, old, spread(advantages, mask), mask, **kw)


def ppo_clip(logps: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, **kw: Any) -> Loss:
    return ppo_clip_loss(logps, old, spread(advantages, mask), mask, **kw)


def reinforce(logps: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, **kw: Any) -> Loss:
    return reinforce_loss(logps, spread(advantages, mask), mask, **kw)


def nft(logps: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, **kw: Any) -> Loss:
    """A response with a positive advantage is a right one of a group that is half right."""
    rates = torch.full_like(advantages, 0.5)
    return nft_loss(logps, old, (advantages > 0).float(), rates, mask, **kw)


def verifree(logps: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, **kw: Any) -> Loss:
    """The second token of each row and all after it are a reference of probability 0.3."""
    reference = mask.bool() & (torch.arange(mask.shape[1]) > 0)
    return verifree_loss(logps, advantages, torch.full_like(advantages, 0.3), mask, reference, **kw)


Call = Callable[..., Loss]
SEQUENCE: tuple[Call, ...] = (gspo, gspo_token)
AGGREGATED: tuple[Call, ...] = (ppo_clip, reinforce, nft, verifree)
WITH_RATIO = pytest.mark.parametrize("loss", [gspo, gspo_token, ppo_clip, nft])
#: Every loss in every aggregation that it has.
EVERY = pytest.mark.parametrize(
    ("loss", "options"),
    [
        *[pytest.param(loss, {}, id=loss.__name__) for loss in SEQUENCE],
        *[
            pytest.param(loss, options, id=f"{loss.__name__}-{options['aggregation']}")
            for loss in AGGREGATED
            for options in (
                {"aggregation": "token-mean"},
                {"aggregation": "seq-mean-token-mean"},
                {"aggregation": "seq-mean-token-sum"},
                {"aggregation": "seq-mean-token-sum-norm", "norm": 7.0},
            )
        ],
    ],
)


def gradient(loss: Loss, logps: Tensor) -> Tensor:
    logps.grad = None
    loss.value.backward()
    assert logps.grad is not None
    return logps.grad.clone()


@EVERY
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_rule_1_nothing_outside_the_mask_matters(loss: Call, options: dict[str, Any], poison: float) -> None:
    mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    advantages = torch.tensor([1.0, -1.0])
    results = []
    for filler in (0.0, poison):
        logps = torch.tensor([[-1.0, -2.0, filler], [-0.5, filler, filler]], requires_grad=True)
        old = torch.tensor([[-1.0001, -2.0, filler], [-0.5001, filler, filler]])
        result = loss(logps, old, advantages, mask, **options)
        results.append((result.value.item(), gradient(result, logps)))
    assert results[0][0] == results[1][0]
    torch.testing.assert_close(results[0][1], results[1][1], rtol=0, atol=0)


@EVERY
def test_rule_2_an_empty_response_contributes_nothing_and_is_not_counted(
    loss: Call, options: dict[str, Any]
) -> None:
    logps = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]], requires_grad=True)
    mask = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    advantages = torch.tensor([0.7, 5.0])
    both = loss(logps, logps.detach(), advantages, mask, **options)
    alone = loss(logps[:1], logps[:1].detach(), advantages[:1], mask[:1], **options)
    assert both.value.item() == pytest.approx(alone.value.item())
    assert (gradient(both, logps)[1] == 0).all()


@EVERY
def test_rule_2_a_batch_of_empty_responses_is_zero(loss: Call, options: dict[str, Any]) -> None:
    logps = torch.zeros(2, 3, requires_grad=True)
    result = loss(logps, torch.zeros(2, 3), torch.ones(2), torch.zeros(2, 3), **options)
    assert result.value.item() == 0.0
    assert (gradient(result, logps) == 0).all()
    assert all(value.isfinite() for value in result.metrics.values())


@WITH_RATIO
@pytest.mark.parametrize("far", [30.0, 900.0])
def test_rule_4_a_huge_ratio_keeps_a_finite_gradient_that_points_down(loss: Call, far: float) -> None:
    logps = torch.tensor([[-1.0, -1.0]], requires_grad=True)
    result = loss(logps, logps.detach() - far, torch.tensor([-1.0]), torch.ones(1, 2))
    assert result.value.isfinite()
    slope = gradient(result, logps)
    assert slope.isfinite().all()
    assert (slope > 0).all()  # descending lowers the log-probabilities


@WITH_RATIO
def test_rule_4_a_ratio_of_nothing_is_finite(loss: Call) -> None:
    logps = torch.tensor([[-900.0, -900.0]], requires_grad=True)
    for advantage in (1.0, -1.0):
        result = loss(logps, torch.zeros(1, 2), torch.tensor([advantage]), torch.ones(1, 2))
        assert result.value.isfinite()
        assert gradient(result, logps).isfinite().all()


def test_rule_4_a_kl_term_of_a_policy_that_went_astray_pulls_it_back() -> None:
    logps = torch.tensor([-500.0, 0.0], requires_grad=True)
    estimate = kl_estimate(logps, torch.tensor([0.0, -500.0]), "k3+")
    assert estimate.isfinite().all()
    estimate.sum().backward()
    assert logps.grad is not None
    assert logps.grad.tolist() == [-20.0, 20.0]


@EVERY
def test_rule_5_micro_batches_with_a_global_denominator_equal_the_full_batch(
    loss: Call, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    logps = (-torch.rand(6, 5)).requires_grad_()
    old = logps.detach() + 0.1 * torch.randn(6, 5)
    mask = (torch.arange(5) < torch.tensor([5, 3, 0, 1, 4, 2])[:, None]).float()
    advantages = torch.randn(6)
    whole = loss(logps, old, advantages, mask, **options)
    full = gradient(whole, logps)
    assert (full != 0).any()
    count = float(mask.sum()) if options.get("aggregation") == "token-mean" else 5.0
    logps.grad = None
    total = torch.zeros(())
    for rows in (slice(0, 1), slice(1, 4), slice(4, 6)):
        part = loss(logps[rows], old[rows], advantages[rows], mask[rows], denominator=count, **options)
        part.value.backward()
        total += part.value.detach()
    torch.testing.assert_close(logps.grad, full)
    torch.testing.assert_close(total, whole.value.detach())


@pytest.mark.parametrize("loss", SEQUENCE)
def test_rule_6_a_sequence_objective_weighs_sequences_alike(loss: Call) -> None:
    # The long response must not count four times as much as the short one.
    mask = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    logps = torch.full((2, 4), -1.0, requires_grad=True)
    slope = gradient(loss(logps, logps.detach(), torch.tensor([1.0, 1.0]), mask), logps)
    torch.testing.assert_close(slope.sum(-1), torch.tensor([-0.5, -0.5]))


def test_rule_11_nft_refuses_rewards_of_minus_one_and_one() -> None:
    # The released code expects -1 and 1; given 0 and 1 it takes a group that is half right for one of 0.75.
    logps, mask = torch.zeros(2, 1), torch.ones(2, 1)
    with pytest.raises(ValueError, match="outcomes must lie in"):
        nft_loss(logps, logps, torch.tensor([-1.0, 1.0]), torch.tensor([0.5, 0.5]), mask)
    with pytest.raises(ValueError, match="rates must lie in"):
        nft_loss(logps, logps, torch.tensor([0.0, 1.0]), torch.tensor([0.5, 1.5]), mask)
