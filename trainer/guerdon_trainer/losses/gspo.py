"""Group Sequence Policy Optimization (arXiv:2507.18071, equations 5 and 7).

Shape suffixes: B sequences, T response tokens (padded right).
"""

import torch
from torch import Tensor

from guerdon_trainer.losses.base import Loss, bounded_exp, clipped_surrogate, row_means, share

#: Largest absolute mean log-ratio, in nats. Ratios of e^10 are far outside any clip range.
LOG_RATIO_BOUND = 10.0


def gspo_loss(
    logps_BT: Tensor,
    old_logps_BT: Tensor,
    advantages_B: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    delta: float | None = None,
    denominator: float | None = None,
) -> Loss:
    """The clipped sequence-level objective, averaged over the non-empty sequences.

    Args:
        logps_BT: log-probabilities (nats, fp32) under the policy being trained; carries the gradient.
        old_logps_BT: the same tokens under the policy that sampled them.
        advantages_B: one advantage per sequence.
        mask_BT: 1 on response tokens, 0 on padding.
        clip_low: the ratio is held above 1 - clip_low where the advantage is negative.
        clip_high: the ratio is held below 1 + clip_high where the advantage is positive.
        delta: upper bound, greater than 1, of the ratio where the advantage is negative (TRL's two-sided clipping).
        denominator: the number of non-empty sequences of the whole mini-batch; default, of this tensor.
    """
    # s_i = (pi(y_i) / pi_old(y_i)) ** (1 / |y_i|): the length-normalised sequence ratio, equation 7.
    log_ratio_B = row_means(logps_BT - old_logps_BT, mask_BT)
    ratio_B = bounded_exp(log_ratio_B, bound=LOG_RATIO_BOUND)
    clipped = clipped_surrogate(ratio_B, advantages_B, clip_low, clip_high, delta)
    filled_B = mask_BT.bool().any(-1)
    objective_B = torch.where(filled_B, clipped.objective, torch.zeros_like(clipped.objective))
    count = filled_B.sum().clamp(min=1) if denominator is None else denominator
    with torch.no_grad():
        metrics = {
            "ratio_mean": torch.where(filled_B, ratio_B, 0).sum() / filled_B.sum().clamp(min=1),
            # Only where the clip binds, that is, where it removes the gradient.
            "clip_fraction": share(clipped.bound, filled_B),
        }
    return Loss(value=-objective_B.sum() / count, metrics=metrics, count=filled_B.sum())
