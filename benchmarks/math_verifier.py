"""The math verifier against its peers, on the same labelled answers in the same run.

    python benchmarks/math_verifier.py [--repeats 3] [--only SIDE,SIDE] [--by-kind] [--failures]

Sides: guerdon; math-verify (0.9, its defaults); math-verify-trl (as TRL's accuracy_reward calls it); verl-strings
(verl's math_reward, fetched without dependencies into --peers-dir). A side that is not installed is left out.

Cases: GUERDON_SHARED/cases/math/dev.jsonl (default ../shared). Core cases only, as docs/math.md defines them, in
three groups: "ordinary", the first 200 by id that are no trap; "harder", those that our fast path leaves open (the
verdict's method is neither string nor rational, and there was an answer to compare); "all". Bare answers stand
in a box, and whole responses are read as they are; our own side reads them with `lenient`, as Math-Verify does.

Every pass runs in a fresh process, the sides in turns. CPU time is counted per case, that of worker processes
included, after the imports and after some cases outside the core have warmed up grammars and caches. A case that takes
longer than --limit seconds is killed, costs that much, and is "no reply", as is an exception or a status that
says nothing about the answer. Whatever is not a clear yes counts as a no. Figures are the median of the passes.

The traps (hang, size, exec, hack) go to our side only, with its default settings, in an empty folder.
"""

import argparse
import os
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers.cases import DANGEROUS, Case, ordinary, read_cases, warm_up
from peers.figures import needs_algebra, positions, ratio, shares, speed
from peers.install import VERL_VERSION, verl_grader
from peers.judges import SIDES
from peers.runs import NO_REPLY, Pass, Unavailable, run_pass

ROOT = Path(__file__).resolve().parent.parent
CASES = Path(os.environ.get("GUERDON_SHARED") or ROOT.parent / "shared") / "cases/math/dev.jsonl"
#: The side that the ratios are against.
BASE = "math-verify"
#: Seconds for one trap before our whole side counts as hung.
TRAP_LIMIT_S = 120.0


@dataclass
class Run:
    """What was judged and what came of it; `passes` has a list per side that is there."""

    cases: list[Case]
    core: list[Case]
    limit_s: float
    passes: dict[str, list[Pass]] = field(default_factory=dict[str, list[Pass]])


def main() -> None:
    """Run the sides in turns and print the tables."""
    arguments = _arguments()
    cases = read_cases(arguments.cases)
    run = Run(cases, [case for case in cases if case.core], arguments.limit)
    _run_sides(run, arguments.only.split(","), arguments.repeats, arguments.peers_dir)
    print(f"{len(run.core)} core cases, median of {arguments.repeats} passes, sides in turns")
    _print_shares(run)
    _print_speed(run)
    if "guerdon" in run.passes:
        _print_traps(cases)
        if arguments.by_kind:
            _print_kinds(run)
        if arguments.failures:
            _print_failures(run)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", type=Path, default=CASES)
    parser.add_argument("--only", default=",".join(SIDES), help="sides to run, separated by commas")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds for one case")
    parser.add_argument("--peers-dir", type=Path, default=ROOT / ".venv/benchmark-peers")
    parser.add_argument("--by-kind", action="store_true", help="our figures for each kind of case")
    parser.add_argument("--failures", action="store_true", help="the core cases that we judge wrongly")
    arguments = parser.parse_args()
    if unknown := set(arguments.only.split(",")) - set(SIDES):
        parser.error(f"no such side: {', '.join(sorted(unknown))}; there are {', '.join(SIDES)}")
    return arguments


def _run_sides(run: Run, sides: Sequence[str], repeats: int, peers_dir: Path) -> None:
    """Fill in the passes; a side whose package is missing is named and left out."""
    options: dict[str, dict[str, Any]] = {side: {} for side in sides}
    if "guerdon" in options:
        options["guerdon"] = {"workers": 1}
    if "verl-strings" in options:
        grader = verl_grader(peers_dir)
        options["verl-strings"] = {"file": str(grader)}
        if grader is None:
            del options["verl-strings"]
            print(f"verl-strings left out: verl {VERL_VERSION} cannot be fetched into {peers_dir}")
    warm = warm_up(run.cases)
    for turn in range(repeats):
        for side in list(options):
            print(f"pass {turn + 1} of {repeats}: {side}", file=sys.stderr)
            try:
                one = run_pass(side, options[side], warm, run.core, run.limit_s)
            except Unavailable as problem:
                del options[side]
                print(f"{side} left out: {problem}")
            else:
                run.passes.setdefault(side, []).append(one)


