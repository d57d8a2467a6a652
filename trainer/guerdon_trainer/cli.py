"""`guerdon prepare`, `guerdon train` and `guerdon run`. Heavy imports wait until a command runs."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from pathlib import Path

    from guerdon_trainer.config import RunConfig
    from guerdon_trainer.run_folder import RunFolder

Recipe = Annotated[
    str, typer.Argument(help="Name of a recipe (quickstart, smollm2 ...) or path of a YAML file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="key=value with dotted keys, for example seed=1 loss.clip_high=5e-4."),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Remove the run folder and start over.")]
Redis = Annotated[
    str,
    typer.Option("--redis", envvar="GUERDON_REDIS_URL", help="Redis URL that the services take work from."),
]

DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Try everything once in a temporary folder, score one batch, print a table; nothing is kept.",
    ),
]

#: Exit status after an interrupt, as shells have it.
_INTERRUPTED = 130


def prepare(recipe: Recipe, overrides: Overrides = None, fresh: Fresh = False) -> None:
    """Prepare a recipe's initial policy in its run folder, and stop there."""
    config, folder, _ = _open(recipe, overrides, fresh)
    from guerdon_trainer.launch import ensure_policy

    typer.echo(f"the initial policy lies in {ensure_policy(config, folder, typer.echo)}")


def train(
    recipe: Recipe,
    overrides: Overrides = None,
    redis: Redis = "redis://127.0.0.1:6379/0",
    fresh: Fresh = False,
    dry_run: DryRun = False,
) -> None:
    """Train with services that run already and take work from the Redis at --redis.

    Rollout and process reward services must follow the weights folders that the recipe names. On several GPUs:
    torchrun --nproc-per-node=8 --no-python guerdon train RECIPE
    """
    if dry_run:
        _try(recipe, overrides, redis)
    from guerdon_trainer.connections import check_queues
    from guerdon_trainer.distributed import is_follower, process_group, tell
    from guerdon_trainer.launch import clients_of, ensure_policy, finish, follow_first
    from guerdon_trainer.live import LiveView
    from guerdon_trainer.train import Run

    if is_follower():
        with _sentences():
            follow_first(_config(recipe, overrides))
        return
    config, folder, finished = _open(recipe, overrides, fresh)
    with _sentences(), process_group(config.training.device):
        if finished:
            tell(None)
        else:
            with _stoppable(folder), LiveView(folder.path.name, config.training.steps) as view:
                check_queues(config, redis)
                ensure_policy(config, folder, view.message)
                tell("ready")
                run = Run(config, view)
                finish(run, clients_of(run, redis, view), view)
    _conclude(folder, finished)


def run(recipe: Recipe, overrides: Overrides = None, fresh: Fresh = False, dry_run: DryRun = False) -> None:
    """Start Redis and every service of a recipe, train, evaluate, and write a report.

    The same command goes on from the last checkpoint when it was interrupted.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":
        typer.echo("error: guerdon run takes one process; with torchrun use guerdon train", err=True)
        raise typer.Exit(2)
    if dry_run:
        _try(recipe, overrides, None)
    config, folder, finished = _open(recipe, overrides, fresh)
    from guerdon_trainer.launch import run_with_services
    from guerdon_trainer.live import LiveView

    if not finished:
        with _stoppable(folder), LiveView(folder.path.name, config.training.steps) as view:
            run_with_services(config, folder, view)
    _conclude(folder, finished)


def _try(recipe: str, overrides: list[str] | None, redis: str | None) -> NoReturn:
    """A dry run, with services of its own where there is no Redis; ends the command with 0 when all is well."""
    from rich.console import Console

    from guerdon_trainer.config.errors import RecipeError
    from guerdon_trainer.dry_run import dry_run

    try:
        passed = dry_run(recipe, overrides or [], redis, Console())
    except RecipeError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(0 if passed else 1)


def _open(recipe: str, overrides: list[str] | None, fresh: bool) -> "tuple[RunConfig, RunFolder, bool]":
    """Read the recipe and open the run folder; mistakes end the command with one sentence."""
    from guerdon_trainer.run_folder import FolderRefused, is_finished, open_folder

    config = _config(recipe, overrides)
    try:
        folder = open_folder(config, fresh=fresh)
    except FolderRefused as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(_exit_code(error)) from None
    return config, folder, is_finished(config, folder)


def _config(recipe: str, overrides: list[str] | None) -> "RunConfig":
    from guerdon_trainer.config import load_recipe
    from guerdon_trainer.config.errors import RecipeError

    try:
        return load_recipe(recipe, overrides or [])
    except RecipeError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None


@contextmanager
def _stoppable(folder: "RunFolder") -> Iterator[None]:
    """SIGTERM and Ctrl-C end the run in order; what cannot go on ends it with its sentence."""
    from guerdon_trainer.run_folder import exclusive

    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _sentences(folder.path / "logs"), exclusive(folder):
            yield
    except KeyboardInterrupt:
        typer.echo(
            f"stopped; the same command goes on from the last checkpoint in {folder.checkpoints}", err=True
        )
        raise typer.Exit(_INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def _sentences(logs: "Path | None" = None) -> Iterator[None]:
    """What ends a run with a sentence ends the command with it; `logs` is where those of services may be."""
    from guerdon_trainer.launch import RUN_FAILURES

    try:
        yield
    except RUN_FAILURES as error:
        typer.echo(f"error: {error}", err=True)
        if logs is not None and logs.exists():  # services that others started write theirs elsewhere
            typer.echo(f"Logs of the services: {logs}", err=True)
        raise typer.Exit(_exit_code(error)) from None


def _exit_code(error: BaseException) -> int:
    """2 where every other attempt would end the same, for what was asked is wrong; 1 where one may succeed."""
    from guerdon_trainer.config.errors import RecipeError
    from guerdon_trainer.run_folder import FolderBusy, FolderRefused
    from guerdon_trainer.trackers import TrackerMissing

    wrong = isinstance(error, RecipeError | FolderRefused | TrackerMissing)
    return 2 if wrong and not isinstance(error, FolderBusy) else 1


def _conclude(folder: "RunFolder", finished_before: bool) -> None:
    from guerdon_trainer.report import print_conclusion

    if finished_before:
        typer.echo("this run is finished already; --fresh starts over, a larger training.steps goes on")
    print_conclusion(folder)
