"""A process that forks others on command, such as `e2e/nursery.py` and `chaos/queue_nursery.py`: both its ends.

What all children need is imported once, so that one that was killed is replaced in milliseconds. Commands are lines of
JSON on its stdin, each answered by a line of JSON on its stdout:

    {"spawn": SPEC}                 {"pid": 123}        keys of SPEC: see the module
    {"signal": 9, "pid": 123}       {"code": -9}        once the process has ended
    {"buried": true}                {"codes": {"123": -9}}  those that ended by themselves since the last time

Every child is killed when stdin ends.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

_ROOT = Path(__file__).parent.parent


class Nursery:
    """The client of a process that runs `module`, whose children are killed and replaced; `variables` are added."""

    def __init__(self, module: str, **variables: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=_ROOT,
            env={**os.environ, **variables},
        )

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """The answer to one command."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End it and all its children."""
        self._process.communicate()


def obey(live: Callable[[dict[str, Any]], NoReturn]) -> None:
    """Do what stdin says until it ends; `live` is a child's life, from its SPEC to its end."""
    living: set[int] = set()
    try:
        for line in sys.stdin:
            print(json.dumps(_answer(json.loads(line), living, live)), flush=True)
    finally:
        for pid in living:
            os.kill(pid, signal.SIGKILL)


def become_a_service(*, output: int, errors: int) -> None:
    """What a child does first: signals end it, nothing comes in, and what it says goes elsewhere."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    for descriptor, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, errors)):
        os.dup2(source, descriptor)


def _answer(
    command: dict[str, Any], living: set[int], live: Callable[[dict[str, Any]], NoReturn]
) -> dict[str, Any]:
    if "spawn" in command:
        pid = _fork(live, command["spawn"])
        living.add(pid)
        return {"pid": pid}
    if "signal" in command:
        pid = command["pid"]
        # Nobody else waits for it, so the number still belongs to it, dead or alive.
        os.kill(pid, command["signal"])
        living.remove(pid)
        return {"code": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}
    ended = {
        pid: status for pid, status in ((pid, os.waitpid(pid, os.WNOHANG)) for pid in living) if status[0]
    }
    living.difference_update(ended)
    return {"codes": {pid: os.waitstatus_to_exitcode(status) for pid, (_, status) in ended.items()}}


def _fork(live: Callable[[dict[str, Any]], NoReturn], spec: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            live(spec)
        finally:
            os._exit(70)
    return pid
