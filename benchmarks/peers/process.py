"""The process of one side: `python -m peers.process` reads its work from stdin and writes a line per case.

The work is one JSON object {"side", "options", "warm_up", "cases"}. The lines are {"import_cpu_s"} or {"error"}, then
{"warm": true}, then per case {"right", "status", "method", "cpu_ms", "wall_s"}. CPU time is that of this process
and of all below it.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from peers.cases import Case
from peers.cpu import ChildrenClock
from peers.judges import SIDES, Answer, Judge

Send = Callable[[dict[str, Any]], None]


def main() -> None:
    """Import the side, warm it up, measure the cases."""
    work: dict[str, Any] = json.loads(sys.stdin.readline())
    send = _sender()
    clock = ChildrenClock()
    started_ns = time.process_time_ns() + clock.read_ns()
    with ExitStack() as stack:
        try:
            judge = stack.enter_context(SIDES[work["side"]](work["options"]))
        except ImportError as problem:
            send({"error": str(problem)})
            return
        clock.refresh()
        send({"import_cpu_s": (time.process_time_ns() + clock.read_ns() - started_ns) / 1e9})
        for fields in work["warm_up"]:
            _guarded(judge, Case(**fields))
        send({"warm": True})
        for fields in work["cases"]:
            send(_measured(judge, Case(**fields), clock))


def _measured(judge: Judge, case: Case, clock: ChildrenClock) -> dict[str, Any]:
    children_ns = clock.read_ns()
    wall = time.perf_counter()
    own_ns = time.process_time_ns()
    answer = _guarded(judge, case)
    own_ns = time.process_time_ns() - own_ns
    wall = time.perf_counter() - wall
    children_ns = clock.read_ns() - children_ns
    return {
        "right": answer.right,
        "status": answer.status,
        "method": answer.method,
        "cpu_ms": (own_ns + children_ns) / 1e6,
        "wall_s": wall,
    }


def _guarded(judge: Judge, case: Case) -> Answer:
    """A side that raises gave no reply to this case; a peer may raise anything."""
    try:
        return judge(case)
    except Exception:
        return Answer(False, "raised")


def _sender() -> Send:
    """Writes lines to the real stdout, which is taken away from whatever else prints."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    return send


if __name__ == "__main__":
    main()
