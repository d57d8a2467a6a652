"""The `guerdon` command.

`score`, `ping`, `inspect`, `queue` and `up` live here. Other distributions add commands through the entry-point
group `guerdon.commands`: `serve` comes with guerdon-services, `prepare`, `train`, `run`, `eval` and
`eval-reward` with guerdon-trainer.

Exit status: 0 when all went well, 1 when a service failed or an item has no value, 2 for a wrong command line.
"""

import asyncio
import json
import logging
import signal
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from importlib.metadata import entry_points
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.table import Table

from guerdon.blocking import Client
from guerdon.bulk_files import Scoring
from guerdon.cli_score import Asked, default_output, read_samples, score_file
from guerdon.codec import describe
from guerdon.columns import Columns
from guerdon.errors import GuerdonError, InvalidRequest
from guerdon.integrations.target import DEFAULT_URL
from guerdon.summary import Summary
from guerdon.tracing import export_spans
from guerdon.types import (
    Options,
    Result,
    Sample,
    Status,
)

#: Commands that another distribution brings, and its name.
_ELSEWHERE = {
    "serve": "guerdon-services",
    "prepare": "guerdon-trainer",
    "train": "guerdon-trainer",
    "run": "guerdon-trainer",
    "eval": "guerdon-trainer",
    "eval-reward": "guerdon-trainer",
}
app = typer.Typer(
    help="Rewards for reinforcement learning on language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Url = Annotated[str, typer.Option(help="http(s)://, grpc(s):// or redis(s):// address of the service.")]
QueueOf = Annotated[
    str | None, typer.Option("--service", help="Whose queue; needed with a redis:// address.")
]
Token = Annotated[str | None, typer.Option(envvar="GUERDON_TOKEN", help="Bearer token.", show_default=False)]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds, retries included.")]


Data = Annotated[
    Path | None, typer.Argument(help="Rows to score: .jsonl, .jsonl.gz, .parquet, or a folder of datasets.")
]
DefaultUrl = Annotated[str, typer.Option(envvar="GUERDON_URL", help="Address of the service.")]
References = Annotated[list[str] | None, typer.Option(help="A right answer; any of several will do.")]
Samples = Annotated[Path | None, typer.Option(help="JSONL file with one sample a line; - for stdin.")]
ScorerOptions = Annotated[str, typer.Option(help="The scorer's options, as JSON.")]
WhichService = Annotated[
    str | None, typer.Option("--service", help="Which service; whose queue with a redis:// address.")
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Rows with their rewards, .jsonl or .parquet.")]
Mix = Annotated[Path | None, typer.Option(help="YAML file that mixes several services.")]
WhichColumns = Annotated[str, typer.Option(help='Which column is what, as JSON: {"references": "answer"}.')]
Again = Annotated[bool, typer.Option("--again", help="Score rows of an earlier run once more that failed.")]
InFlight = Annotated[int, typer.Option(help="Requests at the same time, of 64 rows.", min=1)]


@app.command()
def score(
    data: Data = None,
    url: DefaultUrl = DEFAULT_URL,
    response: Annotated[str | None, typer.Option(help="One response to score.")] = None,
    prompt: Annotated[str | None, typer.Option(help="What it answers.")] = None,
    reference: References = None,
    file: Samples = None,
    options: ScorerOptions = "{}",
    service: WhichService = None,
    token: Token = None,
    timeout: Timeout = 60.0,
    out: Out = None,
    rewards: Mix = None,
    columns: WhichColumns = "{}",
    name: Annotated[str, typer.Option(help="Column of the reward.")] = "reward",
    again: Again = False,
    in_flight: InFlight = 16,
) -> None:
    """Score rows of a file into another, or a response, or samples; the latter prints one JSON result a line.

    A run that was stopped goes on where it ended when it is started again with the same output.
    """
    if (data is not None) + (file is not None) + (response is not None) != 1:
        _usage("give either DATA, or --response, or --file")
    export_spans("guerdon score")
    asked = Asked(url, service, token, _options(options), timeout)
    with _sentences():
        if data is not None:
            scoring = Scoring(data, out or default_output(data), _columns(columns), name, again)
            _sum_up(scoring.out, asyncio.run(score_file(scoring, asked, rewards, in_flight)))
        else:
            one = Sample(prompt=prompt, response=response, references=reference or [])
            _print_results(asked.results([one] if file is None else read_samples(file)))


@app.command()
def ping(url: Url, service: QueueOf = None, token: Token = None, timeout: Timeout = 5.0) -> None:
    """Say how long a service takes to answer."""
    with _sentences(), Client(url, service=service, token=token, timeout_s=timeout) as client:
        typer.echo(f"{client.ping() * 1000:.1f} ms")


@app.command()
def inspect(url: Url, service: QueueOf = None, token: Token = None, timeout: Timeout = 10.0) -> None:
    """Show what a service is and which options it takes."""
    with _sentences(), Client(url, service=service, token=token, timeout_s=timeout) as client:
        info = client.info().model_dump()
    info["options_schema"] = json.loads(info["options_schema"])
    typer.echo(json.dumps(info, indent=2))


class QueueAction(StrEnum):
    """What `guerdon queue` does."""

    SHOW = "show"
    DEAD = "dead"
    REDRIVE = "redrive"
    PURGE = "purge"


@app.command()
def queue(
    service: Annotated[str, typer.Argument(help="Whose queue.")],
    action: Annotated[
        QueueAction,
        typer.Argument(
            help="show counts what waits, dead lists dead letters, redrive queues them anew, purge forgets them."
        ),
    ] = QueueAction.SHOW,
    letters: Annotated[
        list[str] | None, typer.Argument(help="Ids of dead letters, as `dead` prints them.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every dead letter instead of some.")] = False,
    content: Annotated[bool, typer.Option("--content", help="`dead` prints the requests, too.")] = False,
    redis: Annotated[
        str, typer.Option(envvar=["GUERDON_REDIS_URL", "GUERDON_QUEUE_URL"])
    ] = "redis://127.0.0.1:6379/0",
    watch: Annotated[
        bool, typer.Option("--watch", help="`show` looks again every second until interrupted.")
    ] = False,
) -> None:
    """Show what waits in a service's queue, what is being worked on, and what was given up; care for the latter."""
    from guerdon import queue_view

    ids = letters or []
    if action in ("redrive", "purge") and every == bool(ids):
        _usage(f"{action} wants the ids of dead letters, or --all")
    with _sentences():
        match action:
            case QueueAction.SHOW if watch:
                with _until_signal() as leaving:
                    queue_view.watch(service, redis, leaving)
            case QueueAction.SHOW:
                queue_view.show(service, redis)
            case QueueAction.DEAD:
                asyncio.run(queue_view.list_letters(service, redis, content))
            case QueueAction.PURGE:
                asyncio.run(queue_view.purge_letters(service, redis, ids))
            case QueueAction.REDRIVE:
                if not asyncio.run(queue_view.redrive_letters(service, redis, ids)):
                    raise typer.Exit(1)


@app.command()
def up(
    file: Annotated[Path, typer.Argument(help="YAML file: redis, and services by name.")],
    logs: Annotated[Path, typer.Option(help="Folder for the services' logs.")] = Path("runs/up/logs"),
    ready_timeout: Annotated[float, typer.Option(help="Seconds the services may take to start.")] = 300.0,
) -> None:
    """Start the services of one file, restart those that die, and stop all on Ctrl-C or SIGTERM."""
    from guerdon.redis_server import redis_server
    from guerdon.services_file import load_services, process_specs, with_addresses
    from guerdon.supervisor import Supervisor

    with _sentences(), _until_signal() as leaving:
        config = with_addresses(load_services(file))
        with (
            redis_server(config.redis) as redis_url,
            Supervisor(process_specs(config, redis_url, logs)) as supervisor,
        ):
            supervisor.wait_ready(ready_timeout)
            _print_addresses(config, redis_url)
            leaving.wait()


def _columns(text: str) -> Columns:
    try:
        return TypeAdapter(Columns).validate_json(text)
    except ValidationError as error:
        _usage(f"--columns: {describe(error)}")


def _options(text: str) -> Options:
    try:
        options: Any = json.loads(text)
    except ValueError as error:
        _usage(f"--options is not JSON: {error}")
    if not isinstance(options, dict):
        _usage("--options must be a JSON object")
    return options  # pyright: ignore[reportUnknownVariableType]


def _sum_up(out: Path, summary: Summary) -> None:
    typer.echo(f"{out}: {summary}", err=True)
    if summary.failure:
        typer.echo(f"the first without a reward: {summary.failure}", err=True)
    if summary.statuses[Status.OK] < summary.count:
        raise typer.Exit(1)


def _print_results(results: Sequence[Result]) -> None:
    for result in results:
        typer.echo(_result_line(result))
    if any(result.status is not Status.OK for result in results):
        raise typer.Exit(1)


def _result_line(result: Result) -> str:
    # What is absent says nothing, but a null value does.
    content = result.model_dump(mode="json", exclude_defaults=True)
    return json.dumps({"status": content.pop("status"), "value": result.value} | content, ensure_ascii=False)


def _print_addresses(config: Any, redis_url: str) -> None:
    table = Table("service", "http", "grpc", "queue", title="services")
    for name, service in config.services.items():
        table.add_row(name, f"http://{service.http}", f"grpc://{service.grpc}", service.queue)
    Console().print(table)
    # Whole, with the password of an embedded server: whoever started it needs it to use the queue.
    typer.echo(f"queue: {redis_url}")
    sys.stdout.flush()


@contextmanager
def _sentences() -> Generator[None]:
    """Expected failures end the command with one sentence, not with a traceback."""
    try:
        yield
    except GuerdonError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, InvalidRequest) else 1) from None
    except OSError as error:
        # Python's own words begin with a number, and end with the file.
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
        typer.echo(f"error: {what}", err=True)
        raise typer.Exit(1) from None
    except ValidationError as error:
        typer.echo(f"error: {describe(error)}", err=True)
        raise typer.Exit(2) from None


