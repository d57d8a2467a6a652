"""A run with every service a real process, over a real queue; some of them are killed on the way."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from guerdon_trainer.config import RunConfig, load_recipe
from guerdon_trainer.launch import run_with_services
from guerdon_trainer.live import LiveView
from guerdon_trainer.run_folder import open_folder, read_lines

KILLED = ("rollout", "math", "rules", "process_reward")

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


class KillingView(LiveView):
    """Sends SIGKILL to services when a step is done."""

    def __init__(self, victims: tuple[str, ...]) -> None:
        super().__init__("test", 4, Console(quiet=True))
        self._victims = victims

    def step(self, row: dict[str, Any]) -> None:
        if row["step"] == 2:
            for pid in [_pid(name) for name in self._victims]:
                os.kill(pid, signal.SIGKILL)


def _pid(service: str) -> int:
    commands = {child.pid: child.cmdline() for child in psutil.Process().children()}
    [pid] = [pid for pid, words in commands.items() if "serve" in words and service in words]
    return pid


def _config(folder: Path, *overrides: str) -> RunConfig:
    config = load_recipe("quickstart", [f"folder={folder}", *SMALL, *overrides])
    used = {name: service for name, service in config.services.items() if name in KILLED}
    return config.model_copy(update={"services": used})


def _run(config: RunConfig, view: LiveView) -> list[dict[str, Any]]:
    report = run_with_services(config, open_folder(config), view)
    assert "<html" in report.read_text()
    return read_lines(config.run_folder / "metrics.jsonl")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_services_cost_time_and_nothing_else(tmp_path: Path) -> None:
    config = _config(tmp_path / "killed")
    rows = _run(config, KillingView(KILLED))
    counts = json.loads((config.run_folder / "services.json").read_text())

    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert all(counts["restarts"][name] >= 1 for name in KILLED)
    # Every sample got its reward from the service, none was made up, none was lost.
    assert [row["unrewarded"] for row in rows] == [0, 0, 0, 0]
    assert {name: counts["services"][name]["final"] for name in KILLED} == {
        "rollout": {"ok": 1 + 2 * 16 + 4 * 6},
        "math": {"ok": 1 + 2 * 16 + 4 * 24},
        "rules": {"ok": 1 + 2 * 16 + 4 * 24},
        "process_reward": {"ok": 1 + 4 * 24},
    }
    assert [row["prm_version"] for row in rows] == [1, 2, 3, 4]
    # The engine samples with the weights that the trainer computes with.
    assert max(row["engine_mismatch_max"] for row in rows) < 1e-3
