"""Negative-aware fine-tuning (NFT, arXiv:2505.18116), token level; RFT is the case `neg_weight` 0.

Right responses raise log R. Wrong ones raise the log-likelihood ratio of the implicit negative policy,
(1 - r R) / (1 - r), where R is the token's probability ratio and r how often the group is right. A correctness o that
is a fraction counts as that much of a right and of a wrong response. A group without contrast, r 0 or 1, gives nothing.

Settings: `omega` weighs a group (`drgrpo` 1 - r, `grpo` sqrt((1 - r) / r), `none` 1); `neg_weight` weighs wrong
responses; `eps` is the least x = (1 - r R) / (1 - r), `eps_positive` the least R in log R.

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
        logps_BT, old_logps_BT: log-probabilities (nats, fp32) under the policy trained and the one that sampled.
        outcomes_B, rates_B: o and r, in [0, 1]; rates are those of `advantages.group_rates`.
        mask_BT: 1 on response tokens, 0 on padding.
        aggregation, norm, denominator: see `aggregate`.

    Raises:
        ValueError: an unknown omega, `eps` not above 0, or an outcome or rate outside [0, 1].
    """
    filled_B = mask_BT.bool().any(-1)
    rates_B = _fractions("rate", rates_B, filled_B)
    outcome_B1 = _fractions("outcome", outcomes_B, filled_B)[:, None]
    contrast_B1 = (filled_B & (rates_B > 0) & (rates_B < 1))[:, None]
    rate_B1 = rates_B.clamp(*RATE_BOUNDS)[:, None]
    # Held from above only: towards 0 the ratio vanishes and log R stays finite.
    log_ratio_BT = _held(masked(logps_BT - old_logps_BT, mask_BT), most=LOG_RATIO_BOUND)
    ratio_BT = log_ratio_BT.exp()
    right_BT = -log_ratio_BT if eps_positive == 0 else -_held(ratio_BT, least=eps_positive).log()
    implicit_BT = (1 - rate_B1 * ratio_BT) / (1 - rate_B1)
    wrong_BT = -_held(implicit_BT, least=_positive(eps)).log()
    losses_BT = _weights(rate_B1, omega) * (outcome_B1 * right_BT + (1 - outcome_B1) * neg_weight * wrong_BT)
    losses_BT = masked(losses_BT, contrast_B1.expand(mask_BT.shape))
    metrics = {
        "ratio_mean": masked(ratio_BT.detach(), mask_BT).sum() / mask_BT.sum().clamp(min=1),
        # Tokens of wrong responses whose value, not gradient, stands still.
        "negative_floor": share((implicit_BT < eps) & (outcome_B1 < 1), mask_BT),
    }
    value = aggregate(losses_BT, mask_BT, aggregation, norm=norm, denominator=denominator)
    return Loss(value, metrics, count=mask_BT.sum())


def _weights(rate_B1: Tensor, omega: Omega) -> Tensor:
    if omega == "drgrpo":
        return 1 - rate_B1
    if omega == "grpo":
        return ((1 - rate_B1) / rate_B1).sqrt()
    if omega == "none":
        return torch.ones_like(rate_B1)
    raise ValueError(f"omega {omega!r} is none of {', '.join(get_args(Omega))}")


def _held(values_BT: Tensor, *, least: float | None = None, most: float | None = None) -> Tensor:
    """The values held between bounds, with a gradient that passes straight through."""
    return values_BT.clamp(least, most).detach() + (values_BT - values_BT.detach())


def _positive(eps: float) -> float:
    if eps <= 0:
        raise ValueError(f"eps must be above 0, not {eps}")
    return eps


def _fractions(name: str, values_B: Tensor, filled_B: Tensor) -> Tensor:
    # Rewards of -1 and 1 would be taken for a rate of their own: every group half right would count as never right.
    values_B = torch.where(filled_B, values_B.float(), 0)
    if not ((values_B >= 0) & (values_B <= 1)).all():
        raise ValueError(f"{name}s must lie in [0, 1], for every response that is learned from")
    return values_B
