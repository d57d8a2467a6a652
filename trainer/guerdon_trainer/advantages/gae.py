"""Generalised advantage estimation (arXiv:1506.02438), for a critic of one's own: no recipe has one.

Shape suffixes: B responses, T response tokens (padded right).
"""

import torch
from torch import Tensor

from guerdon_trainer.advantages.returns import whitened
from guerdon_trainer.losses.base import masked


def gae_advantages(
    token_rewards_BT: Tensor,
    values_BT: Tensor,
    mask_BT: Tensor,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    whiten: bool = True,
) -> tuple[Tensor, Tensor]:
    """Advantages and returns, both (B, T) and 0 outside the mask; a gap in the mask is crossed.

    Args:
        token_rewards_BT: a reward per token.
        values_BT: the critic's value of the state before each token.
        mask_BT: 1 on response tokens, 0 on padding.
        gamma, lam: discount, and weight of later temporal differences.
        whiten: centre and scale the advantages over all tokens of the batch.
    """
    mask_BT = mask_BT.bool()
    rewards_BT, values_BT = masked(token_rewards_BT, mask_BT), masked(values_BT, mask_BT)
    advantages_BT = torch.zeros_like(values_BT)
    next_value_B = running_B = values_BT.new_zeros(values_BT.shape[0])
    for t in reversed(range(values_BT.shape[1])):
        difference_B = rewards_BT[:, t] + gamma * next_value_B - values_BT[:, t]
        running_B = torch.where(mask_BT[:, t], difference_B + gamma * lam * running_B, running_B)
        next_value_B = torch.where(mask_BT[:, t], values_BT[:, t], next_value_B)
        advantages_BT[:, t] = running_B
    advantages_BT = masked(advantages_BT, mask_BT)
    returns_BT = advantages_BT + values_BT
    return (whitened(advantages_BT, mask_BT) if whiten else advantages_BT), returns_BT
