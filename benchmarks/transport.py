"""Our three doors against raw Redis Streams, task libraries and bare frameworks, in the same run.

    python benchmarks/transport.py [--repeats 3] [--seconds 5] [--texts 1 64] [--only SIDE,SIDE] [--kills 10]

A service that does nothing scores texts of 2 KB. Redis, the worker and the client are processes of their own, fresh for
every pass; the sides take turns, and figures are medians of the passes. `requests/s` is with 64 requests in flight, p50
and p99 with one at a time. CPU microseconds per request are those of client, of worker, of both, and of Redis. A second
table has 64 texts in a request, four requests in flight.

Queues: guerdon queue; raw streams (two Lua scripts and redis-py by hand: at least once, one visible result, and nothing
else), plain, and with what has gathered sent in one round trip; arq, celery, streaq, taskiq, each set to lose as little
as it lets one have. Doors: guerdon http and fastapi echo; guerdon grpc and grpc.aio models: both have the same models
and check them. grpc.aio echo has protobuf messages only and checks nothing. Redis is the embedded one (`appendfsync
everysec`), or that of GUERDON_REDIS_URL, which is emptied.

Libraries are fetched into --peers-dir at the first run; one that cannot be had is left out. With --kills, each queue
also has to get 300 texts of 50 ms done by a worker that is killed so many times, with four in its hands each time.

Rates are worth something on an idle machine only, therefore the load average is printed; ratios are the median over
pairs of passes.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from peers.install import pinned
from peers.runs import Unavailable
from peers.transport_runs import Load, Pass, ratio, run_kills, run_pass, speed
from peers.transport_sides import sides

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = ("arq", "celery", "streaq", "taskiq")
#: Libraries whose workers may be killed without a text being lost, as --kills shows.
SAFE = ("arq", "celery", "streaq")
#: Pairs whose ratio is printed: requests per second of the second by those of the first. And what it should be.
PAIRS = (
    ("guerdon queue", "raw streams", "at most 1.5"),
    ("guerdon queue", "raw pipelined", "the floor"),
    ("guerdon http", "fastapi echo", "at most 1.3"),
    ("guerdon grpc", "grpc.aio models", "at most 1.3"),
    ("guerdon grpc", "grpc.aio echo", "the floor"),
)
#: Texts of the kill test.
TEXTS = 300

Passes = dict[str, list[Pass]]


def main() -> None:
    """Run the sides in turns and print the tables."""
    arguments = _arguments()
    packages = _packages(arguments.only, arguments.peers_dir)
    for samples in arguments.texts if arguments.repeats else ():
        in_flight = 64 if samples == 1 else 4
        load = Load(samples=samples, in_flight=in_flight, seconds=arguments.seconds)
        asked = {side: folder for side, folder in packages.items() if samples == 1 or side not in LIBRARIES}
        title = f"texts per request: {samples}, requests in flight: {in_flight}"
        _print_table(title, _run(asked, load, arguments.repeats))
    if arguments.kills:
        _print_kills(packages, arguments.kills)


def _arguments() -> argparse.Namespace:
    known = list(sides())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="passes of each side; 0 leaves them out")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long a pass measures")
    parser.add_argument(
        "--texts", type=int, nargs="+", default=[1, 64], help="texts per request, a table for each"
    )
    parser.add_argument("--only", default=",".join(known), help="sides to run, separated by commas")
    parser.add_argument(
        "--kills", type=int, default=0, help="kills of each queue's worker; 0 leaves them out"
    )
    parser.add_argument("--peers-dir", type=Path, default=ROOT / ".venv/benchmark-peers")
    arguments = parser.parse_args()
    arguments.only = arguments.only.split(",")
    if unknown := set(arguments.only) - set(known):
        parser.error(f"no such side: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return arguments


def _packages(names: Sequence[str], peers_dir: Path) -> dict[str, Path | None]:
    """Where the packages of each side are; a side whose packages cannot be had is named and left out."""
    found: dict[str, Path | None] = {}
    for name in names:
        needs = sides()[name].packages
        found[name] = pinned(needs, peers_dir) if needs else None
        if needs and found[name] is None:
            del found[name]
            print(f"{name} left out: its packages cannot be fetched into {peers_dir}")
    return found


def _run(packages: dict[str, Path | None], load: Load, repeats: int) -> Passes:
    passes: Passes = {}
    for turn in range(repeats):
        for side in list(packages):
            print(f"pass {turn + 1} of {repeats}: {side}", file=sys.stderr)
            try:
                passes.setdefault(side, []).append(run_pass(side, load, packages[side]))
            except Unavailable as problem:
                del packages[side], passes[side]
                print(f"{side} left out: {problem}")
    return passes


def _print_table(title: str, passes: Passes) -> None:
    if not passes:
        return
    loads = [one.load for each in passes.values() for one in each]
    print(f"\n{title}; load average {min(loads):.1f} to {max(loads):.1f} on {os.cpu_count()} cores")
    print(
        f"{'':15} requests/s  p50 ms  p99 ms  CPU us: client + worker = both, Redis  times raw streams' CPU"
    )
    base = passes.get("raw streams")
    for side, each in passes.items():
        found = speed(each)
        times = f"{ratio(each, base, lambda one: one.cpu_us):.2f}" if base else "-"
        print(
            f"{side:15} {found.per_s:10.0f}  {found.p50_ms:6.1f}  {found.p99_ms:6.1f}  {found.client_us:14.0f} + "
            f"{found.worker_us:6.0f} = {found.both_us:5.0f}, {found.redis_us:5.0f}  {times:>22}"
        )
    print()
    for side, other, wanted in PAIRS:
        if side in passes and other in passes:
            _print_ratio(passes, other, side, wanted)
    fastest = max(
        (side for side in SAFE if side in passes), key=lambda side: speed(passes[side]).per_s, default=None
    )
    if fastest and "guerdon queue" in passes:
        _print_ratio(passes, "guerdon queue", fastest, "at least 2; the fastest library that loses nothing")


def _print_ratio(passes: Passes, side: str, other: str, wanted: str) -> None:
    rate, cost = _ratios(passes[side], passes[other])
    print(f"{side} : {other} = {rate:.2f} in requests/s, 1 : {cost:.2f} in CPU time  ({wanted})")


def _ratios(each: Sequence[Pass], others: Sequence[Pass]) -> tuple[float, float]:
    """Of requests per second; of CPU time, the other way round."""
    figures: list[Callable[[Pass], float]] = [lambda one: one.per_s, lambda one: 1 / one.cpu_us]
    rate, cost = (ratio(each, others, figure) for figure in figures)
    return rate, cost


def _print_kills(packages: dict[str, Path | None], kills: int) -> None:
    print(f"\n{TEXTS} texts of 50 ms, {kills} kills  unanswered  failed  never run  run twice")
    for side, folder in packages.items():
        if not sides()[side].queued:
            continue
        print(f"kills: {side}", file=sys.stderr)
        try:
            found = run_kills(side, TEXTS, kills, folder)
        except Unavailable as problem:
            print(f"{side} left out: {problem}")
            continue
        print(
            f"{side:28} {found.unanswered:11}  {found.failed:6}  {found.never_run:9}  {found.run_twice:9}"
            f"  {found.why}"
        )


if __name__ == "__main__":
    main()
