"""Which service rewards come from, as every integration is told: in arguments, else in the environment."""

import asyncio
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from guerdon.background import background, run_here, run_there
from guerdon.bulk import Bulk, Judge
from guerdon.client import AsyncClient
from guerdon.codec import describe
from guerdon.columns import Columns
from guerdon.errors import InvalidRequest
from guerdon.rewards import Rewards
from guerdon.texts import plain
from guerdon.types import Options, Result, Sample

#: Where a service listens that was started without saying where.
DEFAULT_URL = "http://127.0.0.1:8101"
DEFAULT_TIMEOUT_S = 120.0
#: What a configuration may say of a target.
SETTINGS = ("url", "service", "options", "rewards", "timeout_s")

NumberT = TypeVar("NumberT", int, float)

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
        InvalidRequest: the options are no JSON object, a number is none, or arguments contradict each other.
    """
    # An empty variable is one that is not set, as in a shell.
    given = {name: text for name, text in os.environ.items() if text}
    text = given.get("GUERDON_OPTIONS", "{}") if options is None else _json(options)
    _options(text, "GUERDON_OPTIONS" if options is None else "options")
    file = given.get("GUERDON_REWARDS") if rewards is None and url is None else rewards
    if file is not None and (url is not None or service is not None or text != "{}"):
        raise InvalidRequest(
            f"rewards: {file} says the url, service and options of each reward; give none beside it"
        )
    limit_s: Any = given.get("GUERDON_TIMEOUT_S", default_s) if timeout_s is None else timeout_s
    retries = given.get("GUERDON_RETRIES")
    return Target(
        url=url or given.get("GUERDON_URL", DEFAULT_URL),
        service=service or given.get("GUERDON_SERVICE"),
        options=text,
        rewards=None if file is None else os.fspath(file),
        timeout_s=min(
            most_s, _number("GUERDON_TIMEOUT_S" if timeout_s is None else "timeout_s", limit_s, float)
        ),
        retries=None if retries is None else _number("GUERDON_RETRIES", retries, int),
    )


def target_in(config: Mapping[str, Any], *, default_s: float, beside: Sequence[str] = ()) -> Target:
    """The target that a section of a trainer's configuration names; its other keys are the trainer's own.

    `beside` are what else an integration reads there.

    Raises:
        InvalidRequest: as `target`; or a key is nearly one of ours: passed over, it would change rewards unseen.
    """
    known = (*SETTINGS, *beside)
    for name in config:
        if name not in known and (close := get_close_matches(str(name), known, 1, 0.8)):
            raise InvalidRequest(f"{name}: unknown; did you mean {close[0]}?")
    found: dict[str, Any] = {name: config[name] for name in SETTINGS if config.get(name) is not None}
    return target(**found, default_s=default_s)


def columns_from_environment() -> Columns:
    """What GUERDON_COLUMNS says, for example {"references": "answer"}.

    Raises:
        InvalidRequest: it is not JSON, or names what `Columns` does not have.
    """
    text = os.environ.get("GUERDON_COLUMNS") or "{}"
    try:
        return TypeAdapter(Columns).validate_json(text)
    except ValidationError as error:
        raise InvalidRequest(f"GUERDON_COLUMNS: {describe(error)}") from error


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


def _json(options: Mapping[str, Any]) -> str:
    try:
        # OmegaConf's containers look like mappings, but json does not know them.
        return json.dumps(plain(options), sort_keys=True)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"options: not JSON: {error}") from error


def _options(text: str, name: str = "options") -> Options:
    try:
        return _OPTIONS.validate_json(text)
    except ValidationError as error:
        raise InvalidRequest(f"{name}: {describe(error)}") from error


def _number(name: str, value: Any, kind: type[NumberT]) -> NumberT:
    try:
        number = kind(value)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(
            f"{name}: {value!r} is no {'number' if kind is float else 'whole number'}"
        ) from error
    if not number >= 0:
        raise InvalidRequest(f"{name}: must be 0 or more, not {value!r}")
    return number
