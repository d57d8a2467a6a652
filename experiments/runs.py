"""Runs what the plan names, each run a `guerdon run` of its own; a finished one is not run again."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from experiments.plan import PlannedRun
from guerdon_trainer.config import load_recipe
from guerdon_trainer.run_folder import RunFolder, is_finished


@dataclass(frozen=True)
class Job:
    """One run with one seed, and the folder it lies in."""

    name: str
    run: PlannedRun
    seed: int
    folder: Path

    @property
    def overrides(self) -> list[str]:
        return [*self.run.settings, f"seed={self.seed}", f"folder={self.folder}"]

    @property
    def finished(self) -> bool:
        """Whether it got to its last step, with these settings."""
        config = load_recipe(self.run.recipe, self.overrides)
        return self.folder.is_dir() and is_finished(config, RunFolder(self.folder))


def jobs(runs: dict[str, PlannedRun], seeds: Sequence[int], root: Path) -> list[Job]:
    """Every run with every seed; all runs of a seed first, so that a plan cut short compares all of them."""
    return [
        Job(name, run, seed, (root / f"{name}-seed{seed}").absolute())
        for seed in seeds
        for name, run in runs.items()
    ]


def run_all(todo: Sequence[Job], root: Path, *, at_once: int) -> list[str]:
    """Run the jobs that are not finished, `at_once` beside each other; returns a sentence per failed one."""
    root.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(at_once) as pool:
        failures = list(pool.map(lambda job: _run(job, root), todo))
    return [failure for failure in failures if failure]


def _run(job: Job, root: Path) -> str | None:
    label = f"{job.name}, seed {job.seed}"
    if job.finished:
        print(f"{label}: finished before", flush=True)
        return None
    _reuse_policy(job, root)
    command = [sys.executable, "-m", "guerdon", "run", job.run.recipe, *job.overrides]
    log = root / f"{job.folder.name}.log"
    with log.open("w") as output:
        code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
    print(f"{label}: {'done' if code == 0 else f'failed with status {code}, see {log}'}", flush=True)
    return None if code == 0 else f"{label} failed with status {code}, see {log}"


def _reuse_policy(job: Job, root: Path) -> None:
    """Copy the initial policy of another run that starts from the same: the warm-up takes longer than many a run.

    The trainer checks what lies there against the recipe and builds another where it does not fit.
    """
    wanted = load_recipe(job.run.recipe, job.overrides).policy.model_dump(mode="json")
    target = job.folder / "policy"
    if target.exists():
        return
    for config in sorted(root.glob(f"*-seed{job.seed}/config.yaml")):
        source = config.parent / "policy"
        if (source / "prepared.json").is_file() and _policy(config) == wanted:
            job.folder.mkdir(parents=True, exist_ok=True)
            shutil.copytree(source, target)
            return


def _policy(config: Path) -> Any:
    return yaml.safe_load(config.read_text())["policy"]
