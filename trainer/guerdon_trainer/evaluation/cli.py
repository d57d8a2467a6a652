"""`guerdon eval` and `guerdon eval-reward`. Heavy imports wait until a command runs."""

import json
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, cast

import typer

if TYPE_CHECKING:
    from guerdon.types import Options, Result
    from guerdon_trainer.evaluation.benchmark import BenchmarkConfig
    from guerdon_trainer.evaluation.labelled import Labelled
    from guerdon_trainer.evaluation.reward import Comparison
    from guerdon_trainer.evaluation.summary import Summary

Benchmark = Annotated[
    str, typer.Argument(help="Name of a benchmark (gsm8k, humaneval ...) or path of a YAML file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="key=value with dotted keys, for example sampling.n=8 data.size=100."),
]
Data = Annotated[
    Path | None,
    typer.Option(help="Local file with the benchmark's rows: .jsonl, .jsonl.gz, .json or .parquet."),
]
Model = Annotated[
    Path | None,
    typer.Option(help="Folder of a model: starts Redis, a rollout service with it, and the verifier."),
]
Rollout = Annotated[
    str | None, typer.Option(help="http(s)://, grpc(s):// or redis(s):// address of the rollout service.")
]
Verifier = Annotated[str | None, typer.Option(help="Address of the verifier.")]
Redis = Annotated[
    str,
    typer.Option(
        "--redis", envvar="GUERDON_REDIS_URL", help="Redis URL of services whose address is not given."
    ),
]
Token = Annotated[
    str | None, typer.Option(envvar="GUERDON_TOKEN", help="Bearer token of the services.", show_default=False)
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Remove the evaluation's folder and start over.")]

File = Annotated[
    Path, typer.Argument(help="JSONL file: samples as the services take them, each with a label.")
]
Service = Annotated[
    list[str], typer.Option(help="NAME=URL of a service, several times; with a Redis URL, NAME is its queue.")
]
ServiceOptions = Annotated[list[str] | None, typer.Option(help="NAME=JSON: a service's options.")]
Threshold = Annotated[
    list[str] | None,
    typer.Option(help="The value from which on a response is called right, or NAME=VALUE."),
]
Label = Annotated[str, typer.Option(help="The field that says whether a response is right.")]
Field = Annotated[
    list[str] | None, typer.Option(help="TO=FROM: the file's field FROM is the sample's field TO.")
]
Confidence = Annotated[float, typer.Option(min=0.5, max=0.999, help="Of every interval.")]
Folder = Annotated[Path | None, typer.Option(help="Default: evals/NAME-OF-FILE.", show_default=False)]
Timeout = Annotated[float, typer.Option(help="Seconds that one request may take.")]

#: Exit status after an interrupt, as shells have it.
_INTERRUPTED = 130
#: What is said besides the failure where no service was named at all.
_NO_SERVICES = (
    "--model FOLDER starts the services that this needs; --rollout and --verifier name some that run already"
)
#: Between the wrong and the right of services that say 0 or 1.
_DEFAULT_THRESHOLD = 0.5


def evaluate(
    benchmark: Benchmark,
    overrides: Overrides = None,
    data: Data = None,
    model: Model = None,
    rollout: Rollout = None,
    verifier: Verifier = None,
    redis: Redis = "redis://127.0.0.1:6379/0",
    token: Token = None,
    fresh: Fresh = False,
) -> None:
    """Evaluate a policy on a benchmark: avg@k and pass@k with confidence intervals.

    Services run already (--rollout, --verifier, --redis) or are started here (--model). The same command goes on where
    an earlier one was interrupted, and asks again for nothing but what has no verdict.
    """
    from guerdon_trainer.config import RecipeError
    from guerdon_trainer.evaluation.asking import Addresses
    from guerdon_trainer.evaluation.benchmark import load_benchmark, load_benchmark_questions
    from guerdon_trainer.evaluation.run import local_services, run_evaluation, start_over

    if model is not None and (rollout or verifier):
        _refuse("--model starts its own services: leave out --rollout and --verifier")
    if model is not None and not model.is_dir():
        _refuse(f"--model {model}: there is no such folder")
    try:
        config = load_benchmark(benchmark, overrides or [], data)
    except RecipeError as error:
        _refuse(str(error))
    urls = {config.rollout: rollout or redis, config.verifier.service: verifier or redis}
    hint = "" if model or rollout or verifier else _NO_SERVICES
    with _stoppable(f"the same command goes on with what is in {config.eval_folder}", hint):
        if fresh:
            start_over(config)
        questions = load_benchmark_questions(config)
        services = nullcontext(Addresses(urls, token)) if model is None else local_services(config, model)
        with services as addresses, _counting(config.name, len(questions) * config.sampling.n) as advance:
            summary = run_evaluation(config, questions, addresses, advance)
    _conclude(config, summary)


def evaluate_reward(
    file: File,
    service: Service,
    options: ServiceOptions = None,
    threshold: Threshold = None,
    label: Label = "label",
    field: Field = None,
    confidence: Confidence = 0.95,
    folder: Folder = None,
    timeout: Timeout = 600.0,
    token: Token = None,
) -> None:
    """Say how good rewards are on labelled responses: ROC-AUC, accuracy, false positives and negatives, calibration."""
    import asyncio

    from guerdon_trainer.config import FailureConfig
    from guerdon_trainer.evaluation.asking import Addresses
    from guerdon_trainer.evaluation.labelled import read_labelled
    from guerdon_trainer.evaluation.reward import compare, score_all

    urls = _pairs("--service", service)
    thresholds = dict.fromkeys(urls, _DEFAULT_THRESHOLD) | _thresholds(threshold or [], urls)
    asked = {name: _json(name, text, urls) for name, text in _pairs("--options", options or []).items()}
    where = folder or Path("evals") / file.stem
    with _stoppable("nothing was written"):
        rows = read_labelled(file, label, _pairs("--field", field or []))
        with _counting("scoring", len(rows) * len(urls)) as advance:
            failures = FailureConfig(timeout_s=timeout, max_fraction=1.0)
            results = asyncio.run(score_all(rows, Addresses(urls, token), asked, failures, advance))
        comparisons = compare(rows, results, thresholds, confidence)
        _write_comparison(where, rows, results, comparisons, confidence)
    if any(set(comparison.statuses) != {"ok"} for comparison in comparisons):
        raise typer.Exit(1)


def _write_comparison(
    folder: Path,
    rows: "list[Labelled]",
    results: "dict[str, list[Result]]",
    comparisons: "list[Comparison]",
    confidence: float,
) -> None:
    from rich.console import Console

    from guerdon_trainer.evaluation.plot import write_calibration
    from guerdon_trainer.evaluation.reward import scored_line, table

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "scored.jsonl").open("w", encoding="utf-8") as lines:
        for number, row in enumerate(rows):
            said = {name: found[number] for name, found in results.items()}
            lines.write(json.dumps(scored_line(row, said), ensure_ascii=False) + "\n")
    plain = {"confidence": confidence, "services": [asdict(comparison) for comparison in comparisons]}
    (folder / "summary.json").write_text(json.dumps(plain, indent=2) + "\n")
    bins = {one.service: one.quality.bins if one.quality else [] for one in comparisons}
    if any(bins.values()):
        write_calibration(folder / "calibration.svg", bins)
    Console().print(table(comparisons, confidence))
    typer.echo(f"every score, the reliability tables and their plot: {folder}")


def _pairs(option: str, given: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for name, equals, value in pairs:
        if not (name and equals and value):
            _refuse(f"{option} {name}{equals}{value}: must look like NAME=VALUE")
    if len({name for name, _, _ in pairs}) < len(pairs):
        _refuse(f"{option} has a name twice")
    return {name: value for name, _, value in pairs}


def _known(option: str, name: str, urls: dict[str, str]) -> None:
    if name not in urls:
        _refuse(f"{option} {name}: no --service has that name; there are {', '.join(urls)}")


def _json(name: str, text: str, urls: dict[str, str]) -> "Options":
    _known("--options", name, urls)
    try:
        options = json.loads(text)
    except json.JSONDecodeError as problem:
        _refuse(f"--options {name}: no JSON: {problem}")
    if not isinstance(options, dict):
        _refuse(f"--options {name}: a JSON object was expected")
    return cast("Options", options)


def _thresholds(given: list[str], urls: dict[str, str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for text in given:
        name, equals, value = text.rpartition("=")
        if equals:
            _known("--threshold", name, urls)
        try:
            found |= dict.fromkeys([name] if equals else urls, float(value))
        except ValueError:
            _refuse(f"--threshold {text}: {value!r} is no number")
    return found


@contextmanager
def _counting(title: str, total: int | None) -> Generator[Callable[[int], None]]:
    """A progress bar on a terminal, nothing elsewhere; the function tells it how many more are done."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=total)
        yield lambda count: progress.advance(task, count)


def _conclude(config: "BenchmarkConfig", summary: "Summary") -> None:
    from rich.console import Console

    from guerdon_trainer.evaluation.summary import remarks, table

    Console().print(table(summary))
    for remark in remarks(summary):
        typer.echo(remark)
    typer.echo(f"all responses: {config.eval_folder / 'responses.jsonl'}")
    if not summary.complete:
        raise typer.Exit(1)


@contextmanager
def _stoppable(afterwards: str, hint: str = "") -> Generator[None]:
    """SIGTERM and Ctrl-C end the command in order; what cannot go on ends it with its sentence, and a hint."""
    from guerdon.errors import GuerdonError, InvalidRequest
    from guerdon_trainer.data import DataError
    from guerdon_trainer.evaluation.answers import EvaluationError
    from guerdon_trainer.run_folder import FolderRefused
    from guerdon_trainer.service_stats import FailureBudgetExceeded

    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"stopped; {afterwards}", err=True)
        raise typer.Exit(_INTERRUPTED) from None
    except (DataError, EvaluationError, FolderRefused, InvalidRequest) as error:
        _refuse(str(error))
    except (FailureBudgetExceeded, GuerdonError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        if hint:
            typer.echo(hint, err=True)
        raise typer.Exit(1) from None
    finally:
        signal.signal(signal.SIGTERM, previous)


def _refuse(message: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(2)
