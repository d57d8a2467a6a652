"""From token losses to one number.

Empty rows contribute nothing and are not counted. `denominator` replaces the count found in this tensor: pass the
count of the whole mini-batch (rows for the seq-* modes, tokens for token-mean), divided by the number of ranks
where gradients are averaged over ranks, and the sum over micro-batches equals the full batch exactly.

Shape suffixes: B sequences, T response tokens (padded right).
"""

from typing import Literal, get_args

from torch import Tensor

from guerdon_trainer.losses.base import masked, row_means

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


def aggregate(
    losses_BT: Tensor,
    mask_BT: Tensor,
    mode: Aggregation,
    *,
    denominator: float | None = None,
    norm: float | None = None,
) -> Tensor:
    """Reduce token losses to a scalar.

    Args:
        losses_BT: one loss per token; anything outside the mask is ignored, NaN included.
        mask_BT: 1 on response tokens, 0 on padding.
        mode: `token-mean` (DAPO), `seq-mean-token-mean` (GRPO, GSPO), `seq-mean-token-sum`, or
            `seq-mean-token-sum-norm` (Dr.GRPO: token sums divided by the constant `norm`, mean over rows).
        denominator: see the module docstring.
        norm: the constant of Dr.GRPO, in tokens; required by that mode and refused by the others.

    Raises:
        ValueError: an unknown mode, or `norm` given or missing against the mode.
    """
    if mode not in get_args(Aggregation):
        raise ValueError(f"aggregation {mode!r} is none of {', '.join(get_args(Aggregation))}")
    if (norm is not None) != (mode == "seq-mean-token-sum-norm"):
        raise ValueError("norm belongs to the aggregation seq-mean-token-sum-norm, and only to it")
    if mode == "token-mean":
        count = mask_BT.sum().clamp(min=1) if denominator is None else denominator
        return masked(losses_BT, mask_BT).sum() / count
    if mode == "seq-mean-token-mean":
        rows_B = row_means(losses_BT, mask_BT)
    else:
        rows_B = masked(losses_BT, mask_BT).sum(-1) / (1.0 if norm is None else norm)
    count = mask_BT.bool().any(-1).sum().clamp(min=1) if denominator is None else denominator
    return rows_B.sum() / count
