"""Which groups are worth training on.

Shape suffixes: B responses.
"""

import torch
from torch import Tensor

from guerdon_trainer.advantages.groups import grouped


def keep_by_accuracy(
    outcomes_B: Tensor, groups_B: Tensor, valid_B: Tensor, *, lower: float = 0.2, upper: float = 0.8
) -> set[int]:
    """The groups whose mean outcome over valid responses lies in [lower, upper] (PRIME, section 3.5 of the code).

    Bounds are inclusive and compared in fp32. A group with fewer than two rewards is never kept.
    """
    groups = grouped(groups_B, valid_B)
    accuracy_B = groups.mean(outcomes_B.float())
    low, high = torch.tensor([lower, upper], dtype=torch.float32, device=accuracy_B.device)
    kept_B = groups.usable_B & (accuracy_B >= low) & (accuracy_B <= high)
    return set(groups_B[kept_B].tolist())
