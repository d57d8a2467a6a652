"""Negative-aware fine-tuning (NFT, arXiv:2505.18116), token level; RFT is the case `neg_weight` 0.

Right responses raise log R. Wrong ones raise the log-likelihood ratio of the implicit negative policy,
(1 - r R) / (1 - r), where R is the token's probability ratio and r how often the group is right.

Shape suffixes: B sequences, T response tokens (padded right).
"""

from typing import Literal, get_args

import torch
from torch import Tensor

from guerdon_trainer.losses.aggregate import Aggregation, aggregate
from guerdon_trainer.losses.base import Loss, masked, share

Omega = Literal["drgrpo", "grpo", "none"]

#: Largest token log-ratio, in nats.
LOG_RATIO_BOUND = 10.0
#: The rates of groups that are nearly all right or all wrong are held in this range, as in the released code.
RATE_BOUNDS = (0.02, 0.98)


def nft_loss(
    logps_BT: Tensor,
    old_logps_BT: Tensor,
    outcomes_B: Tensor,
    rates_B: Tensor,
    mask_BT: Tensor,
    *,
    omega: Omega = "drgrpo",
    neg_weight: float = 1.0,
    eps: float = 1.0,
    eps_positive: float = 0.0,
    aggregation: Aggregation = "token-mean",
    norm: float | None = None,
    denominator: float | None = None,
) -> Loss:
    """omega(r) (-o log R - (1 - o) neg_weight log max(x, eps)), x = (1 - r R) / (1 - r).

    The value stops at the bounds (x at eps, log R at 10 nats); the gradient passes straight through both.

    Args:
        logps_BT: log-probabilities (nats, fp32) under the policy being trained; carries the gradient.
        old_logps_BT: the same tokens under the policy that sampled them.
        outcomes_B: correctness in [0, 1]. A fraction counts as that much of a right and of a wrong response, which on
            policy is the gradient of outcome - r.
        rates_B: the mean outcome of each response's group, see `advantages.group_rates`. 0 and 1 stand for a group
            without contrast, which contributes nothing.
        mask_BT: 1 on response tokens, 0 on padding.
        omega: weight of a group. `drgrpo` 1 - r, `grpo` sqrt((1 - r) / r), `none` 1.
        neg_weight: weight of wrong responses; 0 learns from right ones only (RFT).
        eps: least x, and `eps_positive` least R in log R.
        aggregation, norm, denominator: how token losses become one number, see `aggregate`. The released code sums
            tokens over 1000: seq-mean-token-sum-norm, norm 1000, denominator 1.

    Raises:
        ValueError: an unknown omega, `eps` not above 0, or an outcome or rate outside [0, 1].
    """
    if eps <= 0:
        raise ValueError(f"eps must be above 0, not {eps}")
    filled_B = mask_BT.bool().any(-1)
    rates_B, outcomes_B = _fractions("rate", rates_B, filled_B), _fractions("outcome", outcomes_B, filled_B)
    contrast_B = filled_B & (rates_B > 0) & (rates_B < 1)
    rate_B = rates_B.clamp(*RATE_BOUNDS)
    log_ratio_BT = masked(logps_BT - old_logps_BT, mask_BT)
    # Held from above only: towards 0 the ratio vanishes and log R stays finite.
    log_ratio_BT = _held(log_ratio_BT, most=LOG_RATIO_BOUND)
    ratio_BT = log_ratio_BT.exp()
    positive_BT = -log_ratio_BT if eps_positive == 0 else -_held(ratio_BT, least=eps_positive).log()
    implicit_BT = (1 - rate_B[:, None] * ratio_BT) / (1 - rate_B[:, None])
    negative_BT = -_held(implicit_BT, least=eps).log()
    outcome_B1, weight_B1 = outcomes_B[:, None], _weights(rate_B, omega)[:, None]
    losses_BT = weight_B1 * (outcome_B1 * positive_BT + (1 - outcome_B1) * neg_weight * negative_BT)
    losses_BT = torch.where(contrast_B[:, None], losses_BT, torch.zeros_like(losses_BT))
    value = aggregate(losses_BT, mask_BT, aggregation, norm=norm, denominator=denominator)
    with torch.no_grad():
        metrics = {
            "ratio_mean": masked(ratio_BT, mask_BT).sum() / mask_BT.sum().clamp(min=1),
            # Tokens of wrong responses whose value, not gradient, stands still.
            "negative_floor": share((implicit_BT < eps) & (outcome_B1 < 1), mask_BT),
        }
    return Loss(value=value, metrics=metrics, count=mask_BT.sum())


def _weights(rate_B: Tensor, omega: Omega) -> Tensor:
    if omega == "drgrpo":
        return 1 - rate_B
    if omega == "grpo":
        return ((1 - rate_B) / rate_B).sqrt()
    if omega == "none":
        return torch.ones_like(rate_B)
    raise ValueError(f"omega {omega!r} is none of {', '.join(get_args(Omega))}")


def _held(values_BT: Tensor, *, least: float | None = None, most: float | None = None) -> Tensor:
    """The values held between bounds, with a gradient that passes straight through."""
    return values_BT.clamp(least, most).detach() + (values_BT - values_BT.detach())


def _fractions(name: str, values_B: Tensor, filled_B: Tensor) -> Tensor:
    # Rewards of -1 and 1 would be taken for a rate of their own: every group half right would count as never right.
    values_B = torch.where(filled_B, values_B.float(), 0)
    if not ((values_B >= 0) & (values_B <= 1)).all():
        raise ValueError(f"{name}s must lie in [0, 1], for every response that is learned from")
    return values_B
