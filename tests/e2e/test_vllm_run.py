"""A training run whose rollouts come from vLLM, killed on the way: `make test-vllm`. Elsewhere it skips."""

import json
import os
import signal
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

pytest.importorskip("vllm", reason="vLLM is not installed here: make test-vllm")

STEPS = 10
#: The recipe as it is, but for the engine and for less of everything.
SMALL = (
    "services.rollout.settings.engine=vllm",
    "rollout.prompts_per_step=2",
    "rollout.group_size=4",
    "rollout.max_new_tokens=12",
    "eval_data.size=4",
    f"training.steps={STEPS}",
    "training.checkpoint_every=10",
    "filter=null",
)


class KillingView(LiveView):
    """Sends SIGKILL to vLLM's engine when the first group of step 4 is there."""

    def __init__(self) -> None:
        super().__init__("test", STEPS, Console(quiet=True))
        self.killed: list[int] = []

    def progress(self, status: str) -> None:
        if not self.killed and status.startswith("step 4: 1 of 2 groups"):
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):  # it ended between two looks, or is a zombie
                    if "EngineCore" in " ".join(child.cmdline()):
                        os.kill(child.pid, signal.SIGKILL)
                        self.killed.append(child.pid)


@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("default")
def test_gspo_learns_from_vllms_rollouts_and_a_killed_engine_loses_nothing(
    smollm2_folder: Path, tmp_path: Path
) -> None:
    config = load_recipe("smollm2", [f"folder={tmp_path / 'run'}", *SMALL])
    assert config.loss.name == "gspo"
    view = KillingView()
    run_with_services(config, open_folder(config), view)
    rows = read_lines(config.run_folder / "metrics.jsonl")
    counts: dict[str, Any] = json.loads((config.run_folder / "services.json").read_text())

    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert len(view.killed) == 1
    assert counts["restarts"]["rollout"] == 0, "the service started its engine again by itself"
    # The first is the greeting; then evaluations before and after, and every group of every step, once.
    assert counts["services"]["rollout"]["final"] == {"ok": 1 + 2 * 4 + 2 * STEPS}
    assert [row["unrewarded"] for row in rows] == [0] * STEPS
    # Every step was sampled with the weights of the one before it: the drift is rounding, and not one update.
    assert [row["policy_version"] for row in rows] == list(range(1, STEPS + 1))
    assert max(row["engine_mismatch_max"] for row in rows) < 1e-3
    assert max(row["engine_mismatch"] for row in rows) < 1e-4
    rollouts = read_lines(config.run_folder / "rollouts.jsonl")
    assert rollouts
