"""REINFORCE++ and its group baseline (arXiv:2501.03262): returns whitened over the tokens of the batch.

Shape suffixes: B responses, T response tokens (padded right).
"""

from typing import Literal

import torch
from torch import Tensor

from guerdon_trainer.advantages.groups import grouped
from guerdon_trainer.advantages.returns import on_last_token, returns_to_go, whitened
from guerdon_trainer.losses.base import masked


def reinforce_pp_advantages(
    rewards_B: Tensor,
    mask_BT: Tensor,
    groups_B: Tensor,
    valid_B: Tensor,
    *,
    token_rewards_BT: Tensor | None = None,
    baseline: Literal["batch", "group"] = "batch",
    gamma: float = 1.0,
    whiten: bool = True,
) -> Tensor:
    """Discounted returns of token rewards and of the reward on the last token, shape (B, T), 0 on padding.

    Args:
        rewards_B, groups_B, valid_B: see `grpo_advantages`; a reward stands on its response's last token.
        mask_BT: 1 on response tokens, 0 on padding.
        token_rewards_BT: further rewards per token: process rewards, or minus a KL penalty.
        baseline: `batch` is REINFORCE++: whitening alone centres, single responses and uniform groups too. `group`
            subtracts the group's mean first (REINFORCE++-baseline): what cannot be compared stays out.
        gamma, whiten: discount per response token; centre and scale over all tokens of the batch.

    Raises:
        ValueError: an unknown baseline.
    """
    groups = grouped(groups_B, valid_B, rewards_B.dtype)
    rewards_B = torch.where(groups.valid_B, rewards_B, torch.zeros_like(rewards_B))
    compared_B = groups.valid_B
    if baseline == "group":
        compared_B = groups.usable_B
        if token_rewards_BT is None:
            compared_B = compared_B & ~groups.uniform(rewards_B)
        rewards_B = rewards_B - groups.mean(rewards_B)
    elif baseline != "batch":
        raise ValueError(f"baseline {baseline!r} is neither batch nor group")
    mask_BT = mask_BT.bool() & compared_B[:, None]
    rewards_BT = on_last_token(rewards_B, mask_BT)
    if token_rewards_BT is not None:  # masked first: garbage of padding would flow into every earlier token
        rewards_BT = rewards_BT + masked(token_rewards_BT, mask_BT)
    returns_BT = returns_to_go(rewards_BT, mask_BT, gamma)
    return whitened(returns_BT, mask_BT) if whiten else returns_BT
