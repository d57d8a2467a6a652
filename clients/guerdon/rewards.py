"""Several services as one reward: weights, gates, and what counts when one of them has no answer.

    rewards = Rewards.from_yaml("rewards.yaml")
    async with rewards: result = await rewards.score_one(sample)

`rewards.yaml`:

    rewards:
      - name: format                      # asked first
        url: http://127.0.0.1:8103
        weight: 0.1
        options: {rules: [{rule: format, tags: [think, answer]}]}
        gate: 1.0                         # below it, nothing after it is asked or counts
      - name: correctness
        url: redis://127.0.0.1:6379/0
        service: math
        weight: 1.0
        counts_as: {timeout: 0.0}         # stated: an answer that no one can check in time is wrong

`mix` is the arithmetic alone, without I/O, and `in_turn` the order of asking: the trainer's recipes use the same two.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from guerdon.bulk import Bulk, Judge
from guerdon.client import AsyncClient
from guerdon.codec import describe
from guerdon.errors import InvalidRequest
from guerdon.types import Options, Result, RuleVerdict, Sample, Status, Verdict

#: What a sample itself may bring about. Nothing else may ever be given a value: it would be the infrastructure's.
Attributable = Literal["invalid_input", "timeout"]


class Part(BaseModel):
    """How one service's result counts in a mix."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: Annotated[str, Field(min_length=1)]
    #: 0 without a gate only measures: where it has no value, nothing else is lost.
    weight: float = 1.0
    #: Where the value is below, this part's weighted value is the last that counts.
    gate: float | None = None
    #: Values for results without one, by status; the statuses that are the infrastructure's fault cannot be named.
    counts_as: dict[Attributable, float] = {}

    @property
    def only_measures(self) -> bool:
        """Whether no sum depends on its value."""
        return self.weight == 0 and self.gate is None


PartT = TypeVar("PartT", bound=Part)


