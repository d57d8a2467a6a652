"""REINFORCE leave-one-out (arXiv:2402.14740).

Shape suffixes: B responses.
"""

from torch import Tensor

from guerdon_trainer.advantages.groups import grouped


def rloo_advantages(rewards_B: Tensor, groups_B: Tensor, valid_B: Tensor) -> Tensor:
    """r_i minus the mean reward of the other responses to the same prompt, shape (B,).

    Arguments are those of `grpo_advantages`.
    """
    return grouped(groups_B, valid_B, rewards_B.dtype).leave_one_out(rewards_B)
