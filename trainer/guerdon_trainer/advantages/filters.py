"""Which groups are worth training on.

Shape suffixes: B responses.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

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


def keep_by_length(
    lengths_B: Tensor, groups_B: Tensor, *, limit: int, valid_B: Tensor | None = None
) -> set[int]:
    """The groups without a response of `limit` tokens or more (PRIME's `filter_truncate`).

    The released code takes the maximum of a response for `limit`, its later recipe one token less.
    """
    cut_B = lengths_B >= limit
    if valid_B is not None:
        cut_B = cut_B & valid_B
    return set(groups_B.tolist()) - set(groups_B[cut_B].tolist())


@dataclass
class StdThreshold:
    """RLPR's moving threshold for the standard deviation of a group's rewards (section 3.3 of arXiv:2506.18254).

    Nothing happens before `start_step`. From there on each step's mean deviation is taken down; at `filter_step` their
    plain mean becomes the average, and groups below `beta` times it are dropped. From then on the average moves by
    1 - `ratio` towards the mean deviation of all groups that a step generated, the dropped ones included.

    `steps` steps have ended; `means` holds what was taken down before there was an average.
    """

    beta: float
    ratio: float = 0.99
    start_step: int = 6
    filter_step: int = 11
    steps: int = 0
    means: list[float] = field(default_factory=list)
    average: float | None = None

    @property
    def threshold(self) -> float | None:
        """What the deviation of a group has to reach in the step that comes next; None while all are kept."""
        if self.steps + 1 < self.filter_step or self.average is None:
            return None
        return self.beta * self.average

    def keep(self, std: float) -> bool:
        """Whether a group with this deviation is kept; one without a finite deviation never is, once it counts."""
        threshold = self.threshold
        return threshold is None or (math.isfinite(std) and std >= threshold)

    def end_step(self, stds: Sequence[float]) -> None:
        """Take down a step, given the deviations of all groups it generated; those that are no number are left out."""
        self.steps += 1
        finite = [std for std in stds if math.isfinite(std)]
        if self.steps < self.start_step or not finite:
            return
        mean = sum(finite) / len(finite)
        if self.steps < self.filter_step or self.average is None:
            self.means.append(mean)
            self.average = sum(self.means) / len(self.means)
        else:
            self.average = self.ratio * self.average + (1 - self.ratio) * mean
