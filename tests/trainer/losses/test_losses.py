"""Golden values and gradients worked out by hand, and the rules every loss keeps."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from guerdon_trainer.losses import Loss, gspo_loss, gspo_token_loss, ppo_clip_loss
from guerdon_trainer.losses.aggregate import aggregate
from guerdon_trainer.losses.kl import kl_estimate


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


@LOSSES
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_nothing_outside_the_mask_matters(loss: Call, poison: float) -> None:
    mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    advantages = torch.tensor([1.0, -1.0])
    results = []
    for filler in (0.0, poison):
        logps = torch.tensor([[-1.0, -2.0, filler], [-0.5, filler, filler]], requires_grad=True)
        old = torch.tensor([[-1.0001, -2.0, filler], [-0.5001, filler, filler]])
        result = loss(logps, old, advantages, mask)
        results.append((result.value.item(), gradient(result, logps)))
    assert results[0][0] == results[1][0]
    torch.testing.assert_close(results[0][1], results[1][1], rtol=0, atol=0)


@LOSSES
def test_an_empty_response_contributes_nothing_and_is_not_counted(loss: Call) -> None:
    logps = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]], requires_grad=True)
    mask = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    advantages = torch.tensor([0.7, 5.0])
    both = loss(logps, logps.detach(), advantages, mask)
    alone = loss(logps[:1], logps[:1].detach(), advantages[:1], mask[:1])
    assert both.value.item() == pytest.approx(alone.value.item())
    assert (gradient(both, logps)[1] == 0).all()


@LOSSES
def test_a_batch_of_empty_responses_is_zero(loss: Call) -> None:
    logps = torch.zeros(2, 3, requires_grad=True)
    result = loss(logps, torch.zeros(2, 3), torch.ones(2), torch.zeros(2, 3))
    assert result.value.item() == 0.0
    assert (gradient(result, logps) == 0).all()


@LOSSES
def test_micro_batches_with_a_global_denominator_equal_the_full_batch(loss: Call) -> None:
    torch.manual_seed(0)
    logps = (-torch.rand(6, 5)).requires_grad_()
    old = logps.detach() + 0.1 * torch.randn(6, 5)
    mask = (torch.arange(5) < torch.tensor([5, 3, 0, 1, 4, 2])[:, None]).float()
    advantages = torch.randn(6)
    full = gradient(loss(logps, old, advantages, mask), logps).clone()
    logps.grad = None
    for rows in (slice(0, 1), slice(1, 4), slice(4, 6)):
        loss(logps[rows], old[rows], advantages[rows], mask[rows], denominator=5.0).value.backward()
    torch.testing.assert_close(logps.grad, full)


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
