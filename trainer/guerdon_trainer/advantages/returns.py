"""Returns and whitening over response tokens.

Shape suffixes: B responses, T response tokens (padded right).
"""

import torch
from torch import Tensor

from guerdon_trainer.losses.base import masked


def returns_to_go(rewards_BT: Tensor, mask_BT: Tensor, gamma: float) -> Tensor:
    """sum_{s >= t} gamma^(tokens from t to s) r_s over the tokens of the mask, 0 outside it.

    A gap in the mask, as the tokens of a tool make one, is crossed: what lies behind it reaches what lies before,
    and only the response's own tokens count as steps.
    """
    rewards_BT = masked(rewards_BT, mask_BT)
    if gamma == 1.0:
        return masked(rewards_BT.flip(-1).cumsum(-1).flip(-1), mask_BT)
    returns_BT = torch.zeros_like(rewards_BT)
    running_B = rewards_BT.new_zeros(rewards_BT.shape[0])
    for t in reversed(range(rewards_BT.shape[1])):
        running_B = torch.where(mask_BT[:, t].bool(), rewards_BT[:, t] + gamma * running_B, running_B)
        returns_BT[:, t] = running_B
    return masked(returns_BT, mask_BT)


def on_last_token(values_B: Tensor, mask_BT: Tensor) -> Tensor:
    """Each value at the last token of its row, shape (B, T); an empty row has no place for it."""
    left_BT = mask_BT.bool().flip(-1).cumsum(-1).flip(-1)  # tokens from here on
    return masked(values_B[:, None].expand(mask_BT.shape), mask_BT.bool() & (left_BT == 1))


def whitened(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Zero mean and unit (unbiased) variance over the mask, 0 outside it; unchanged with fewer than two tokens.

    Equal values are exactly 0: the rounding of their mean must not be divided by their deviation.
    """
    values = values_BT[mask_BT.bool()]
    if len(values) < 2:
        return masked(values_BT, mask_BT)
    if values.min() == values.max():
        return torch.zeros_like(values_BT)
    return masked((values_BT - values.mean()) * torch.rsqrt(values.var() + 1e-8), mask_BT)
