"""From a recipe to a finished run: the run folder, the initial policy, the services, the loop, the report."""

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from guerdon.errors import GuerdonError
from guerdon.redis_server import redis_server
from guerdon.supervisor import ServicesConfig, Supervisor, process_specs
from guerdon_trainer.checkpoint import RunFolder
from guerdon_trainer.config import RunConfig
from guerdon_trainer.data import DataError
from guerdon_trainer.live import LiveView
from guerdon_trainer.prepare import prepare_policy
from guerdon_trainer.report import write_report
from guerdon_trainer.rollouts import RolloutError, ServiceClient, connect
from guerdon_trainer.service_stats import FailureBudgetExceeded
from guerdon_trainer.train import Run, train

#: How long the services may take to load their models, in seconds.
_READY_TIMEOUT_S = 300.0

#: Keys that may differ between the attempts of one run: they change how long and how, never what is computed.
_FREE = ("description", "folder", "services", "failures")
_FREE_TRAINING = ("steps", "checkpoint_every", "keep_last", "eval_every")


class FolderRefused(ValueError):
    """The run folder belongs to another run, or to another process."""


#: What ends a run with a sentence instead of a traceback.
RUN_FAILURES = (
    DataError,
    FailureBudgetExceeded,
    FileNotFoundError,
    FolderRefused,
    GuerdonError,
    RolloutError,
)


def open_folder(config: RunConfig, *, fresh: bool = False) -> RunFolder:
    """The run's folder with its config.yaml; `fresh` removes what is there.

    Raises:
        FolderRefused: a run with other settings lies there, or `fresh` would remove a run that goes on.
    """
    folder = RunFolder(config.run_folder)
    if fresh and folder.path.exists():
        with exclusive(folder):
            shutil.rmtree(folder.path)
    folder.path.mkdir(parents=True, exist_ok=True)
    if folder.config.exists():
        changed = _changes(yaml.safe_load(folder.config.read_text()), config.model_dump(mode="json"))
        if changed:
            raise FolderRefused(
                f"{folder.path} holds a run with other settings: {', '.join(changed)}. "
                "Give --fresh to start over, or folder=PATH to keep both."
            )
    folder.config.write_text(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
    return folder


@contextmanager
def exclusive(folder: RunFolder) -> Iterator[None]:
    """Within it no other process may run in the folder; the lock ends with the process, however that ends.

    Raises:
        FolderRefused: another process runs there.
    """
    with (folder.path / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderRefused(f"another process is running in {folder.path}") from None
        yield


def is_finished(config: RunConfig, folder: RunFolder) -> bool:
    """Whether the run got to its last step and its report."""
    return (
        folder.finished.exists() and json.loads(folder.finished.read_text())["step"] >= config.training.steps
    )


def ensure_policy(config: RunConfig, folder: RunFolder, progress: Callable[[str], None]) -> Path:
    """Prepare the initial policy unless it is there already."""
    prepare_policy(config.policy, folder.policy, seed=config.seed, progress=progress)
    return folder.policy


def run_with_services(config: RunConfig, folder: RunFolder, view: LiveView) -> Path:
    """Train with services of our own: Redis and one process per service, stopped at the end. Returns the report."""
    ensure_policy(config, folder, view.message)
    run = Run(config, view)
    services = ServicesConfig(services=config.services)
    with redis_server(services.redis) as redis_url:
        specs = process_specs(services, redis_url, folder.path / "logs")
        view.progress(f"starting {', '.join(spec.name for spec in specs)}")
        with Supervisor(specs) as supervisor:
            supervisor.wait_ready(_READY_TIMEOUT_S)
            pids = ", ".join(f"{name} {pid}" for name, pid in supervisor.pids.items())
            view.message(f"{len(specs)} services are ready, each a process of its own: {pids}")
            return finish(run, connect(config, redis_url), view, lambda: supervisor.restarts)


def finish(
    run: Run,
    clients: Mapping[str, ServiceClient],
    view: LiveView,
    restarts: Callable[[], dict[str, int]] = dict,
) -> Path:
    """Train to the last step and write the report; the services are running. Returns the report's path.

    Counts and report are also written when the run ends early, as far as it got.
    """
    try:
        state = train(run, clients, view)
        run.folder.finished.write_text(json.dumps(asdict(state)))
    finally:
        counts = {"services": run.stats.to_dict(), "restarts": restarts()}
        run.folder.services.write_text(json.dumps(counts))
        report = write_report(run.folder)
    return report


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
    fixed["training"] = {key: value for key, value in config["training"].items() if key not in _FREE_TRAINING}
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
