"""Whole runs: every service a real process, over a real queue, and each of them killed on the way."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from guerdon_trainer.config import load_recipe
from guerdon_trainer.launch import run_with_services
from guerdon_trainer.live import LiveView
from guerdon_trainer.run_folder import open_folder, read_lines
from tests.waiting import PATIENCE_S, until

SERVICES = ("rollout", "math", "rules", "process_reward", "code", "reference_reward")

#: The quickstart, as small as it still makes sense.
SMALL = (
    "policy.warmup_steps=30",
    "policy.warmup_batch=64",
    "data.size=100",
    "eval_data.size=16",
    "rollout.prompts_per_step=6",
    "rollout.group_size=4",
    "filter=null",
    "training.steps=4",
    "training.checkpoint_every=2",
    "training.eval_every=0",
)

#: Who is killed, by how the status line begins: everyone amid rollouts and rewards, the PRM again at an update.
KILLED = {"step 2: 1 of 6 groups": SERVICES, "step 3: process rewards": ("process_reward",)}


class KillingView(LiveView):
    """Sends SIGKILL to services at the moments of `KILLED`."""

    def __init__(self) -> None:
        super().__init__("test", 4, Console(quiet=True))
        self.killed: list[str] = []

    def progress(self, status: str) -> None:
        for beginning, victims in KILLED.items():
            if status.startswith(beginning):
                for pid in [_pid(name) for name in victims]:
                    os.kill(pid, signal.SIGKILL)
                self.killed += victims


def _pid(service: str) -> int:
    """The process of a service; waits where it has just ended and is not there again."""
    found: list[int] = []

    def serves() -> bool:
        for child in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):  # it ended between two looks, or is a zombie
                words = child.cmdline()
                if "serve" in words and service in words:
                    found.append(child.pid)
        return bool(found)

    until(serves, said=lambda: f"and no process serves {service}")
    return found[0]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_services_cost_time_and_nothing_else(tmp_path: Path) -> None:
    config = load_recipe("quickstart", [f"folder={tmp_path / 'killed'}", *SMALL])
    assert sorted(config.services) == sorted(SERVICES)
    view = KillingView()
    report = run_with_services(config, open_folder(config), view)
    rows = read_lines(config.run_folder / "metrics.jsonl")
    counts: dict[str, Any] = json.loads((config.run_folder / "services.json").read_text())

    assert "<html" in report.read_text()
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert view.killed == [*SERVICES, "process_reward"]
    for name in SERVICES:
        assert counts["restarts"][name] >= view.killed.count(name)
    # Every sample got its reward from the service, none was made up, none was lost. The first is the greeting.
    assert [row["unrewarded"] for row in rows] == [0, 0, 0, 0]
    assert {name: counts["services"][name]["final"] for name in SERVICES} == {
        "rollout": {"ok": 1 + 2 * 16 + 4 * 6},
        "math": {"ok": 1 + 2 * 16 + 4 * 24},
        "rules": {"ok": 1 + 2 * 16 + 4 * 24},
        "process_reward": {"ok": 1 + 4 * 24},
        "code": {"ok": 1},
        "reference_reward": {"ok": 1},
    }
    # No update was lost or applied twice.
    assert [row["prm_version"] for row in rows] == [1, 2, 3, 4]
    # The engine samples with the weights that the trainer computes with.
    assert max(row["engine_mismatch_max"] for row in rows) < 1e-3


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_dry_run_starts_every_service_and_leaves_nothing(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "guerdon", "run", "quickstart", *SMALL, "--dry-run"]
    said = subprocess.run(
        words,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1500,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert said.returncode == 0, said.stdout + said.stderr
    assert "6 ready after" in said.stdout
    assert "16 responses to 4 prompts" in said.stdout
    assert "16 rewards from" in said.stdout
    assert "version 0, learnt to version 1" in said.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["run", "train"])
def test_a_wrong_key_is_one_sentence_with_the_probable_one(tmp_path: Path, command: str) -> None:
    words = [sys.executable, "-m", "guerdon", command, "quickstart", "rolout.group_size=4"]
    said = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert said.stderr == "error: unknown key 'rolout': did you mean 'rollout'?\n"
    assert (said.returncode, said.stdout) == (2, "")
    assert list(tmp_path.iterdir()) == []
