"""Which service rewards come from, as every integration is told: in arguments, else in the environment."""

import asyncio
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from pydantic import TypeAdapter, ValidationError

from guerdon.background import background, run_here, run_there
from guerdon.bulk import Bulk, Judge
from guerdon.client import AsyncClient
from guerdon.codec import describe
from guerdon.columns import Columns
from guerdon.errors import (
    GuerdonError,
    InternalError,
    InvalidRequest,
    Overloaded,
    Timeout,
    Unavailable,
)
from guerdon.rewards import Rewards
from guerdon.types import Options, Result, Sample, Status

#: Where a service listens that was started without saying where.
DEFAULT_URL = "http://127.0.0.1:8101"
DEFAULT_TIMEOUT_S = 120.0

_ERRORS: dict[Status, Callable[[str], GuerdonError]] = {
    Status.INVALID_INPUT: InvalidRequest,
    Status.TIMEOUT: Timeout,
    Status.OVERLOADED: Overloaded,
    Status.UNAVAILABLE: Unavailable,
    Status.INTERNAL_ERROR: InternalError,
}
_OPTIONS = TypeAdapter[Options](Options)


@dataclass(frozen=True)
class Target:
    """A service, or a file that mixes several (`rewards`). Plain values: it may be pickled into any process.

    The token is read from GUERDON_TOKEN by the process that connects, and never travels with this.
    """

    url: str = DEFAULT_URL
    service: str | None = None
    #: The scorer's options, as JSON text.
    options: str = "{}"
    rewards: str | None = None
    #: What one sample may take in all, in seconds. A failure is repeated until then: a service may restart.
    timeout_s: float = DEFAULT_TIMEOUT_S
    #: Repetitions at most; None: as many as there is time for.
    retries: int | None = None

    async def results(self, samples: Sequence[Sample]) -> list[Result]:
        """One result per sample, awaited on whatever loop the caller has; a service's failure is a status.

        Raises:
            InvalidRequest: the URL, the options or the file are wrong: every request would fail.
            Unauthorized: the service wants another token.
        """
        return await run_there(_results(self, list(samples)))

    def results_now(self, samples: Sequence[Sample]) -> list[Result]:
        """As `results`, for code that does not await; also inside a running event loop."""
        return run_here(_results(self, list(samples)))


def target(
    url: str | None = None,
    *,
    service: str | None = None,
    options: Mapping[str, Any] | None = None,
    rewards: str | os.PathLike[str] | None = None,
    timeout_s: float | None = None,
    default_s: float = DEFAULT_TIMEOUT_S,
    most_s: float = math.inf,
) -> Target:
    """The target that the arguments name; what they leave out is read from the environment, then the default.

    `default_s` is the time limit where neither names one, `most_s` what the trainer itself waits at most.

    Raises:
        InvalidRequest: the options are no JSON object, or the time limit is no number.
    """
    given = os.environ
    text = (
        given.get("GUERDON_OPTIONS", "{}") if options is None else json.dumps(dict(options), sort_keys=True)
    )
    _options(text)
    if timeout_s is None:
        timeout_s = _number("GUERDON_TIMEOUT_S", default_s)
    file = given.get("GUERDON_REWARDS") if rewards is None and url is None else rewards
    return Target(
        url=url or given.get("GUERDON_URL") or DEFAULT_URL,
        service=service or given.get("GUERDON_SERVICE"),
        options=text,
        rewards=None if file is None else os.fspath(file),
        timeout_s=min(timeout_s, most_s),
        retries=int(_number("GUERDON_RETRIES", 0)) if "GUERDON_RETRIES" in given else None,
    )


def columns_from_environment() -> Columns:
    """What GUERDON_COLUMNS says, for example {"references": "answer"}.

    Raises:
        InvalidRequest: it is not JSON, or names what `Columns` does not have.
    """
    text = os.environ.get("GUERDON_COLUMNS", "{}")
    try:
        return TypeAdapter(Columns).validate_json(text)
    except ValidationError as error:
        raise InvalidRequest(f"GUERDON_COLUMNS: {describe(error)}") from error


def raise_failure(result: Result) -> NoReturn:
    """Raise what a result without value stands for, for trainers that know failure only as an exception.

    Raises:
        GuerdonError: the one of the result's status.
    """
    raise _ERRORS[result.status](f"no reward: {result.status}: {result.reason}")


def value_of(result: Result) -> float:
    """The result's value; raises as `raise_failure` where it has none."""
    if result.value is None:
        raise_failure(result)
    return result.value


_judges: dict[Target, Judge] = {}


def _forget() -> None:
    """Connections of a forked child's parent are not the child's to use."""
    _judges.clear()


os.register_at_fork(after_in_child=_forget)


async def _results(asked: Target, samples: list[Sample]) -> list[Result]:
    judge = _judges.get(asked)
    if judge is None:
        judge = _judges[asked] = _open(asked)
    return await asyncio.gather(*(judge.score_one(sample) for sample in samples))


def _open(asked: Target) -> Judge:
    """Connect; runs on this process's background loop, which closes what is opened here when it ends."""
    token = os.environ.get("GUERDON_TOKEN") or None
    background().on_close(partial(_closed, asked))
    if asked.rewards is not None:
        mix = Rewards.from_yaml(asked.rewards, token=token, timeout_s=asked.timeout_s, retries=asked.retries)
        background().on_close(mix.aclose)
        return mix
    client = AsyncClient(asked.url, service=asked.service, token=token, timeout_s=asked.timeout_s, retries=0)
    bulk = Bulk(
        client, options=_options(asked.options) or None, timeout_s=asked.timeout_s, retries=asked.retries
    )
    background().on_close(client.aclose)
    background().on_close(bulk.aclose)
    return bulk


async def _closed(asked: Target) -> None:
    _judges.pop(asked, None)


def _options(text: str) -> Options:
    try:
        return _OPTIONS.validate_json(text)
    except ValidationError as error:
        raise InvalidRequest(f"options: {describe(error)}") from error


def _number(name: str, default: float) -> float:
    text = os.environ.get(name)
    if text is None:
        return default
    try:
        return float(text)
    except ValueError as error:
        raise InvalidRequest(f"{name}: {text!r} is no number") from error
