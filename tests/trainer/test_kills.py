"""SIGKILL at any moment: the same command goes on, and nothing is lost, done otherwise, or counted twice."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from guerdon import weights
from guerdon_trainer.run_folder import RunFolder, read_lines

LIVES = Path(__file__).parent / "lives.py"

#: How often a run is killed and followed to its end; make chaos takes longer.
SCENARIOS = 40 if os.environ.get("GUERDON_CHAOS") == "full" else 5

#: What depends on the clock.
TIMES = ("seconds", "tokens_per_s", "wait_rollouts_fraction", "wait_rewards_fraction")


def _lives(folder: Path, recipe: dict[str, Any], seed: int, scenarios: int) -> list[dict[str, Any]]:
    path = folder / "unit.yaml"
    path.write_text(yaml.safe_dump(recipe))
    command = [sys.executable, str(LIVES), str(folder), str(path), str(seed), str(scenarios)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def _rows(folder: RunFolder) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in row.items() if name not in TIMES and not name.endswith("_s")}
        for row in read_lines(folder.metrics)
    ]


def _counts(folder: RunFolder) -> dict[str, Any]:
    services = json.loads(folder.services.read_text())["services"]
    return {name: counts["final"] for name, counts in services.items()}


def _weights(folder: RunFolder) -> bytes:
    latest = weights.latest(folder.weights)
    assert latest is not None
    return (latest.path / "model.safetensors").read_bytes()


def _scored(path: Path) -> list[tuple[str | None, str, str]]:
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_run_that_is_killed_anywhere_ends_as_if_it_never_was(
    unit_recipe: dict[str, Any], tmp_path: Path
) -> None:
    recipe = {
        **unit_recipe,
        "eval_data": {**unit_recipe["eval_data"], "size": 4},
        "training": {"steps": 4, "checkpoint_every": 2, "eval_every": 2},
    }
    first, *scenarios = _lives(tmp_path, recipe, seed=0, scenarios=SCENARIOS)
    # The moments are many, or they would not be any.
    assert first["moments"] > 100
    assert first["writing"] > 20
    assert sum(len(scenario["killed"]) for scenario in scenarios) >= SCENARIOS
    whole = RunFolder(tmp_path / "whole")
    asked = _scored(tmp_path / "whole.services" / "scored.jsonl")
    for scenario in scenarios:
        folder = RunFolder(tmp_path / scenario["name"])
        # Identical losses and all other metrics, bit by bit; each step once.
        assert _rows(folder) == _rows(whole), scenario
        assert read_lines(folder.evaluations) == read_lines(whole.evaluations), scenario
        assert read_lines(folder.rollouts) == read_lines(whole.rollouts), scenario
        assert _weights(folder) == _weights(whole), scenario
        # What services answered counts once, however often a step was begun.
        assert _counts(folder) == _counts(whole), scenario
        beside = tmp_path / f"{scenario['name']}.services"
        # Every version of the PRM was made by one update of its own, of the life that got on.
        made_by = json.loads((beside / "prm.json").read_text())
        assert [update.rpartition(".")[2] for update in made_by] == ["1", "2", "3", "4"], scenario
        assert len(set(made_by)) == 4
        # Nothing was scored that the undisturbed run had not scored, and under the same key: all but the run's id.
        again = {(str(key).partition(":")[2], *rest) for key, *rest in _scored(beside / "scored.jsonl")}
        assert again == {(str(key).partition(":")[2], *rest) for key, *rest in asked}, scenario
        assert not list(folder.checkpoints.glob(".tmp-*")), scenario
        assert not list(folder.weights.glob(".tmp-*")), scenario


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_run_that_asks_ahead_loses_no_prompt_and_counts_none_twice(
    unit_recipe: dict[str, Any], tmp_path: Path
) -> None:
    recipe = {
        **unit_recipe,
        "rollout": {**unit_recipe["rollout"], "ahead": 1, "max_policy_age": 2},
        "eval_data": {**unit_recipe["eval_data"], "size": 4},
        "optimizer": {**unit_recipe["optimizer"], "old_logprobs": "engine"},
        "training": {"steps": 4, "checkpoint_every": 2, "eval_every": 0},
    }
    _, *scenarios = _lives(tmp_path, recipe, seed=1, scenarios=max(2, SCENARIOS // 4))
    for scenario in scenarios:
        folder = RunFolder(tmp_path / scenario["name"])
        rows = _rows(folder)
        assert [row["step"] for row in rows] == [1, 2, 3, 4], scenario
        assert all(row["policy_age_max"] <= 2 for row in rows)
        state = json.loads(folder.finished.read_text())
        # Every position before the next one is trained on, filtered out, or still to be used.
        seen = sum(row["groups_seen"] for row in rows)
        assert seen + len(set(state["pending"])) == state["position"], scenario
        assert (state["policy_version"], state["prm_version"]) == (4, 4)
        assert weights.latest(folder.weights) is not None
