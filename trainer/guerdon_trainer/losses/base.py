"""What every loss returns, and the arithmetic they share.

Shape suffixes: B sequences, T response tokens (padded right).
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Loss:
    """A scalar to call `.backward()` on, and detached means to log under the same names.

    `count` is the number of sequences or tokens that `metrics` are means over: their weight among micro-batches.
    """

    value: Tensor
    metrics: dict[str, Tensor]
    count: Tensor


@dataclass(frozen=True)
class Clipped:
    """A clipped surrogate, and where a bound took the gradient away."""

    objective: Tensor
    bound: Tensor


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float, delta: float | None = None
) -> Clipped:
    """min(min(R, delta) A, clip(R, 1 - clip_low, 1 + clip_high) A), of any shape.

    `delta`, where given, also bounds the ratio of a negative advantage (TRL's two-sided clipping).

    Raises:
        ValueError: `delta` is not greater than 1.
    """
    if delta is not None and delta <= 1:
        raise ValueError(f"delta must be greater than 1, not {delta}")
    held = ratio if delta is None else ratio.clamp(max=delta)
    free, clipped = held * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    objective = torch.minimum(free, clipped)
    return Clipped(objective, bound=objective != ratio * advantages)


def bounded_exp(log_ratio: Tensor, *, bound: float) -> Tensor:
    """exp of a log-ratio whose value is held in [-bound, bound] while its gradient passes straight through.

    A plain clamp has no gradient beyond the bound, just where a ratio with a negative advantage has to come down;
    no bound at all gives inf, and 0 * inf = NaN in every parameter.
    """
    held = log_ratio.clamp(-bound, bound)
    return (log_ratio + (held - log_ratio).detach()).exp()


def masked(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`values_BT` with zeros outside the mask, whatever stood there: where(), since 0 * NaN is NaN."""
    return torch.where(mask_BT.bool(), values_BT, torch.zeros_like(values_BT))


def row_means(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean over each row's unmasked tokens, shape (B,); an empty row gives 0."""
    lengths_B = mask_BT.sum(-1)
    return masked(values_BT, mask_BT).sum(-1) / lengths_B.clamp(min=1)


def share(selected: Tensor, mask: Tensor) -> Tensor:
    """The fraction of unmasked entries that are selected; 0 when everything is masked."""
    mask = mask.bool()
    return (selected.bool() & mask).sum() / mask.sum().clamp(min=1)
