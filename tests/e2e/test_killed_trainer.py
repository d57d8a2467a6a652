"""`guerdon train` against real services over a real queue, killed and started again: nothing is lost or done twice."""

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from guerdon import weights
from guerdon.redis_server import redis_server
from guerdon_trainer.config import RunConfig, load_recipe
from guerdon_trainer.launch import ensure_policy
from guerdon_trainer.run_folder import RunFolder, read_lines
from tests.e2e.replicas import Replicas
from tests.nurseries import Nursery
from tests.waiting import until

#: Seconds after which something that should happen counts as never happening.
PATIENCE_S = 900

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
#: None of the services dies: nothing is begun a second time, however long the machine holds one up.
LONG_LEASE = {"lease_s": 600}
RECIPE: dict[str, Any] = {
    "policy": {
        "kind": "tiny",
        "hidden_size": 32,
        "layers": 1,
        "heads": 2,
        "key_value_heads": 1,
        "warmup_steps": 40,
        "warmup_batch": 32,
    },
    "data": {"source": "arithmetic", "size": 60},
    "eval_data": {"source": "arithmetic", "size": 6, "settings": {"split": "held_out"}},
    "rollout": {"prompts_per_step": 6, "group_size": 4, "max_new_tokens": 10},
    "rewards": [
        {"service": "math", "options": {"extraction": "last_box"}},
        {"service": "process_reward", "role": "process"},
    ],
    "process_reward": {"order": "before"},
    "advantage": {"name": "prime"},
    "loss": {"name": "gspo_token"},
    "optimizer": {"lr": 0.003, "mini_batches": 2},
    "filter": None,
    "training": {"steps": 4, "checkpoint_every": 2},
}


@dataclass(frozen=True)
class Services:
    """Running services, and where to look at them."""

    redis: str
    math: str

    def executed(self) -> int:
        """How many samples the verifier has answered."""
        with urllib.request.urlopen(f"{self.math}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        counts = [line for line in lines if line.startswith('guerdon_items_total{operation="score"')]
        return int(sum(float(line.split()[-1]) for line in counts))


@contextmanager
def running(config: RunConfig, nursery: Nursery) -> Iterator[Services]:
    """What the recipe needs, as somebody would run it beside `guerdon train`."""
    folder = RunFolder(config.run_folder)
    folder.path.mkdir()
    ensure_policy(config, folder, lambda text: None)
    # Where the rollout service looks; the trainer publishes the same as its version 0.
    weights.publish(folder.weights, 0, lambda path: _copy(folder.policy, path))
    with (
        redis_server(folder=folder.path / "redis") as redis,
        closing(Replicas(nursery, redis, folder.path)) as services,
    ):
        # A batch is one group: other neighbours would round its logits otherwise.
        services.start("rollout", LONG_LEASE, model=str(folder.weights), max_batch=4)
        prm = {"model": str(folder.policy), "weights_dir": str(folder.path / "weights" / "process_reward")}
        services.start("process_reward", LONG_LEASE, **prm, lr=0.003, keep_last=9)
        ready = folder.path / "math.json"
        doors = {"http": "127.0.0.1:0", "ready_file": str(ready)}
        services.start("math", {**LONG_LEASE, **doors}, workers=1)
        until(ready.exists)
        yield Services(redis, json.loads(ready.read_text())["http"])


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True)


class Trainer:
    """`guerdon train` in a process of its own."""

    def __init__(self, recipe: Path, config: RunConfig, services: Services) -> None:
        self._folder = RunFolder(config.run_folder)
        words = [sys.executable, "-m", "guerdon", "train", str(recipe), f"folder={config.run_folder}"]
        self._output = (config.run_folder / "output.txt").open("a")
        self._process = subprocess.Popen(
            words,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **ONE_THREAD, "GUERDON_REDIS_URL": services.redis},
        )

    def kill_after(self, rows: int) -> None:
        """SIGKILL once so many steps are written down, or the process has ended by itself."""
        until(
            lambda: self._process.poll() is not None or self._written() >= rows,
            said=lambda: self.output,
            patience_s=PATIENCE_S,
        )
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self._output.close()

    def finish(self) -> None:
        """Wait for its own end."""
        code = self._process.wait(PATIENCE_S)
        self._output.close()
        assert code == 0, self.output

    @property
    def output(self) -> str:
        return (self._folder.path / "output.txt").read_text()

    def _written(self) -> int:
        path = self._folder.metrics
        return path.read_text().count("\n") if path.exists() else 0


def _learning(folder: RunFolder) -> list[dict[str, Any]]:
    names = ("step", "loss", "grad_norm", "reward", "accuracy", "entropy", "kl_initial", "process_reward")
    names += ("prm/loss", "prm_version", "policy_version", "groups_seen", "unrewarded")
    return [{name: row[name] for name in names} for row in read_lines(folder.metrics)]


def _weights(folder: RunFolder) -> bytes:
    latest = weights.latest(folder.weights)
    assert latest is not None
    return (latest.path / "model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_killed_trainer_goes_on_and_nothing_is_scored_twice(nursery: Nursery, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(RECIPE))
    undisturbed = load_recipe(str(recipe), [f"folder={tmp_path / 'whole'}"])
    with running(undisturbed, nursery) as services:
        Trainer(recipe, undisturbed, services).finish()
        executed = services.executed()
    config = load_recipe(str(recipe), [f"folder={tmp_path / 'killed'}"])
    with running(config, nursery) as services:
        # Amid the second step, and amid the fourth: each goes back to the checkpoint before.
        Trainer(recipe, config, services).kill_after(1)
        Trainer(recipe, config, services).kill_after(3)
        last = Trainer(recipe, config, services)
        last.finish()
        executed_again = services.executed()

    whole, killed = RunFolder(undisturbed.run_folder), RunFolder(config.run_folder)
    assert [row["step"] for row in _learning(killed)] == [1, 2, 3, 4]
    for mine, theirs in zip(_learning(killed), _learning(whole), strict=True):
        assert mine == pytest.approx(theirs, abs=1e-6)
    assert _weights(killed) == _weights(whole)
    assert read_lines(killed.evaluations)[-1] == read_lines(whole.evaluations)[-1]
    # Steps were begun again, and their responses were the same: the queue knew their scores.
    assert executed == 2 * 6 + 4 * 6 * 4
    assert executed_again == executed, last.output
