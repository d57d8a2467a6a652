"""What is measured during a step: means, totals and maxima, over micro-batches and ranks.

Shape suffixes: B responses, T response tokens.
"""

import torch
from torch import Tensor

from guerdon_trainer.distributed import gathered


class Means:
    """Kept as tensors until the end, so that nothing waits for the device."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Tensor, float]] = {}
        self._maxima: dict[str, Tensor] = {}
        self._open: dict[str, Tensor] = {}
        self._closed: dict[str, int] = {}
        self._same: dict[str, list[Tensor]] = {}

    def add(self, name: str, value: Tensor, weight: float) -> None:
        """One value of a weighted mean."""
        total, weights = self._sums.get(name, (torch.zeros_like(value), 0.0))
        self._sums[name] = (total + value * weight, weights + weight)

    def over_tokens(self, name: str, values_BT: Tensor, mask_BT: Tensor) -> None:
        """All values under the mask."""
        tokens = int(mask_BT.sum())
        if tokens:
            self.add(name, torch.where(mask_BT, values_BT, 0).sum() / tokens, tokens)

    def largest(self, name: str, values: Tensor) -> None:
        """The largest of all values."""
        if values.numel():
            most = values.max()
            self._maxima[name] = torch.maximum(self._maxima.get(name, most), most)

    def total(self, name: str, value: Tensor) -> None:
        """One part of a total; the mean is over totals, each ended by `close`."""
        self._open[name] = self._open.get(name, torch.zeros_like(value)) + value

    def close(self, name: str) -> None:
        """End a total, also one that no part was added to."""
        self._closed[name] = self._closed.get(name, 0) + 1

    def once(self, name: str, value: Tensor) -> None:
        """One value of a mean that is the same on every rank."""
        self._same.setdefault(name, []).append(value)

    def result(self) -> dict[str, float]:
        """Everything, over all ranks."""
        sums = {name: (float(total), weights) for name, (total, weights) in self._sums.items()}
        totals = {name: float(total) for name, total in self._open.items()}
        maxima = {name: float(value) for name, value in self._maxima.items()}
        everyone = gathered((sums, totals, maxima))
        added = {
            name: (sum(parts.get(name, (0.0, 0.0))[0] for parts, _, _ in everyone), weight)
            for name in {name: None for parts, _, _ in everyone for name in parts}
            if (weight := sum(parts.get(name, (0.0, 0.0))[1] for parts, _, _ in everyone))
        }
        return (
            {name: total / weight for name, (total, weight) in added.items()}
            | {
                name: sum(parts.get(name, 0.0) for _, parts, _ in everyone) / count
                for name, count in self._closed.items()
            }
            | {
                name: max(parts[name] for _, _, parts in everyone if name in parts)
                for name in {name: None for _, _, parts in everyone for name in parts}
            }
            | {name: float(torch.stack(values).mean()) for name, values in self._same.items()}
        )
