"""Lives of a run: each is killed at a chosen moment, and the next one goes on from what it left.

    lives.py FOLDER RECIPE [SEED SCENARIOS]

First the run lives undisturbed in FOLDER/whole, and its moments are counted: every call that writes, renames, removes
or asks a service, before and after. Then, for each scenario, it lives in a folder of its own and is killed (SIGKILL)
at one moment, again at a moment of its second life, and lives a third time to its end. Prints one JSON line for each
scenario. Every life is a fork of this process, which has imported everything and started no thread.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from guerdon.types import Result, Sample, UpdateRequest, UpdateResponse
from guerdon_trainer.config import RunConfig, load_recipe
from guerdon_trainer.launch import ensure_policy, finish
from guerdon_trainer.live import LiveView
from guerdon_trainer.run_folder import open_folder
from guerdon_trainer.train import Run

sys.path.insert(0, str(Path(__file__).parent))
import conftest

#: What ends a life that nobody ended: a life takes seconds.
_ALARM_S = 1200


class Moments:
    """Counts the moments of a life, and ends it at one of them. `note` is written through, to be read afterwards."""

    def __init__(self, die_at: int | None, notes: Path) -> None:
        self._die_at = die_at
        self._notes = notes.open("a")
        self._count = 0

    def pass_(self, name: str) -> None:
        """One moment more."""
        self._notes.write(f"{name}\n")
        self._notes.flush()
        if self._count == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(_ALARM_S)
        self._count += 1

    def around(self, owner: Any, name: str) -> None:
        """Let a function pass a moment before it is called and one after."""
        real: Callable[..., Any] = getattr(owner, name)

        def observed(*args: Any, **options: Any) -> Any:
            self.pass_(f"before {name}")
            result = real(*args, **options)
            self.pass_(f"after {name}")
            return result

        setattr(owner, name, observed)


class Math(conftest.FakeMath):
    """Writes down under which key it scored what, and whether it had before."""

    def __init__(self, moments: Moments, log: Path) -> None:
        super().__init__()
        self._moments = moments
        self._log = log.open("a")

    async def score(self, samples: Sequence[Sample], **options: Any) -> list[Result]:
        self._moments.pass_("before score")
        results = await super().score(samples, **options)
        for sample in samples:
            digest = hashlib.sha256(sample.model_dump_json().encode()).hexdigest()
            self._log.write(json.dumps([options["key"], sample.id, digest]) + "\n")
        self._log.flush()
        self._moments.pass_("after score")
        return results


class Prm(conftest.FakeProcessReward):
    """Survives the trainer: its versions, and the update that made each, are in a file."""

    def __init__(self, moments: Moments, path: Path) -> None:
        super().__init__()
        self._moments = moments
        self._path = path
        self.made_by: list[str] = json.loads(path.read_text()) if path.exists() else []
        self.version = len(self.made_by)

    async def update(self, request: UpdateRequest, *, timeout_s: float | None = None) -> UpdateResponse:
        self._moments.pass_("before update")
        answer = await super().update(request, timeout_s=timeout_s)
        assert request.base_version is not None
        self.made_by = [*self.made_by[: request.base_version], request.request_id]
        self._path.write_text(json.dumps(self.made_by))
        self._moments.pass_("after update")
        return answer


def live(config: RunConfig, beside: Path, die_at: int | None) -> None:
    """One life, to its end or to the moment."""
    signal.alarm(_ALARM_S)
    folder = open_folder(config)
    ensure_policy(config, folder, lambda text: None)
    services = conftest.FakeServices(folder.weights)
    moments = Moments(die_at, beside / "moments.txt")
    services.math = Math(moments, beside / "scored.jsonl")
    services.process_reward = Prm(moments, beside / "prm.json")
    for owner, name in ((os, "replace"), (os, "rename"), (os, "fsync"), (shutil, "rmtree"), (torch, "save")):
        moments.around(owner, name)
    conftest.leave_plots_undrawn()
    view = LiveView("life", 1, Console(quiet=True))
    finish(Run(config, view), services.clients, view)


def forked(config: RunConfig, beside: Path, die_at: int | None) -> list[str]:
    """The moments of a life in a process of its own; says whether it was killed by its last one, or ended."""
    beside.mkdir(parents=True, exist_ok=True)
    notes = beside / "moments.txt"
    notes.write_text("")
    child = os.fork()
    if child == 0:
        try:
            live(config, beside, die_at)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    names = notes.read_text().splitlines()
    if code not in (0, -signal.SIGKILL):
        raise SystemExit(f"a life ended with {code}")
    return [*names, "killed" if code else "ended"]


def main(folder: Path, recipe: str, seed: int, scenarios: int) -> None:
    """All scenarios, their moments spread over the run; those within writing and publishing are chosen as often."""
    chance = random.Random(seed)

    def config(name: str) -> RunConfig:
        return load_recipe(recipe, [f"folder={folder / name}"])

    whole = forked(config("whole"), folder / "whole.services", None)[:-1]
    writing = [number for number, name in enumerate(whole) if name.split()[1] in ("rename", "save", "rmtree")]
    print(json.dumps({"moments": len(whole), "writing": len(writing)}), flush=True)
    for number in range(scenarios):
        name, beside = f"killed-{number}", folder / f"killed-{number}.services"
        first = chance.choice(writing) if number % 2 else chance.randrange(len(whole))
        moments = forked(config(name), beside, first)
        ends = [f"{moments[-2]} ({first})"]
        if moments[-1] == "killed":
            second = chance.randrange(len(whole) // 2)
            moments = forked(config(name), beside, second)
            ends += [f"{moments[-2]} ({second})"] if moments[-1] == "killed" else []
        if moments[-1] == "killed":
            moments = forked(config(name), beside, None)
        assert moments[-1] == "ended"
        print(json.dumps({"name": name, "killed": ends}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
