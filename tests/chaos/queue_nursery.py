"""Forks worker processes on command (`tests/nurseries.py`): each is the whole runtime of a service behind its queue."""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from pydantic import BaseModel

from guerdon.queue import link
from guerdon.types import Result, Status
from guerdon_services.runtime import launch
from guerdon_services.runtime.scorer import Batching, ScoreJob, Scorer, ScorerOptions, ScorerSettings
from tests.nurseries import become_a_service, obey


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


def work(given: dict[str, Any]) -> NoReturn:
    """A worker's life; `given` are keys of `Spec`."""
    spec = Spec.model_validate(given)
    errors = os.open(spec.errors, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    become_a_service(output=os.open(os.devnull, os.O_WRONLY), errors=errors)
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


if __name__ == "__main__":
    obey(work)
