"""`guerdon score DATA`: a file of rows, scored by a service and written with its rewards."""

import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from guerdon.blocking import Client
from guerdon.bulk import Bulk, Judge
from guerdon.bulk_files import Scoring, count_rows
from guerdon.client import AsyncClient
from guerdon.codec import describe
from guerdon.errors import InvalidRequest
from guerdon.progress import reporting
from guerdon.rewards import Rewards
from guerdon.summary import Summary
from guerdon.types import Options, Result, Sample


@dataclass(frozen=True)
class Asked:
    """The service that a command line names, and what it is asked for."""

    url: str
    service: str | None
    token: str | None
    options: Options
    timeout_s: float

    def results(self, samples: Sequence[Sample]) -> list[Result]:
        """One result per sample, in one request.

        Raises:
            GuerdonError: there is no answer.
        """
        with Client(self.url, service=self.service, token=self.token, timeout_s=self.timeout_s) as client:
            return client.score(samples, options=self.options)


async def score_file(scoring: Scoring, asked: Asked, rewards: Path | None, in_flight: int) -> Summary:
    """Score the rows of a file; says what became of them.

    `rewards` is a file that mixes services, which are asked instead.

    Raises:
        GuerdonError: the service is not there at the start, or is another; a row is no sample.
        OSError: a file cannot be read or written.
    """
    async with AsyncExitStack() as stack:
        judge: Judge
        if rewards is not None:
            judge = await stack.enter_async_context(
                Rewards.from_yaml(rewards, token=asked.token, timeout_s=asked.timeout_s)
            )
        else:
            client = await stack.enter_async_context(
                AsyncClient(
                    asked.url, service=asked.service, token=asked.token, timeout_s=asked.timeout_s, retries=0
                )
            )
            await _greet(client, asked.url, asked.service)
            judge = Bulk(client, options=asked.options, timeout_s=asked.timeout_s, in_flight=in_flight)
            stack.push_async_callback(judge.aclose)
            scoring = replace(scoring, window=max(1, 64 * in_flight))
        done = stack.enter_context(reporting(sys.stderr.isatty(), count_rows(scoring.data)))
        return await scoring.run(judge, done)


async def _greet(client: AsyncClient, url: str, service: str | None) -> None:
    """A million rows are not to be scored by the wrong service."""
    info = await client.info()
    if service is not None and url.startswith(("http", "grpc")) and info.scorer != service:
        raise InvalidRequest(f"--service: {url} is {info.scorer!r}, not {service!r}")


def read_samples(file: Path) -> list[Sample]:
    """One sample per line of a file; `-` is stdin.

    Raises:
        InvalidRequest: a line is none.
    """
    text = sys.stdin.read() if str(file) == "-" else file.read_text()
    samples: list[Sample] = []
    # `splitlines` also splits at characters that JSON strings may hold (U+2028 and others).
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                samples.append(Sample.model_validate_json(line))
            except ValidationError as error:
                raise InvalidRequest(f"{file}:{number}: {describe(error)}") from error
    return samples


def default_output(data: Path) -> Path:
    """`data.scored.jsonl` beside the data."""
    stem: Any = data.name.split(".")[0]
    return data.with_name(f"{stem}.scored.jsonl")
