"""The process of one side: `python -m peers.code_process FILE` reads its work from stdin and answers in FILE, as JSON.

The work is {"side", "options", "core", "warm_up", "problems"}; the reply {"error"} or {"cpu_s", "load", "answers"},
where an answer is {"verdicts" | "passed" | neither, "wall_s"} per problem. CPU time is that of this process and of all
below it, those that have ended included. FILE is opened at the end only: what a peer runs inherits every descriptor.
"""

import json
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from peers.code_problems import Problem
from peers.code_sides import SIDES, Judge, pin


def main() -> None:
    """Open the side, warm it up, measure the problems."""
    work: dict[str, Any] = json.loads(sys.stdin.readline())
    file = Path(sys.argv[1])
    with ExitStack() as stack:
        try:
            pin(work["core"])
            judge = stack.enter_context(SIDES[work["side"]](work["options"]))
        except (ImportError, OSError) as problem:
            file.write_text(json.dumps({"error": f"{type(problem).__name__}: {problem}"}))
            return
        for fields in work["warm_up"]:
            _answer(judge, Problem(**fields))
        cpu_s = _cpu_s()
        answers = [_answer(judge, Problem(**fields)) for fields in work["problems"]]
        reply = {"cpu_s": _cpu_s() - cpu_s, "load": os.getloadavg()[0], "answers": answers}
    file.write_text(json.dumps(reply))


def _answer(judge: Judge, problem: Problem) -> dict[str, Any]:
    wall_s = time.perf_counter()
    answer = _guarded(judge, problem)
    fields: dict[str, Any] = {"wall_s": time.perf_counter() - wall_s}
    if answer is not None:
        fields["passed" if isinstance(answer, bool) else "verdicts"] = answer
    return fields


def _guarded(judge: Judge, problem: Problem) -> list[str] | bool | None:
    """A side that raises has not passed the program; a peer may raise anything."""
    try:
        return judge(problem)
    except Exception:
        return False


def _cpu_s() -> float:
    """Of this process, of what lives below it, and of what ended there."""
    total = 0.0
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


if __name__ == "__main__":
    main()
