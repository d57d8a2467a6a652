"""PPO's clipped surrogate (arXiv:1707.06347, equation 7), with DAPO's clip-higher (arXiv:2503.14476) and dual clip.

It serves PPO, GRPO and DAPO; PRIME's paper uses it with process advantages.

Shape suffixes: B sequences, T response tokens (padded right).
"""

import torch
from torch import Tensor

from guerdon_trainer.losses.aggregate import Aggregation, aggregate
from guerdon_trainer.losses.base import Loss, bounded_exp, clipped_surrogate, masked, share

#: Largest absolute token log-ratio, in nats.
LOG_RATIO_BOUND = 20.0


def ppo_clip_loss(
    logps_BT: Tensor,
    old_logps_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    delta: float | None = None,
    aggregation: Aggregation = "token-mean",
    norm: float | None = None,
    denominator: float | None = None,
) -> Loss:
    """The token-level clipped objective.

    Arguments are those of `gspo_loss`, with one advantage and one ratio per token, and:
        dual_clip: upper bound, greater than 1, of the ratio where the advantage is negative (arXiv:1912.09729). It
            overrides the clip where it is tighter; `delta` yields to it. Above 1 + clip_high they are the same.
        aggregation, norm, denominator: how token losses become one number, see `aggregate`.

    Raises:
        ValueError: `dual_clip` is not greater than 1.
    """
    if dual_clip is not None and dual_clip <= 1:
        raise ValueError(f"dual_clip must be greater than 1, not {dual_clip}")
    log_ratio_BT = masked(logps_BT - old_logps_BT, mask_BT)
    ratio_BT = bounded_exp(log_ratio_BT, bound=LOG_RATIO_BOUND)
    advantages_BT = masked(advantages_BT, mask_BT)
    objective_BT = clipped_surrogate(ratio_BT, advantages_BT, clip_low, clip_high, delta).objective
    if dual_clip is not None:
        floor_BT = dual_clip * advantages_BT
        objective_BT = torch.where(advantages_BT < 0, torch.maximum(objective_BT, floor_BT), objective_BT)
    with torch.no_grad():
        metrics = {
            "ratio_mean": masked(ratio_BT, mask_BT).sum() / mask_BT.sum().clamp(min=1),
            "clip_fraction": share(objective_BT != ratio_BT * advantages_BT, mask_BT),
        }
    value = aggregate(-objective_BT, mask_BT, aggregation, norm=norm, denominator=denominator)
    return Loss(value=value, metrics=metrics, count=mask_BT.sum())
