"""Passes of the code benchmark: one side, one fresh process, all problems; and the figures from several of them."""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.code_problems import Problem
from peers.runs import Unavailable

BENCHMARKS = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Answer:
    """What a side said of one problem: `verdicts` where it tells tests apart; both None where it cannot say."""

    wall_s: float
    verdicts: list[str] | None = None
    passed: bool | None = None

    @property
    def full(self) -> bool:
        """Whether it gave the full reward."""
        return bool(self.passed) or (
            self.verdicts is not None and all(each == "AC" for each in self.verdicts)
        )

    @property
    def said(self) -> bool:
        """Whether it could express the problem."""
        return self.passed is not None or self.verdicts is not None


@dataclass(frozen=True)
class Pass:
    """One side over all problems; `load` is the machine's load average at the end."""

    cpu_s: float
    load: float
    answers: list[Answer]


@dataclass(frozen=True)
class Speed:
    """Medians over passes."""

    per_cpu_s: float
    p50_ms: float
    p99_ms: float
    spread: float


def run_pass(
    side: str,
    options: dict[str, Any],
    warm_up: Sequence[Problem],
    problems: Sequence[Problem],
    core: int,
    limit_s: float = 1800.0,
) -> Pass:
    """Judge all problems in order.

    Raises:
        Unavailable: the side's package is missing, or its process died or took longer than `limit_s`.
    """
    work = {
        "side": side,
        "options": options,
        "core": core,
        "warm_up": [problem.as_message() for problem in warm_up],
        "problems": [problem.as_message() for problem in problems],
    }
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as replies:
        file = Path(replies) / "reply.json"
        try:
            process = subprocess.run(
                [sys.executable, "-m", "peers.code_process", str(file)],
                input=json.dumps(work) + "\n",
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(BENCHMARKS)},
                text=True,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Unavailable(f"no end after {limit_s:.0f} s") from None
        if not file.exists():
            raise Unavailable(f"its process ended with status {process.returncode} and said nothing")
        reply: dict[str, Any] = json.loads(file.read_text())
    if "error" in reply:
        raise Unavailable(reply["error"])
    return Pass(reply["cpu_s"], reply["load"], [Answer(**fields) for fields in reply["answers"]])


def speed(passes: Sequence[Pass]) -> Speed:
    """Programs per CPU-second and percentiles of the wall time per program; `spread` is p99 / p50."""
    walls = [sorted(answer.wall_s * 1000 for answer in each.answers) for each in passes]
    return Speed(
        per_cpu_s=statistics.median(len(each.answers) / each.cpu_s for each in passes),
        p50_ms=statistics.median(_percentile(wall, 0.50) for wall in walls),
        p99_ms=statistics.median(_percentile(wall, 0.99) for wall in walls),
        spread=statistics.median(_percentile(wall, 0.99) / _percentile(wall, 0.50) for wall in walls),
    )


def ratio(passes: Sequence[Pass], others: Sequence[Pass]) -> float:
    """How many times as many programs per CPU-second as the other side: the median over pairs of passes."""
    return statistics.median(other.cpu_s / one.cpu_s for one, other in zip(passes, others, strict=True))


def _percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
