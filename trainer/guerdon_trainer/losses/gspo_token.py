"""GSPO-token (arXiv:2507.18071, equations 13 and 14): the sequence ratio with an advantage per token.

With the same advantage on every token of a sequence it has the value and the gradient of `gspo_loss`.

Shape suffixes: B sequences, T response tokens (padded right).
"""

import torch
from torch import Tensor

from guerdon_trainer.losses.aggregate import aggregate
from guerdon_trainer.losses.base import Loss, bounded_exp, clipped_surrogate, masked, row_means, share
from guerdon_trainer.losses.gspo import LOG_RATIO_BOUND


def gspo_token_loss(
    logps_BT: Tensor,
    old_logps_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    delta: float | None = None,
    denominator: float | None = None,
) -> Loss:
    """The clipped objective with s_it = sg[s_i] * exp(lp_it - sg[lp_it]), token means averaged over sequences.

    Arguments are those of `gspo_loss`, but for `advantages_BT`: one advantage per token.
    """
    logps_BT = masked(logps_BT, mask_BT)
    log_ratio_B = row_means(logps_BT.detach() - old_logps_BT, mask_BT)
    ratio_B = bounded_exp(log_ratio_B, bound=LOG_RATIO_BOUND)
    # Every token carries the value of its sequence's ratio and its own gradient.
    ratio_BT = ratio_B[:, None] * (logps_BT - logps_BT.detach()).exp()
    clipped = clipped_surrogate(ratio_BT, masked(advantages_BT, mask_BT), clip_low, clip_high, delta)
    with torch.no_grad():
        metrics = {
            "ratio_mean": masked(ratio_BT, mask_BT).sum() / mask_BT.sum().clamp(min=1),
            "clip_fraction": share(clipped.bound, mask_BT),
        }
    value = aggregate(-clipped.objective, mask_BT, "seq-mean-token-mean", denominator=denominator)
    return Loss(value=value, metrics=metrics, count=mask_BT.sum())
