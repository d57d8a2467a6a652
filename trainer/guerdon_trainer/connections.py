"""The clients of a run: where they ask, with which token, and what a killed attempt left in their queues."""

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path

from guerdon.client import AsyncClient
from guerdon.errors import InvalidRequest
from guerdon.queue import withdraw
from guerdon_trainer.config import RecipeError, RunConfig, SourceConfig
from guerdon_trainer.run_folder import write_whole
from guerdon_trainer.service_calls import reach_queues


def connect(config: RunConfig, redis_url: str, *, spare: bool = False) -> dict[str, AsyncClient]:
    """A client for every service that the recipe uses, over the queue unless it has a URL.

    With `spare` also for those that it only starts. The clients themselves do not retry: failures are repeated, and
    counted, here.

    Raises:
        RecipeError: a URL cannot be one, or a token is not there or cannot be sent; the message names the service.
    """
    return {
        name: _client(name, source, redis_url, config.failures.timeout_s)
        for name, source in (config.sources | (config.spare_sources if spare else {})).items()
    }


def _client(name: str, source: SourceConfig, redis_url: str, timeout_s: float) -> AsyncClient:
    token = None
    if source.url is not None:
        token = os.environ.get(source.token_env or "GUERDON_TOKEN")
    if source.token_env is not None and not token:
        raise RecipeError(f"{name}: token_env: the environment variable {source.token_env} is not set")
    try:
        return AsyncClient(
            source.url or redis_url, service=source.service, token=token, timeout_s=timeout_s, retries=0
        )
    except InvalidRequest as error:
        raise RecipeError(f"{name}: {error}") from error


def check_queues(config: RunConfig, redis_url: str) -> None:
    """Make sure that every Redis which the run asks through is there.

    Raises:
        Unavailable: one cannot be reached; the message names its URL.
    """
    asyncio.run(reach_queues((one.url or redis_url, one.service) for one in config.sources.values()))


def take_over(clients: Mapping[str, AsyncClient], config: RunConfig, redis_url: str, record: Path) -> int:
    """Withdraw what an earlier attempt of the run left in the queues when it was killed; how many requests.

    `record` is the file in which each attempt notes its clients' names, this one too.

    Raises:
        Unavailable: Redis cannot be reached.
    """
    earlier: dict[str, str] = json.loads(record.read_text()) if record.exists() else {}

    async def withdraw_all() -> int:
        return sum([await withdraw(redis_url, queue, client_id) for client_id, queue in earlier.items()])

    withdrawn = asyncio.run(withdraw_all())
    queues = {name: source.service for name, source in config.sources.items() if source.url is None}
    names = {clients[name].client_id: queue for name, queue in queues.items()}
    write_whole(record, json.dumps(names))
    return withdrawn
