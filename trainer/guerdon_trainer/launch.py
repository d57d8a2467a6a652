"""From a recipe to a finished run: the run folder, the initial policy, the services, the loop, the report."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console

from guerdon.errors import GuerdonError
from guerdon.redis_server import redis_server
from guerdon.services_file import ServicesConfig, process_specs
from guerdon.stores import StoreError
from guerdon.supervisor import Supervisor
from guerdon_trainer.config import RecipeError, RunConfig
from guerdon_trainer.connections import connect, take_over
from guerdon_trainer.data import DataError
from guerdon_trainer.distributed import DeviceMissing, orders, process_group
from guerdon_trainer.groups import RolloutError
from guerdon_trainer.live import LiveView
from guerdon_trainer.prepare import prepare_policy
from guerdon_trainer.report import write_report
from guerdon_trainer.run_folder import FolderRefused, RunFolder, write_whole
from guerdon_trainer.service_calls import ServiceClient
from guerdon_trainer.service_stats import FailureBudgetExceeded
from guerdon_trainer.trackers import TrackerMissing
from guerdon_trainer.train import Run, follow, train

#: How long the services may take to load their models, in seconds.
READY_TIMEOUT_S = 300.0

#: What ends a run with a sentence instead of a traceback.
RUN_FAILURES = (
    DataError,
    DeviceMissing,
    FailureBudgetExceeded,
    FolderRefused,
    GuerdonError,
    OSError,
    RecipeError,
    RolloutError,
    StoreError,
    TrackerMissing,
)


def ensure_policy(config: RunConfig, folder: RunFolder, progress: Callable[[str], None]) -> Path:
    """Prepare the initial policy unless it is there already."""
    # Before the warm-up too: more threads than free cores take many times as long, and other sums round otherwise.
    torch.set_num_threads(config.training.threads)
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
            supervisor.wait_ready(READY_TIMEOUT_S)
            pids = ", ".join(f"{name} {pid}" for name, pid in supervisor.pids.items())
            view.message(f"{len(specs)} services are ready, each a process of its own: {pids}")
            clients = clients_of(run, redis_url, view, spare=True)
            return finish(run, clients, view, lambda: supervisor.restarts)


def follow_first(config: RunConfig) -> None:
    """Train as another rank than the first, which prepares the run folder and talks to the services."""
    with process_group(config.training.device):
        for _ in orders():  # the folder is ready
            run = Run(config, LiveView("", 0, Console(quiet=True)))
            follow(run)
            return


def clients_of(
    run: Run, redis_url: str, view: LiveView, *, spare: bool = False
) -> Mapping[str, ServiceClient]:
    """The run's clients, after what a killed attempt had them ask is withdrawn; `spare` as in `connect`."""
    clients = connect(run.config, redis_url, spare=spare)
    left = take_over(clients, run.config, redis_url, run.folder.clients)
    if left:
        view.message(f"{left} requests that an earlier attempt left in the queues are withdrawn")
    return clients


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
    except BaseException:
        with suppress(OSError):  # a disk that is full has a sentence already
            _conclude(run, restarts())
        raise
    report = _conclude(run, restarts())
    # Last: who finds it finds all the rest.
    write_whole(run.folder.finished, json.dumps(asdict(state)))
    return report


def _conclude(run: Run, restarts: dict[str, int]) -> Path:
    counts = {"services": run.stats.to_dict(), "restarts": restarts}
    write_whole(run.folder.services, json.dumps(counts))
    return write_report(run.folder)
