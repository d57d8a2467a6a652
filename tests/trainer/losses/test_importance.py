"""Golden values of truncated importance weights, and what they do to a loss's gradient."""

import math

import pytest
import torch
from torch import Tensor

from guerdon_trainer.losses import gspo_loss, ppo_clip_loss
from guerdon_trainer.losses.importance import importance_weights, truncated, weighted

NAN = float("nan")
ENGINE_BT = torch.tensor([[0.5, 0.5, 0.25, NAN], [0.5, 0.1, NAN, NAN], [NAN, NAN, NAN, NAN]]).log()
TRAINER_BT = torch.tensor([[0.25, 0.75, 0.75, NAN], [0.5, 0.2, NAN, NAN], [NAN, NAN, NAN, NAN]]).log()
MASK_BT = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]], dtype=torch.bool)


def _weights(level: str, cap: float) -> Tensor:
    return importance_weights(TRAINER_BT, ENGINE_BT, MASK_BT, level=level, cap=cap)  # pyright: ignore[reportArgumentType]


def test_token_weights_are_the_ratios_up_to_the_cap() -> None:
    expected = torch.tensor([[0.5, 1.5, 2.0, 0.0], [1.0, 2.0, 0.0, 0.0], [0.0] * 4])
    torch.testing.assert_close(_weights("token", 2.0), expected)
    shares = truncated(_weights("token", 2.0), MASK_BT, 2.0)
    # 0.75 / 0.25 is cut; 0.2 / 0.1 lies at the cap up to rounding.
    assert shares[0].tolist() == [0, 0, 1, 0]


def test_sequence_weights_are_products_on_every_token() -> None:
    # 0.5 * 1.5 * 3 = 2.25 and 1 * 2 = 2.
    expected = torch.tensor([[2.25] * 3 + [0.0], [2.0, 2.0, 0.0, 0.0], [0.0] * 4])
    torch.testing.assert_close(_weights("sequence", 3.0), expected)
    assert _weights("sequence", 1.25).unique().tolist() == [0.0, 1.25]


def test_a_long_response_overflows_nothing() -> None:
    trainer_BT, engine_BT = torch.zeros(2, 4000), torch.tensor([[-1.0], [1.0]]).expand(2, 4000)
    mask_BT = torch.ones(2, 4000, dtype=torch.bool)
    weights_BT = importance_weights(trainer_BT, engine_BT, mask_BT, level="sequence", cap=2.0)
    assert weights_BT[:, 0].tolist() == [2.0, 0.0]


def test_weights_are_detached_whatever_they_are_made_of() -> None:
    trainer_BT = torch.zeros(1, 2, requires_grad=True)
    mask_BT = torch.ones(1, 2, dtype=torch.bool)
    assert not importance_weights(
        trainer_BT, torch.zeros(1, 2), mask_BT, level="token", cap=2.0
    ).requires_grad


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("drift", [0.0, 0.5, -0.5])
def test_the_gradient_of_every_token_is_weighted_by_its_ratio(advantage: float, drift: float) -> None:
    weights_BT = _weights("token", 2.0)
    old_BT = torch.nan_to_num(TRAINER_BT)

    def gradient(advantages_BT: Tensor) -> Tensor:
        logps_BT = (old_BT + drift).requires_grad_()
        ppo_clip_loss(logps_BT, old_BT, advantages_BT, MASK_BT).value.backward()
        assert logps_BT.grad is not None
        return logps_BT.grad

    advantages_BT = torch.full((3, 4), advantage)
    torch.testing.assert_close(
        gradient(weighted(advantages_BT, weights_BT)), gradient(advantages_BT) * weights_BT
    )


def test_one_weight_per_sequence_goes_with_one_advantage_per_sequence() -> None:
    weights_BT = _weights("sequence", 2.0)
    old_BT = torch.nan_to_num(TRAINER_BT)

    def gradient(advantages_B: Tensor) -> Tensor:
        logps_BT = (old_BT + 1e-4).requires_grad_()
        gspo_loss(logps_BT, old_BT, advantages_B, MASK_BT).value.backward()
        assert logps_BT.grad is not None
        return logps_BT.grad

    advantages_B = torch.tensor([1.0, -2.0, NAN])
    torch.testing.assert_close(
        gradient(weighted(advantages_B, weights_BT)), gradient(advantages_B) * weights_BT
    )


def test_the_weighted_gradient_is_that_of_the_trainers_own_policy() -> None:
    # Over all tokens of a vocabulary: samples of mu, weighted, give the expectation under pi exactly.
    mu_V = torch.tensor([0.7, 0.2, 0.1])
    logits_V = torch.tensor([0.3, -0.2, 0.5], requires_grad=True)
    rewards_V = torch.tensor([1.0, 0.0, -1.0])
    logps_V = logits_V.log_softmax(-1)
    (logps_V.exp() * rewards_V).sum().backward()
    assert logits_V.grad is not None
    exact_V = logits_V.grad.clone()

    logits_V.grad = None
    logps_V1 = logits_V.log_softmax(-1)[:, None]
    mask_V1 = torch.ones(3, 1, dtype=torch.bool)
    weights_V1 = importance_weights(logps_V1, mu_V.log()[:, None], mask_V1, level="token", cap=math.inf)
    advantages_V1 = weighted(rewards_V[:, None], weights_V1)
    loss = ppo_clip_loss(logps_V1, logps_V1.detach(), advantages_V1 * 3 * mu_V[:, None], mask_V1)
    loss.value.backward()
    torch.testing.assert_close(logits_V.grad, -exact_V)
