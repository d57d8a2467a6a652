"""Statistics over the responses of one prompt.

The policy for what has no answer is the same in every estimator: a response without a reward (`valid_B` false) leaves
its group's statistics and gets advantage 0; a group with fewer than two rewards has nothing to compare and gets 0.

Shape suffixes: B responses, G groups.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Groups:
    """The responses that can be compared, and with whom.

    `index_B` numbers the groups from 0; `count_B` is the number of valid responses in each response's group;
    `usable_B` marks valid responses in groups of at least two of them.
    """

    index_B: Tensor
    size: int
    valid_B: Tensor
    count_B: Tensor
    usable_B: Tensor

    def sum(self, values_B: Tensor) -> Tensor:
        """The sum of `values_B` over the valid responses of each response's group, shape (B,)."""
        values_B = torch.where(self.valid_B, values_B, torch.zeros_like(values_B))
        sums_G = values_B.new_zeros(self.size).index_add_(0, self.index_B, values_B)
        return sums_G[self.index_B]

    def mean(self, values_B: Tensor) -> Tensor:
        """The mean over the valid responses of each response's group; 0 where there is none."""
        return self.sum(values_B) / self.count_B.clamp(min=1)

    def mean_of_others(self, values_B: Tensor) -> Tensor:
        """The mean over the other valid responses of the group (leave-one-out); 0 where there is none."""
        own_B = torch.where(self.valid_B, values_B, torch.zeros_like(values_B))
        others_B = self.count_B - self.valid_B.to(values_B.dtype)
        return (self.sum(values_B) - own_B) / others_B.clamp(min=1)

    def std(self, values_B: Tensor) -> Tensor:
        """The unbiased standard deviation over each response's group; 0 with fewer than two rewards."""
        squares_B = self.sum((values_B - self.mean(values_B)).square())
        return (squares_B / (self.count_B - 1).clamp(min=1)).sqrt()

    def uniform(self, values_B: Tensor) -> Tensor:
        """Whether all valid responses of each response's group have exactly one value; true where none is valid."""
        low_B, high_B = (
            torch.where(self.valid_B, values_B, torch.full_like(values_B, empty))
            for empty in (float("inf"), float("-inf"))
        )
        low_G = low_B.new_full((self.size,), float("inf")).scatter_reduce_(0, self.index_B, low_B, "amin")
        high_G = high_B.new_full((self.size,), float("-inf")).scatter_reduce_(0, self.index_B, high_B, "amax")
        return (low_G >= high_G)[self.index_B]

    def leave_one_out(self, values_B: Tensor) -> Tensor:
        """Each value minus the mean of the others in its group; exactly 0 where there is nothing to compare."""
        silent_B = ~self.usable_B | self.uniform(values_B)
        return torch.where(silent_B, 0, values_B - self.mean_of_others(values_B))

    def usable_only(self, advantages_B: Tensor) -> Tensor:
        """`advantages_B` with zeros where there is nothing to compare."""
        return torch.where(self.usable_B, advantages_B, torch.zeros_like(advantages_B))


def grouped(groups_B: Tensor, valid_B: Tensor, dtype: torch.dtype = torch.float32) -> Groups:
    """Index the groups of a batch; `groups_B` holds any integers, equal within a group, in any order.

    Raises:
        ValueError: the shapes differ.
    """
    if groups_B.shape != valid_B.shape or groups_B.dim() != 1:
        raise ValueError(
            f"groups {tuple(groups_B.shape)} and valid {tuple(valid_B.shape)} must be equal, 1-d"
        )
    names_G, index_B = torch.unique(groups_B, return_inverse=True)
    valid_B = valid_B.bool()
    counts_G = torch.zeros(len(names_G), dtype=dtype, device=groups_B.device)
    counts_G.index_add_(0, index_B, valid_B.to(dtype))
    count_B = counts_G[index_B]
    return Groups(index_B, len(names_G), valid_B, count_B, valid_B & (count_B >= 2))


def group_rates(outcomes_B: Tensor, groups_B: Tensor, valid_B: Tensor) -> Tensor:
    """The mean outcome of each response's group, NFT's r, shape (B,); 0 where there is nothing to compare.

    Arguments are those of `grouped`; outcomes lie in [0, 1]. Uniform groups of fractions are 0 as well.
    """
    groups = grouped(groups_B, valid_B)
    outcomes_B = torch.where(groups.valid_B, outcomes_B.float(), 0)
    rates_B = groups.usable_only(groups.mean(outcomes_B))
    return torch.where(groups.uniform(outcomes_B), torch.zeros_like(rates_B), rates_B)
