"""Forks worker processes on command, so that one that was killed is replaced in milliseconds.

A worker is the whole runtime of a service behind its queue door. Commands are lines of JSON on stdin, each answered
by a line of JSON on stdout:

    {"spawn": SPEC}                 {"pid": 123}        keys of SPEC: see `Spec`
    {"signal": 9, "pid": 123}       {"code": -9}        once the process has ended
    {"buried": true}                {"codes": [-9]}     exit codes of those that ended by themselves since the last time

Every worker is killed when stdin ends.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from pydantic import BaseModel

from guerdon.queue import link
from guerdon.types import Result, Status
from guerdon_services.runtime import launch
from guerdon_services.runtime.scorer import Batching, ScoreJob, Scorer, ScorerOptions, ScorerSettings


class Spec(BaseModel):
    """One worker. `log` gets a line with the id of each sample when its execution begins."""

    url: str
    log: Path
    errors: Path
    lease_s: float
    max_deliveries: int = 5
    max_items: int = 4
    batch_ms: float = 20.0
    #: Whether the sample "poison" kills the process.
    fragile: bool = True
    #: Seconds by which the wall clock is wrong.
    skew_s: float = 0.0
    #: Seconds after which a connection without an answer counts as dead.
    socket_timeout_s: float = link.SOCKET_TIMEOUT_S
    #: A folder with the Lua scripts of another release.
    scripts: Path | None = None


class FireSettings(ScorerSettings):
    """What a `Fire` does with its batches."""

    log: Path
    max_items: int
    batch_ms: float
    fragile: bool


class Fire(Scorer[FireSettings, ScorerOptions]):
    """The value of a sample is its response as a number."""

    name = "fire"
    version = "0.0.1"
    settings_type = FireSettings
    options_type = ScorerOptions

    def __init__(self, settings: FireSettings) -> None:
        super().__init__(settings)
        self.batching = Batching(max_items=settings.max_items, max_wait_ms=1.0)
        self._log = os.open(settings.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def score(self, batch: Sequence[ScoreJob[ScorerOptions]]) -> list[Result]:
        """Note who is scored, take a while, and answer; or die."""
        os.write(self._log, "".join(f"{job.sample.id}\n" for job in batch).encode())
        if self.settings.fragile and any(job.sample.response == "poison" for job in batch):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.settings.batch_ms / 1000)
        return [Result(status=Status.OK, value=_value(job.sample.response)) for job in batch]


def _value(response: str | None) -> float:
    return 0.0 if response is None or response == "poison" else float(response)


def _work(spec: Spec) -> NoReturn:
    """The child's life."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    errors = os.open(spec.errors, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for descriptor, source in ((0, null), (1, null), (2, errors)):
        os.dup2(source, descriptor)
    if spec.scripts is not None:
        link.SCRIPTS = {**link.SCRIPTS, **link.load_scripts(spec.scripts)}
    link.SOCKET_TIMEOUT_S = spec.socket_timeout_s
    right_time = time.time
    time.time = lambda: right_time() + spec.skew_s
    service = Fire(
        FireSettings(log=spec.log, max_items=spec.max_items, batch_ms=spec.batch_ms, fragile=spec.fragile)
    )
    options = {"queue": spec.url, "lease_s": spec.lease_s, "max_deliveries": spec.max_deliveries}
    os._exit(launch.run(service, launch.runtime_settings({**options, "log_level": "warning"})))


def _spawn(spec: Spec) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            _work(spec)
        finally:
            os._exit(70)
    return pid


def main() -> None:
    """Obey until stdin ends."""
    living: set[int] = set()
    try:
        for line in sys.stdin:
            print(json.dumps(_obey(json.loads(line), living)), flush=True)
    finally:
        for pid in living:
            os.kill(pid, signal.SIGKILL)


def _obey(command: dict[str, Any], living: set[int]) -> dict[str, Any]:
    if "spawn" in command:
        pid = _spawn(Spec.model_validate(command["spawn"]))
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


if __name__ == "__main__":
    main()
