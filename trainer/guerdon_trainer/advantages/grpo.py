"""Group-relative advantages: GRPO (arXiv:2402.03300) and Dr.GRPO (arXiv:2503.20783).

Shape suffixes: B responses.
"""

from typing import Literal

import torch
from torch import Tensor

from guerdon_trainer.advantages.groups import grouped


def grpo_advantages(
    rewards_B: Tensor,
    groups_B: Tensor,
    valid_B: Tensor,
    *,
    scale: Literal["std", "batch_std", "none"] = "std",
    eps: float = 1e-6,
    min_std: float = 0.0,
) -> Tensor:
    """(r - mean) / (std + eps) within each group, shape (B,).

    Args:
        rewards_B: one reward per response; ignored where not valid.
        groups_B: which prompt each response answers.
        valid_B: false where no reward came.
        scale: `std` divides by the group's unbiased standard deviation (GRPO), `batch_std` by the batch's,
            `none` does not divide (Dr.GRPO).
        eps: added to the standard deviation. verl uses 1e-6, TRL 1e-4; it matters where rewards hardly differ.
        min_std: a group with a smaller unbiased standard deviation gets 0, whatever the scale (RLPR: 1e-6).

    Raises:
        ValueError: an unknown scale.
    """
    groups = grouped(groups_B, valid_B, rewards_B.dtype)
    rewards_B = torch.where(groups.valid_B, rewards_B, torch.zeros_like(rewards_B))
    std_B = groups.std(rewards_B)
    # A uniform group is exactly 0: rounding in its mean must not be blown up by the tiny deviation that it makes.
    silent_B = ~groups.usable_B | groups.uniform(rewards_B) | (std_B < min_std)
    centred_B = torch.where(silent_B, 0, rewards_B - groups.mean(rewards_B))
    if scale == "none":
        return centred_B
    if scale == "std":
        return centred_B / (std_B + eps)
    if scale == "batch_std":
        valid = rewards_B[groups.valid_B]
        return centred_B / (valid.std() + eps) if len(valid) > 1 else torch.zeros_like(centred_B)
    raise ValueError(f"scale {scale!r} is none of std, batch_std, none")