class Source(BaseModel):
    """Where a service is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    service: str | None = None
    options: Options = {}


class RewardPart(Part):
    """One entry of a file: a service, how it counts, and who is asked where it has no value."""

    url: str
    service: str | None = None
    options: Options = {}
    #: Asked instead when this service has no value, for whatever reason.
    backup: Source | None = None

    @property
    def source(self) -> Source:
        """The service that is asked first."""
        return Source(url=self.url, service=self.service, options=self.options)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    rewards: Annotated[list[RewardPart], Field(min_length=1)]

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [part.name for part in self.rewards]
        if len(set(names)) < len(names):
            raise ValueError(f"two rewards have the same name: {', '.join(names)}")
        return self


@dataclass(frozen=True)
class Mixed:
    """What a mix makes of its parts: a value, or why there is none; and what each part gave."""

    value: float | None
    status: Status
    reason: str
    #: Values of the parts that counted, unweighted, by name.
    values: dict[str, float]


def mix(parts: Sequence[Part], results: Sequence[Result | None]) -> Mixed:
    """The weighted sum of the parts' values, up to and including the first whose gate is closed.

    A part that counts and has no value, neither its own nor one of `counts_as`, leaves the whole without: a sum of
    the others would be another reward. Results after a closed gate do not matter and may be None.

    Raises:
        ValueError: a part that counts has no result.
    """
    total, values, reasons = 0.0, dict[str, float](), list[str]()
    for part, result in zip(parts, results, strict=True):
        if result is None:
            raise ValueError(f"part {part.name} counts, and has no result")
        value = counted(part, result)
        if value is None and part.only_measures:
            reasons.append(f"{part.name} has no value ({result.status}), and weighs nothing")
            continue
        if value is None:
            return Mixed(None, result.status, f"{part.name}: {result.reason}", values)
        values[part.name] = value
        total += part.weight * value
        note = result.reason if result.value is not None else f"{result.status} counts as {value:g}"
        reasons.append(f"{part.name} {value:g}" + (f": {note}" if note else ""))
        if part.gate is not None and value < part.gate:
            reasons.append(f"{part.name} is below its gate {part.gate:g}: nothing else counts")
            break
    if not math.isfinite(total):
        return Mixed(None, Status.INVALID_INPUT, f"weight: the weighted sum is {total}", values)
    return Mixed(total, Status.OK, "; ".join(reasons), values)


def counted(part: Part, result: Result) -> float | None:
    """The value of a result in this part, None where it has none."""
    if result.value is not None:
        return result.value
    # Only what a scorer began and did not end: a request that waited too long says nothing about the sample.
    if result.status is Status.TIMEOUT and not (result.scorer and result.exec_ms > 0):
        return None
    return next((value for status, value in part.counts_as.items() if status == result.status), None)


async def in_turn(
    parts: Sequence[PartT],
    samples: Sequence[Sample],
    ask: Callable[[PartT, list[Sample]], Awaitable[list[Result]]],
) -> list[list[Result | None]]:
    """Each sample's results, one per part, to be mixed; None where it was not asked for.

    Parts are asked side by side; those after a gate once it has answered, and only for the samples it lets through.
    """
    table: list[list[Result | None]] = [[None] * len(parts) for _ in samples]
    passing = list(range(len(samples)))
    for segment in _segments(parts):
        asked = [samples[row] for row in passing]
        columns = await asyncio.gather(*(ask(parts[index], asked) for index in segment))
        for index, column in zip(segment, columns, strict=True):
            for row, result in zip(passing, column, strict=True):
                table[row][index] = result
        gate = segment[-1]
        passing = [row for row in passing if _opens(parts[gate], table[row][gate])]
        if not passing:
            break
    return table


def or_backup(first: Result, instead: Result) -> Result:
    """What stands for a result without value, once the backup has answered too."""
    if instead.value is None:
        note = f"{first.reason}; its backup: {instead.status}: {instead.reason}"
        return first.model_copy(update={"reason": note})
    note = f"of the backup, for the first is {first.status}; {instead.reason}"
    return instead.model_copy(update={"reason": note})


class Rewards:
    """A mix of services, asked side by side; those after a gate only once it has opened.

    Its results look like those of one service: `value` is the sum, `verdict.rules` has each part.
    """

    def __init__(
        self,
        parts: Sequence[RewardPart],
        *,
        token: str | None = None,
        timeout_s: float = 120.0,
        retries: int | None = 4,
    ) -> None:
        self.parts = list(parts)
        self._stack = AsyncExitStack()
        self._judges: dict[str, tuple[Judge, Judge | None]] = {}
        for part in self.parts:
            backup = part.backup and self._bulk(part, part.backup, token, timeout_s, retries)
            self._judges[part.name] = (self._bulk(part, part.source, token, timeout_s, retries), backup)

    @classmethod
    def from_yaml(
        cls, file: str | Path, *, token: str | None = None, timeout_s: float = 120.0, retries: int | None = 4
    ) -> "Rewards":
        """The mix that a file describes; nothing is connected yet.

        Raises:
            InvalidRequest: the file does not describe one; the message names the field.
            OSError: it cannot be read.
        """
        return cls(parts_from_yaml(file), token=token, timeout_s=timeout_s, retries=retries)

    async def score_one(self, sample: Sample) -> Result:
        """The mix of one sample; raises as `Bulk.score_one` does."""
        [results] = await in_turn(self.parts, [sample], self._ask)
        return _result(self.parts, results, sample)

    async def score(self, samples: Sequence[Sample]) -> list[Result]:
        """One result per sample, in order."""
        return await asyncio.gather(*(self.score_one(sample) for sample in samples))

    async def aclose(self) -> None:
        """Release connections."""
        await self._stack.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _bulk(
        self, part: Part, source: Source, token: str | None, timeout_s: float, retries: int | None
    ) -> Bulk:
        client = AsyncClient(source.url, service=source.service, token=token, timeout_s=timeout_s, retries=0)
        bulk = Bulk(
            client,
            options=source.options or None,
            timeout_s=timeout_s,
            retries=retries,
            final=lambda result: counted(part, result) is not None,
        )
        self._stack.push_async_callback(client.aclose)
        self._stack.push_async_callback(bulk.aclose)
        return bulk

    async def _ask(self, part: RewardPart, samples: Sequence[Sample]) -> list[Result]:
        first, backup = self._judges[part.name]

        async def one(sample: Sample) -> Result:
            result = await first.score_one(sample)
            if result.value is not None or backup is None:
                return result
            return or_backup(result, await backup.score_one(sample))

        return await asyncio.gather(*map(one, samples))


def parts_from_yaml(file: str | Path) -> list[RewardPart]:
    """What a file's `rewards` say; raises as `Rewards.from_yaml`."""
    import yaml  # not everybody who imports this reads files

    try:
        content: Any = yaml.safe_load(Path(file).read_text())
        return _File.model_validate(content).rewards
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{file}: not YAML: {error}") from error
    except ValidationError as error:
        raise InvalidRequest(f"{file}: {describe(error)}") from error


def _segments(parts: Sequence[Part]) -> list[list[int]]:
    """Runs of parts that are asked at the same time; each ends with a gate, but for the last."""
    segments: list[list[int]] = [[]]
    for index, part in enumerate(parts):
        segments[-1].append(index)
        if part.gate is not None and index + 1 < len(parts):
            segments.append([])
    return segments


def _opens(part: Part, result: Result | None) -> bool:
    """Whether what comes after a part is asked for."""
    if part.gate is None:
        return True
    value = None if result is None else counted(part, result)
    return value is not None and value >= part.gate


def _result(parts: Sequence[RewardPart], results: Sequence[Result | None], sample: Sample) -> Result:
    mixed = mix(parts, results)
    there = [result for result in results if result is not None]
    rules = [RuleVerdict(rule=name, value=value) for name, value in mixed.values.items()]
    return Result(
        id=sample.id,
        status=mixed.status,
        value=mixed.value,
        reason=mixed.reason,
        verdict=Verdict(rules=rules),
        scorer="+".join(part.name for part in parts),
        queue_ms=max((result.queue_ms for result in there), default=0.0),
        exec_ms=sum(result.exec_ms for result in there),
    )