def _print_shares(run: Run) -> None:
    print(f"\n{'':16} accuracy  false pos.  false neg.  no reply  import CPU s")
    for side, passes in run.passes.items():
        found = shares(run.core, passes[-1].outcomes)
        imports = statistics.median(each.import_cpu_s for each in passes)
        print(
            f"{side:16} {found.accuracy:8.4f}  {found.false_positives:10.2%}  {found.false_negatives:10.2%}"
            f"  {found.no_reply:8}  {imports:12.2f}"
        )


def _groups(run: Run) -> dict[str, list[int]]:
    """Positions of the core cases in each group; without our side nothing tells which are harder."""
    first = ordinary(run.core)
    groups = {"ordinary": positions(run.core, lambda case: case.id in first)}
    if ours := run.passes.get("guerdon"):
        groups["harder"] = [index for index, each in enumerate(ours[0].outcomes) if needs_algebra(each)]
    return {**groups, "all": list(range(len(run.core)))}


def _print_speed(run: Run) -> None:
    base = run.passes.get(BASE)
    for group, chosen in _groups(run).items():
        if not chosen:
            continue
        print(f"\n{f'{group} ({len(chosen)})':16} verifications/CPU-s  times {BASE}  p50 CPU ms  p99 CPU ms")
        for side, passes in run.passes.items():
            found = speed(passes, chosen)
            times = f"{ratio(passes, base, chosen):.2f}" if base else "-"
            print(
                f"{side:16} {found.per_cpu_s:19,.1f}  {times:>17}  {found.p50_ms:10.3f}  {found.p99_ms:10.3f}"
            )


def _print_traps(cases: Sequence[Case]) -> None:
    traps = [case for case in cases if case.trap in (*DANGEROUS, "hack")]
    if not traps:
        return
    print("guerdon: traps", file=sys.stderr)
    one = run_pass("guerdon", {}, [], traps, TRAP_LIMIT_S)
    print("\nguerdon, traps     n  answered  wrong 1s  over 1 s  longest wall s  statuses")
    for trap in (*DANGEROUS, "hack"):
        pairs = [pair for pair in zip(traps, one.outcomes, strict=True) if pair[0].trap == trap]
        statuses = Counter(outcome.status for _, outcome in pairs)
        wrong = sum(outcome.right and not case.right and not case.disputed for case, outcome in pairs)
        told = ", ".join(f"{status} {count}" for status, count in statuses.most_common())
        slow = sum(outcome.wall_s > 1.0 for _, outcome in pairs)
        longest = max((outcome.wall_s for _, outcome in pairs), default=0.0)
        answered = len(pairs) - statuses["killed"] - statuses["raised"]
        print(f"{trap:16} {len(pairs):4}  {answered:8}  {wrong:8}  {slow:8}  {longest:14.3f}  {told}")
    print(f"files that appeared: {', '.join(one.files) or 'none'} (PWNED would be code that ran)")


def _print_kinds(run: Run) -> None:
    outcomes = run.passes["guerdon"][-1].outcomes
    print("\nguerdon, by kind     n  accuracy  false pos.  false neg.  no reply  needs algebra")
    for kind, count in Counter(case.kind for case in run.core).most_common():
        chosen = positions(run.core, lambda case, kind=kind: case.kind == kind)
        picked = [outcomes[index] for index in chosen]
        found = shares([run.core[index] for index in chosen], picked)
        print(
            f"{kind:18} {count:4}  {found.accuracy:8.4f}  {found.false_positives:10.2%}"
            f"  {found.false_negatives:10.2%}  {found.no_reply:8}  {sum(map(needs_algebra, picked)):13}"
        )


def _print_failures(run: Run) -> None:
    print("\nguerdon, wrong core cases: id, kind, label, reference, response, what was said")
    for case, outcome in zip(run.core, run.passes["guerdon"][-1].outcomes, strict=True):
        if outcome.right is not case.right:
            said = outcome.status if outcome.status in (*NO_REPLY, "invalid_input") else outcome.method
            gold = _cut(" | ".join(case.references))
            print(f"{case.id}  {case.kind}  {int(case.right)}  {gold}  {_cut(case.response)}  {said}")


def _cut(text: str) -> str:
    return repr(text if len(text) <= 100 else text[:99] + "…")


if __name__ == "__main__":
    main()
