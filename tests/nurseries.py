"""The client of a process that forks others on command: `e2e/nursery.py`, `chaos/queue_nursery.py`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


class Nursery:
    """A process that runs `script`, whose children are killed and replaced."""

    def __init__(self, script: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
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
