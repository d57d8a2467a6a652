"""The folder of a run: where everything is, and who may write there.

RUN/
  config.yaml             the whole configuration
  lock                    held by the process that runs here
  clients.json            who asks services: what a killed attempt left in queues is withdrawn by these names
  policy/                 the initial policy, a Hugging Face model folder
  weights/policy/         the versions this run published (see guerdon.weights)
  model/                  the trained policy when the run is finished, a Hugging Face model folder
  checkpoints/            see guerdon_trainer.checkpoint
  metrics.jsonl evaluations.jsonl rollouts.jsonl tensorboard/ services.json finished.json logs/ report.html
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from guerdon_trainer.config import RunConfig

#: Keys that may differ between the attempts of one run: how long it goes on, where its numbers and weights go, and how
#: its services are run. What `services` says of a learning PRM is computed with, and is the caller's to keep.
_FREE = ("description", "folder", "services", "failures", "tracking", "weights")
#: Those within other sections; addresses change with the machines that a run goes on with.
_FREE_WITHIN = {
    "training": ("steps", "checkpoint_every", "keep_last", "eval_every"),
    "rollout": ("push",),
    "process_reward": ("replicas",),
}


class FolderRefused(ValueError):
    """The run folder belongs to another run, or to another process."""


class FolderBusy(FolderRefused):
    """Another process runs in the folder; when it has ended, this one may."""


@dataclass(frozen=True)
class RunFolder:
    """Where the files of a run are, see the top of this module."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def clients(self) -> Path:
        return self.path / "clients.json"

    @property
    def policy(self) -> Path:
        return self.path / "policy"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def weights(self) -> Path:
        return self.path / "weights" / "policy"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def evaluations(self) -> Path:
        return self.path / "evaluations.jsonl"

    @property
    def rollouts(self) -> Path:
        return self.path / "rollouts.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def services(self) -> Path:
        return self.path / "services.json"

    @property
    def finished(self) -> Path:
        return self.path / "finished.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"


def open_folder(config: RunConfig, *, fresh: bool = False) -> RunFolder:
    """The run's folder with its config.yaml; `fresh` removes what is there.

    Raises:
        FolderRefused: a run with other settings lies there, or one that goes on, or `fresh` would remove no run.
    """
    folder = RunFolder(config.run_folder)
    if fresh and folder.path.exists():
        if not _holds_run(folder) and any(folder.path.iterdir()):
            raise FolderRefused(f"{folder.path} holds no run, so --fresh does not remove it")
        with exclusive(folder):
            shutil.rmtree(folder.path)
    refuse_changes(config, folder)
    folder.path.mkdir(parents=True, exist_ok=True)
    with exclusive(folder):
        write_whole(folder.config, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
    return folder


def refuse_changes(config: RunConfig, folder: RunFolder) -> None:
    """Make sure that what lies in the folder is this run, or nothing.

    Raises:
        FolderRefused: it is a run with other settings.
    """
    if not folder.config.exists():
        return
    if not _holds_run(folder):
        raise FolderRefused(f"{folder.config} is not that of a run: give folder=PATH")
    changed = _changes(yaml.safe_load(folder.config.read_text()), config.model_dump(mode="json"))
    if changed:
        raise FolderRefused(
            f"{folder.path} holds a run with other settings: {', '.join(changed)}. "
            "Give --fresh to start over, or folder=PATH to keep both."
        )


def _holds_run(folder: RunFolder) -> bool:
    """Whether the folder has the config.yaml of a run, and not some other file of that name."""
    if not folder.config.is_file():
        return False
    try:
        found = yaml.safe_load(folder.config.read_text())
    except (yaml.YAMLError, UnicodeDecodeError):
        return False
    return isinstance(found, dict) and {"rollout", "rewards", "training"} <= found.keys()


@contextmanager
def exclusive(folder: RunFolder) -> Iterator[None]:
    """Within it no other process may run in the folder; the lock ends with the process, however that ends.

    Raises:
        FolderBusy: another process runs there.
    """
    with (folder.path / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderBusy(f"another process is running in {folder.path}") from None
        yield


def is_finished(config: RunConfig, folder: RunFolder) -> bool:
    """Whether the run got to its report, after its last step or when nothing was left to learn."""
    if not folder.finished.exists():
        return False
    state = json.loads(folder.finished.read_text())
    return state["exhausted"] or state["step"] >= config.training.steps


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Every row of a JSONL file; none when it is not there."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def cut_after(path: Path, step: int) -> None:
    """Remove the lines of a JSONL file that later steps wrote: they will be written again."""
    if not path.exists():
        return
    # A line that was being written when the process died has no newline and is dropped.
    complete = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    kept = "".join(line for line in complete if json.loads(line)["step"] <= step)
    write_whole(path, kept)


def write_whole(path: Path, text: str) -> None:
    """Write a file so that whoever reads it, after a kill too, finds the old text or the new one, whole."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """`key: old -> new` for every key that a resumed run must not change."""
    old, new = _leaves(_fixed(before)), _leaves(_fixed(now))
    return [
        f"{key} was {old.get(key)!r} and is now {new.get(key)!r}"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
    ]


def _fixed(config: dict[str, Any]) -> dict[str, Any]:
    fixed = {key: value for key, value in config.items() if key not in _FREE}
    for section, free in _FREE_WITHIN.items():
        if fixed.get(section) is not None:
            fixed[section] = {key: value for key, value in fixed[section].items() if key not in free}
    return fixed


def _leaves(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping):
        items = [(str(key), below) for key, below in value.items()]
    elif isinstance(value, list):
        items = [(str(index), below) for index, below in enumerate(value)]
    else:
        return {path: value}
    return {
        name: leaf
        for key, below in items
        for name, leaf in _leaves(below, f"{path}.{key}" if path else key).items()
    }
