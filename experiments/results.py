"""What came out of the runs: accuracies by step, and mean and spread over the seeds."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from guerdon_trainer.run_folder import RunFolder, read_lines


@dataclass(frozen=True)
class Curve:
    """One run: its greedy held-out accuracy at the steps where it was measured, and `sampled`, the accuracy of the
    responses that each step sampled, those of filtered groups included. `failed` responses had no verdict.
    """

    seed: int
    steps: list[int]
    accuracies: list[float]
    sampled: list[float]
    failed: int

    @property
    def before(self) -> float:
        return self.accuracies[0]

    @property
    def after(self) -> float:
        return self.accuracies[-1]

    def steps_to(self, accuracy: float) -> int | None:
        """The first step that sampled at least this accuracy."""
        return next((step for step, value in enumerate(self.sampled, 1) if value >= accuracy), None)


@dataclass(frozen=True)
class Spread:
    """Mean, smallest and largest over the seeds."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(statistics.fmean(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.mean:.1%} ({self.low:.1%} to {self.high:.1%})"


def read_curves(root: Path, name: str) -> list[Curve]:
    """The curves of every seed of a run that got to its end, in the order of the seeds."""
    # A run's log lies beside its folder; only the folder holds what says that it is finished.
    folders = [path.parent for path in root.glob(f"{name}-seed*/finished.json")]
    return [_curve(folder) for folder in sorted(folders, key=_seed)]


def averaged(curves: Sequence[Curve]) -> list[tuple[int, Spread]]:
    """Mean and spread of the sampled accuracy at each step that every run got to."""
    columns = zip(*(curve.sampled for curve in curves), strict=False)
    return [(step, Spread.of(values)) for step, values in enumerate(columns, 1)]


def _curve(folder: Path) -> Curve:
    rows = read_lines(RunFolder(folder).evaluations)
    measured = [row for row in rows if row["accuracy"] is not None]
    return Curve(
        seed=_seed(folder),
        steps=[row["step"] for row in measured],
        accuracies=[row["accuracy"] for row in measured],
        sampled=[row["accuracy"] for row in read_lines(RunFolder(folder).metrics)],
        failed=sum(row["failed"] for row in rows),
    )


def _seed(folder: Path) -> int:
    return int(folder.name.rpartition("-seed")[2])
