"""How a number of samples fared, in one line."""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from guerdon.types import Result, Status


@dataclass
class Summary:
    """How a number of samples fared: results by status, the mean of the values, and time in seconds.

    `failure` is the first reason of a sample without value; `kept` counts those that had a result already.
    """

    statuses: Counter[Status] = field(default_factory=Counter[Status])
    total: float = 0.0
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    failure: str = ""
    kept: int = 0

    @classmethod
    def of(cls, results: Iterable[Result], seconds: float = 0.0) -> "Summary":
        """The summary of results that are there."""
        summary = cls(seconds=seconds)
        for result in results:
            summary.add(result)
        summary.seconds = seconds
        return summary

    def add(self, result: Result) -> None:
        """One more result, at this moment."""
        self.statuses[result.status] += 1
        self.total += result.value or 0.0
        if result.status is not Status.OK:
            self.failure = self.failure or result.reason
        self.seconds = time.monotonic() - self.began

    @property
    def count(self) -> int:
        """Samples in all."""
        return self.statuses.total()

    @property
    def mean(self) -> float | None:
        """The mean over the samples that have a value; None where none has."""
        scored = self.statuses[Status.OK]
        return self.total / scored if scored else None

    def __str__(self) -> str:
        if not self.count:
            return f"all {self.kept:,} rows were scored already" if self.kept else "no rows to score"
        by_status = ", ".join(f"{count:,} {status}" for status, count in self.statuses.most_common())
        text = f"{self.count:,} samples: {by_status}"
        if self.kept:
            text += f"; {self.kept:,} were scored already"
        if self.mean is not None:
            text += f"; mean reward {self.mean:.4f}"
        if self.seconds > 0:
            text += f"; {self.seconds:.1f} s, {self.count / self.seconds:,.0f} samples/s"
        return text
