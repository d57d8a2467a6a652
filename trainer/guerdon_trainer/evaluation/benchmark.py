"""One benchmark: its data, how its rows are read, how it is sampled, and which verifier judges.

The recipes lie in `guerdon_trainer/benchmarks`; `guerdon eval` takes one by name or by path, with `key=value` overrides
as training recipes do.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from guerdon.services_file import ServiceConfig
from guerdon.types import Options
from guerdon_trainer.config import FailureConfig, RecipeError
from guerdon_trainer.config.base import Count, Section
from guerdon_trainer.config.errors import explain
from guerdon_trainer.config.recipe import read_recipe
from guerdon_trainer.data import DataConfig, load_questions
from guerdon_trainer.evaluation.rows import RowsConfig, reader
from guerdon_trainer.questions import Question

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

#: Which source reads a local file, by how its name ends.
_SOURCES = {".jsonl": "jsonl", ".jsonl.gz": "jsonl", ".json": "json", ".parquet": "parquet"}


class SamplingConfig(Section):
    """How responses are sampled: `n` for each question, temperature 0 is greedy."""

    n: Annotated[int, Field(ge=1, le=4096)] = 1
    max_new_tokens: Count = 4096
    temperature: Annotated[float, Field(ge=0)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    stop: list[str] = []
    seed: Annotated[int, Field(ge=0)] = 0


class VerifierConfig(Section):
    """The service that judges. A response is correct when its value is at least `correct_at`."""

    service: str
    options: Options = {}
    correct_at: float = 1.0


class BenchmarkConfig(Section):
    """A whole evaluation. `rows` reads the rows of a file or hub dataset; without it `data.fields` does."""

    name: str
    description: str = ""
    #: Default: evals/<name>.
    folder: Path | None = None
    data: DataConfig
    rows: RowsConfig | None = None
    #: The rollout service: its queue, and what `--model` starts.
    rollout: str = "rollout"
    verifier: VerifierConfig
    sampling: SamplingConfig = SamplingConfig()
    #: The k of pass@k; by default the powers of two up to n, and n.
    pass_at: list[Count] | None = None
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95
    #: Responses being sampled or judged at the same time.
    in_flight: Count = 64
    #: Long responses of a busy policy take their time; a reference that cannot be judged must not end it all.
    failures: FailureConfig = FailureConfig(timeout_s=1800.0, max_fraction=0.5)
    #: Settings of the services that `--model` starts.
    services: dict[str, ServiceConfig] = {}

    @property
    def eval_folder(self) -> Path:
        """Where the evaluation keeps everything, absolute."""
        return (self.folder or Path("evals") / self.name).absolute()

    @property
    def ks(self) -> list[int]:
        """The k of every pass@k to estimate, from small to large."""
        n = self.sampling.n
        if self.pass_at is not None:
            return sorted(set(self.pass_at))
        return sorted(
            {2**power for power in range(1, n.bit_length()) if 2**power <= n} | ({n} if n > 1 else set())
        )

    @model_validator(mode="after")
    def _samples_suffice(self) -> Self:
        if self.sampling.n > 1 and self.sampling.temperature == 0:
            raise ValueError(
                "sampling.n above 1 needs a sampling.temperature above 0: greedy responses are all the same"
            )
        if max(self.pass_at or [1]) > self.sampling.n:
            raise ValueError(
                f"pass_at {max(self.pass_at or [1])} needs as many responses: sampling.n is {self.sampling.n}"
            )
        if self.rows is not None and self.data.source in ("arithmetic", "reasoning_gym"):
            raise ValueError(
                f"rows reads files and hub datasets; data.source {self.data.source} makes its questions"
            )
        return self

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        if self.rollout == self.verifier.service:
            raise ValueError("rollout and verifier.service must be two services")
        return self


def load_benchmark(
    benchmark: str, overrides: Sequence[str] = (), data: Path | None = None
) -> BenchmarkConfig:
    """Read a benchmark by name or path, with overrides; `data` is a local file that holds its rows.

    Raises:
        RecipeError: no such benchmark, or a key or value that does not fit; the message names it.
    """
    local = [] if data is None else [f"data.source={_source(data)}", f"data.path={data}"]
    raw = read_recipe(benchmark, [*local, *overrides], BENCHMARKS)
    try:
        return BenchmarkConfig.model_validate(raw)
    except ValidationError as error:
        raise RecipeError(explain(error, BenchmarkConfig)) from None


def load_benchmark_questions(config: BenchmarkConfig) -> list[Question]:
    """The benchmark's questions, in an order that only the configuration decides.

    Raises:
        DataError: the data cannot be loaded; the message names file, line and field.
    """
    return load_questions(config.data, None if config.rows is None else reader(config.rows, config.data))


def _source(path: Path) -> str:
    for ending, source in _SOURCES.items():
        if path.name.endswith(ending):
            return source
    raise RecipeError(f"--data {path}: the name must end with one of {', '.join(_SOURCES)}")
