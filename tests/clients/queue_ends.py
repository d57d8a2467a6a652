"""Both ends of a queue of the service `math`, and what tests do with them. Tests import this by name."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from redis.asyncio import Redis

from guerdon.queue import Consumer, Entry, Producer, Reply
from guerdon.types import Status
from tests.waiting import PATIENCE_S


@asynccontextmanager
async def producer(url: str, **settings: Any) -> AsyncIterator[Producer]:
    made = Producer(url, "math", **settings)
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def consumer(url: str, **settings: Any) -> AsyncIterator[Consumer]:
    made = Consumer(url, "math", **settings)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def redis(url: str) -> AsyncIterator[Any]:
    client = cast(Any, Redis).from_url(url)
    try:
        yield client
    finally:
        await client.aclose()


def ok(entry: Entry, body: bytes = b"done") -> Reply:
    return Reply(entry.request_id, Status.OK, "", body)


async def take(worker: Consumer, count: int, *, at_once: int = 64) -> list[Entry]:
    """Exactly `count` entries, over as many takes as it needs."""
    taken: list[Entry] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(taken) < count:
            taken += await worker.take(min(at_once, count - len(taken)))
    return taken
