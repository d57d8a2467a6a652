"""Checkpoints from which a run goes on exactly: `checkpoints/step-000010/{learner.pt, state.json}`.

One is written under a temporary name and renamed: it is whole or it is not there.
"""

import json
import os
import shutil
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from guerdon_trainer.distributed import copy_whole, load_optimizer, rank, whole
from guerdon_trainer.step import Learner


@dataclass(frozen=True)
class RunState:
    """Where a run stands. With the recipe it decides everything that follows.

    `attempt` counts the attempts that got to a checkpoint. A repeated step is a new update to the PRM, which returns to
    `prm_version` first. Prompts before `position` are trained on, dropped by the filter, or `pending`: asked ahead, and
    to be asked again. `filter` is what the group filter remembers. `exhausted` says that no group had anything left to
    teach, so that the run ended before its last step.
    """

    run_id: str
    step: int = 0
    attempt: int = 0
    policy_version: int = 0
    prm_version: int = 0
    position: int = 0
    pending: list[int] = field(default_factory=list)
    filter: dict[str, Any] = field(default_factory=dict)
    exhausted: bool = False


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was found; `restore` puts its tensors in place."""

    path: Path
    state: RunState
    services: dict[str, Any] = field(default_factory=dict)

    def restore(self, learner: Learner) -> None:
        """Load weights, optimiser, schedule and generator states; every rank takes its part of them.

        Raises:
            ValueError: the checkpoint is of a model with other tensors.
        """
        device = next(learner.model.parameters()).device
        saved = torch.load(self.path / "learner.pt", map_location="cpu", weights_only=True, mmap=True)
        own = learner.policy.learned_state()
        if {name: t.shape for name, t in own.items()} != {
            name: t.shape for name, t in saved["model"].items()
        }:
            raise ValueError(f"{self.path} holds another model than the recipe's")
        for name, tensor in own.items():
            copy_whole(tensor, saved["model"][name])
        load_optimizer(learner.optimizer, saved["optimizer"])
        learner.schedule.load_state_dict(saved["schedule"])
        torch.set_rng_state(saved["torch_rng"])
        if device.type == "cuda":
            torch.cuda.set_rng_state(saved["cuda_rng"], device)


def save(
    folder: Path, learner: Learner, state: RunState, services: dict[str, Any], *, keep_last: int
) -> Path:
    """Write the checkpoint of `state.step` and remove all but the `keep_last` newest; every rank must call it."""
    device = next(learner.model.parameters()).device
    tensors = {
        "model": whole(learner.policy.learned_state()),
        "optimizer": whole(learner.optimizer.state_dict()),
        "schedule": learner.schedule.state_dict(),
        "torch_rng": torch.get_rng_state(),
    }
    if device.type == "cuda":
        tensors["cuda_rng"] = torch.cuda.get_rng_state(device)
    final = folder / f"step-{state.step:06d}"
    if rank() == 0:
        _write(folder, final, tensors, {"state": asdict(state), "services": services})
        for old in _paths(folder)[:-keep_last]:
            shutil.rmtree(old)
    return final


def _write(folder: Path, final: Path, tensors: dict[str, Any], state: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for abandoned in folder.glob(".tmp-*"):  # by an attempt that was killed here
        shutil.rmtree(abandoned)
    temporary = folder / f".tmp-{uuid.uuid4().hex}"
    temporary.mkdir()
    try:
        torch.save(tensors, temporary / "learner.pt")
    except RuntimeError as error:  # as torch says that a disk is full
        raise OSError(
            f"{final} could not be written; the checkpoint before it stands: {error.__context__ or error}"
        ) from error
    (temporary / "state.json").write_text(json.dumps(state))
    for file in (*temporary.iterdir(), temporary):
        _sync(file)
    if final.exists():
        shutil.rmtree(final)
    os.rename(temporary, final)
    _sync(folder)


def latest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint, if there is one."""
    paths = _paths(folder)
    if not paths:
        return None
    saved = json.loads((paths[-1] / "state.json").read_text())
    return Checkpoint(paths[-1], RunState(**saved["state"]), saved["services"])


def _paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*")) if folder.is_dir() else []


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
