"""REINFORCE leave-one-out (arXiv:2402.14740).

Shape suffixes: B responses.
"""

import torch
from torch import Tensor

from guerdon_trainer.advantages.groups import grouped


def rloo_advantages(rewards_B: Tensor, groups_B: Tensor, valid_B: Tensor) -> Tensor:
    """r_i minus the mean reward of the other responses to the same prompt, shape (B,).

    Arguments are those of `grpo_advantages`.
    """
    groups = grouped(groups_B, valid_B, rewards_B.dtype)
    advantages_B = groups.usable_only(rewards_B - groups.mean_of_others(rewards_B))
    return torch.where(groups.uniform(rewards_B), 0, advantages_B)
