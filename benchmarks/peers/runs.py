"""One pass of one side over the cases, in a process of its own that is killed when a case takes too long."""

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from peers.cases import Case

BENCHMARKS = Path(__file__).resolve().parent.parent
#: Seconds in which a side must have imported what it needs and judged the warm-up cases.
_START_S = 300.0
#: Seconds in which a side that has judged everything must end.
_STOP_S = 30.0
#: Statuses that say nothing about the answer.
NO_REPLY = ("killed", "raised", "timeout", "internal_error", "unavailable")


class Unavailable(Exception):
    """A side's package is not installed."""


@dataclass(frozen=True)
class Outcome:
    """What a side did with one case."""

    right: bool
    status: str
    method: str
    cpu_ms: float
    wall_s: float


@dataclass(frozen=True)
class Pass:
    """One outcome per case, what importing cost, and the files that appeared where the side worked."""

    import_cpu_s: float
    outcomes: list[Outcome]
    files: list[str]


def run_pass(
    side: str, options: dict[str, Any], warm_up: Sequence[Case], cases: Sequence[Case], limit_s: float
) -> Pass:
    """Judge all cases in order; one that takes longer than `limit_s` is killed and counts as that much CPU time.

    Raises:
        Unavailable: the side's package is missing.
    """
    outcomes: list[Outcome] = []
    import_cpu_s = 0.0
    with tempfile.TemporaryDirectory() as folder:
        while len(outcomes) < len(cases):
            work = {
                "side": side,
                "options": options,
                "warm_up": [case.as_message() for case in warm_up],
                "cases": [case.as_message() for case in cases[len(outcomes) :]],
            }
            process = _Process(Path(folder), work)
            try:
                import_cpu_s = process.start()
                _collect(process, outcomes, len(cases), limit_s)
            except BaseException:
                process.stop(at_once=True)
                raise
            process.stop(at_once=outcomes[-1].status == "killed")
        files = sorted(path.name for path in Path(folder).iterdir())
    return Pass(import_cpu_s, outcomes, files)


def _collect(process: "_Process", outcomes: list[Outcome], wanted: int, limit_s: float) -> None:
    """Take replies until all are there or one is missing, which is then written down."""
    while len(outcomes) < wanted:
        reply = process.reply(limit_s)
        if reply is None:
            outcomes.append(Outcome(False, "killed", "", limit_s * 1000, limit_s))
            return
        outcomes.append(Outcome(**reply))


class _Process:
    """A side's process; a thread reads its lines, so that waiting for one can have a limit."""

    def __init__(self, folder: Path, work: dict[str, Any]) -> None:
        # sympy orders terms by hash: a fixed seed makes a pass repeatable.
        environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(BENCHMARKS)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "peers.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=environment,
            text=True,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        stdin = _pipe(self._process.stdin)
        stdin.write(json.dumps(work) + "\n")
        stdin.flush()

    def start(self) -> float:
        """CPU seconds of the imports, once the side is warm."""
        first, warm = self.reply(_START_S), self.reply(_START_S)
        if first is None or "error" in first or warm is None:
            raise Unavailable((first or {}).get("error", "its process died at the start"))
        return float(first["import_cpu_s"])

    def reply(self, limit_s: float) -> dict[str, Any] | None:
        """The next line; None when it does not come in time or the process has ended."""
        try:
            line = self._lines.get(timeout=limit_s)
        except queue.Empty:
            return None
        return None if line is None else json.loads(line)

    def stop(self, at_once: bool) -> None:
        """Kill the process, unless it may close by itself and does so in good time."""
        _pipe(self._process.stdin).close()
        try:
            self._process.wait(timeout=0.0 if at_once else _STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        _pipe(self._process.stdout).close()

    def _read(self) -> None:
        for line in _pipe(self._process.stdout):
            self._lines.put(line)
        self._lines.put(None)


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream
