"""The math verifier against Math-Verify, on the same labelled answers in the same run.

    python benchmarks/math_verifier.py [--repeats 3] [--cases FILE.jsonl]

Reads `GUERDON_SHARED/cases/math/dev.jsonl` (default ../shared); core cases only, traps left out, as docs/math.md
defines them. Prints accuracy, false positives and negatives, verifications per CPU-second (the median of the
repeats; our worker processes count) and the ratio. The two take turns, so that a machine that slows down slows both.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from guerdon.types import Sample, Status
from guerdon_services.math.service import MathOptions, MathScorer, MathSettings
from guerdon_services.runtime.scorer import ScoreJob

ROOT = Path(__file__).resolve().parent.parent
CASES = Path(os.environ.get("GUERDON_SHARED") or ROOT.parent / "shared") / "cases/math/dev.jsonl"


@dataclass(frozen=True)
class Case:
    """One labelled answer; any of `references` is right."""

    response: str
    references: list[str]
    bare: bool
    right: bool


@dataclass(frozen=True)
class Figures:
    """What one pass over the cases gave."""

    accuracy: float
    false_positives: float
    false_negatives: float
    per_cpu_s: float


def core_cases(path: Path) -> list[Case]:
    """The cases that have one right label and end by themselves."""
    rows: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        Case(
            response=f"\\boxed{{{row['response']}}}" if row["form"] == "answer" else row["response"],
            references=row.get("golds") or [row["gold"]],
            bare=row["form"] == "answer",
            right=row["expected"] == 1,
        )
        for row in rows
        if not row.get("disputed")
        and row["kind"] != "semantic-text"
        and row.get("trap") not in ("hang", "size", "exec")
    ]


def measured(cases: Sequence[Case], judge: Callable[[Case], bool], cpu_s: Callable[[], float]) -> Figures:
    """One pass: anything but a verdict "equal" counts as "not equal"."""
    start = cpu_s()
    verdicts = [judge(case) for case in cases]
    spent = cpu_s() - start
    wrong = [verdict for verdict, case in zip(verdicts, cases, strict=True) if verdict is not case.right]
    positives = sum(case.right for case in cases)
    return Figures(
        accuracy=1 - len(wrong) / len(cases),
        false_positives=sum(wrong) / (len(cases) - positives),
        false_negatives=(len(wrong) - sum(wrong)) / positives,
        per_cpu_s=len(cases) / spent,
    )


def ours(cases: Sequence[Case]) -> Figures:
    """A fresh scorer with one worker, so that nothing is remembered from an earlier pass."""
    scorer = MathScorer(MathSettings(workers=1))
    scorer.open()
    try:
        workers = [psutil.Process(pid) for pid in scorer.worker_pids()]

        def cpu_s() -> float:
            times = [worker.cpu_times() for worker in workers]
            return time.process_time() + sum(each.user + each.system for each in times)

        def judge(case: Case) -> bool:
            options = MathOptions(extraction="last_box" if case.bare else "lenient")
            job = ScoreJob(Sample(response=case.response, references=case.references), options)
            [result] = scorer.score([job])
            return result.status is Status.OK and result.value == 1.0

        return measured(cases, judge, cpu_s)
    finally:
        scorer.close()


def math_verify(cases: Sequence[Case]) -> Figures:
    """Math-Verify with its defaults, but for the time limits, which need signals."""
    import math_verify as peer  # its annotations deny the None that its documentation asks for

    parse: Any = peer.parse
    verify: Any = peer.verify

    def judge(case: Case) -> bool:
        answer: Any = parse(case.response, parsing_timeout=None)
        golds: list[Any] = [parse(f"\\boxed{{{gold}}}", parsing_timeout=None) for gold in case.references]
        return any(bool(verify(gold, answer, timeout_seconds=None)) for gold in golds)

    judge(cases[0])  # its imports and grammars are not counted, nor are ours
    return measured(cases, judge, time.process_time)


def main() -> None:
    """Run both in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", type=Path, default=CASES)
    arguments = parser.parse_args()
    cases = core_cases(arguments.cases)
    passes = [(ours(cases), math_verify(cases)) for _ in range(arguments.repeats)]
    print(f"{len(cases)} core cases, median of {arguments.repeats}")
    print(f"{'':12} accuracy  false pos.  false neg.  verifications per CPU-s")
    speeds: list[float] = []
    for name, figures in zip(("guerdon", "math-verify"), zip(*passes, strict=True), strict=True):
        last = figures[-1]
        speeds.append(statistics.median(each.per_cpu_s for each in figures))
        shares = f"{last.accuracy:8.4f}  {last.false_positives:9.2%}  {last.false_negatives:9.2%}"
        print(f"{name:12} {shares}  {speeds[-1]:10.1f}")
    ratios = [one.per_cpu_s / other.per_cpu_s for one, other in passes]
    print(f"ratio {statistics.median(ratios):.1f} (of each pass: {', '.join(f'{r:.1f}' for r in ratios)})")


if __name__ == "__main__":
    main()