class _Leaving(KeyboardInterrupt):
    """A signal asks to leave.

    A type of its own: when KeyboardInterrupt itself passes through an `exec` of text, as dataclasses do on import,
    CPython ends the process by SIGINT at its exit, even though the exception was caught.
    """


@contextmanager
def _until_signal() -> Generator[threading.Event]:
    """SIGINT, SIGTERM and SIGHUP leave the block, whatever it waits for; later ones do not disturb the leaving.

    The event says so too: Python drops an exception that a signal raises inside a destructor or a callback.
    """
    leaving = threading.Event()
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as it is under nohup
        numbers.append(signal.SIGHUP)

    def leave(number: int, frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        leaving.set()
        raise _Leaving

    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        with suppress(_Leaving):
            yield leaving
    finally:
        if not leaving.is_set():
            # Without a signal this is a failure, which must not leave its handlers to the rest of the program.
            for number, handler in before.items():
                signal.signal(number, handler)
    typer.echo("stopped")


def _usage(message: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(2)


def _quiet_retries() -> None:
    """Retries must not be written among the results on stdout, which stamina would do through structlog."""
    from stamina import instrumentation

    logging.getLogger("stamina").setLevel(logging.ERROR)
    instrumentation.set_on_retry_hooks([])


def _add_commands() -> None:
    found = {point.name: point for point in entry_points(group="guerdon.commands")}
    for name, point in found.items():
        try:
            app.command(name)(point.load())
        except ImportError as error:
            # One broken installation must not take the other commands along.
            _add_unavailable(name, f"guerdon {name} cannot be loaded from {point.value}: {error}")
    for name, distribution in _ELSEWHERE.items():
        if name not in found:
            install = f"pip install '{distribution}'"
            _add_unavailable(name, f"guerdon {name} comes with {distribution}: {install}")


def _add_unavailable(name: str, why: str) -> None:
    anything = {"allow_extra_args": True, "ignore_unknown_options": True}

    @app.command(name, help=f"({why})", context_settings=anything, add_help_option=False)
    def command() -> None:  # pyright: ignore[reportUnusedFunction]
        typer.echo(f"error: {why}", err=True)
        raise typer.Exit(1)


_quiet_retries()
_add_commands()
