"""Model services as processes of their own, forked from one that has imported torch."""

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.nurseries import Nursery

#: Seconds after which the queue entries of a service that died are taken over: many times what holds one up here.
LEASE_S = 3.0


class Replicas:
    """Services behind the queues of one Redis; several may share a queue."""

    def __init__(self, nursery: Nursery, redis: str, logs: Path) -> None:
        self._nursery = nursery
        self._redis = redis
        self._logs = logs
        self._pids: list[int] = []

    def start(self, name: str, runtime: Mapping[str, Any] | None = None, **settings: Any) -> int:
        """One more process of the service `name`, with settings of its own and of its runtime; its process id."""
        words = [
            f"{key}={value if isinstance(value, str) else json.dumps(value)}"
            for key, value in settings.items()
        ]
        options = {"queue": self._redis, "lease_s": LEASE_S, "log_level": "warning", **(runtime or {})}
        log = str(self._logs / f"{name}.log")
        spec = {"name": name, "words": words, "options": options, "log": log}
        self._pids.append(self._nursery.ask({"spawn": spec})["pid"])
        return self._pids[-1]

    def end(self, pid: int, number: signal.Signals) -> int:
        """Send a process a signal; its exit code."""
        self._pids.remove(pid)
        return self._nursery.ask({"signal": int(number), "pid": pid})["code"]

    def close(self) -> None:
        """Kill those that are left."""
        for pid in list(self._pids):
            self.end(pid, signal.SIGKILL)
