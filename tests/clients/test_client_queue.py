"""The client over a real Redis queue: what the queue says of an entry, garbage, a full queue, no workers."""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import pytest
from redis.asyncio import Redis

from guerdon import codec, errors
from guerdon.client import AsyncClient
from guerdon.queue import Consumer, Entry, Producer, Reply
from guerdon.transports.queue import QueueTransport
from guerdon.types import Result, Sample, Status
from tests.waiting import until_async

SAMPLES = [Sample(id=f"s{i}", response="4") for i in range(4)]
RIGHT = Result(status=Status.OK, value=1.0)


@contextlib.asynccontextmanager
async def worker(url: str, answer: Callable[[Entry], Reply]) -> AsyncGenerator[None, None]:
    consumer, stopping = Consumer(url, "stub"), asyncio.Event()
    await consumer.start()

    async def work() -> None:
        while not stopping.is_set():
            for entry in await consumer.take(8):
                await consumer.complete(entry, answer(entry))

    task = asyncio.create_task(work())
    try:
        yield
    finally:
        stopping.set()
        await task
        await consumer.close()


def with_status(status: Status) -> Callable[[Entry], Reply]:
    return lambda entry: Reply(entry.request_id, status, "the queue says so", b"")


@pytest.mark.parametrize("status", [Status.TIMEOUT, Status.UNAVAILABLE, Status.INTERNAL_ERROR])
async def test_what_a_queue_says_of_an_entry_is_the_items_status(redis_url: str, status: Status) -> None:
    kind = {
        Status.TIMEOUT: errors.Timeout,
        Status.UNAVAILABLE: errors.Unavailable,
        Status.INTERNAL_ERROR: errors.InternalError,
    }[status]
    async with (
        worker(redis_url, with_status(status)),
        AsyncClient(redis_url, service="stub", retries=0) as client,
    ):
        results = await client.score(SAMPLES)
        assert [(one.id, one.status, one.value) for one in results] == [(s.id, status, None) for s in SAMPLES]
        # An operator finds the entry by it.
        assert all(re.fullmatch(r"the queue says so \(request \w{32}\)", one.reason) for one in results)
        with pytest.raises(kind, match="the queue says so"):
            await client.info()


async def test_queue_garbage_costs_only_its_item(redis_url: str) -> None:
    def answer(entry: Entry) -> Reply:
        good = entry.op == "score" and b"s1" not in entry.body
        body = codec.encode(RIGHT) if good else b"\xff\xff"
        return Reply(entry.request_id, Status.OK, "", body)

    async with worker(redis_url, answer), AsyncClient(redis_url, service="stub", retries=0) as client:
        results = await client.score(SAMPLES)
        assert [result.value for result in results] == [1.0, None, 1.0, 1.0]
        assert results[1].status is Status.INTERNAL_ERROR
        assert results[1].reason.startswith("the answer is no Result")
        with pytest.raises(errors.InternalError, match="the answer is no ServiceInfo"):
            await client.info()


def with_bound(transport: QueueTransport, url: str, bound: int) -> QueueTransport:
    transport._producer = Producer(url, "stub", max_length=bound)  # pyright: ignore[reportPrivateUsage]
    return transport


async def test_a_full_queue_refuses_the_request(redis_url: str) -> None:
    async with AsyncClient(redis_url, service="stub", timeout_s=60, retries=0) as client:
        client._transport = with_bound(QueueTransport(redis_url, "stub"), redis_url, 0)  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(errors.Overloaded):
            await client.score(SAMPLES)


async def test_a_batch_larger_than_the_queue_goes_in_as_room_appears(redis_url: str) -> None:
    async with AsyncClient(redis_url, service="stub", timeout_s=30.0) as client:
        client._transport = with_bound(QueueTransport(redis_url, "stub"), redis_url, 2)  # pyright: ignore[reportPrivateUsage]
        async with worker(
            redis_url, lambda entry: Reply(entry.request_id, Status.OK, "", codec.encode(RIGHT))
        ):
            assert [result.value for result in await client.score(SAMPLES)] == [1.0] * 4


async def test_a_queue_without_workers_times_out_item_by_item(redis_url: str) -> None:
    async with AsyncClient(redis_url, service="stub", timeout_s=2.0) as client:
        results = await client.score(SAMPLES)
        assert {result.status for result in results} == {Status.TIMEOUT}
        with pytest.raises(errors.Timeout):
            await client.info()


async def test_leaving_a_stream_early_withdraws_what_is_queued(redis_url: str) -> None:
    async with Redis.from_url(redis_url) as redis, AsyncClient(redis_url, service="stub") as client:
        task = asyncio.create_task(client.score(SAMPLES))
        queue = "{stub}:q:1"

        async def queued() -> bool:
            return await redis.xlen(queue) == len(SAMPLES)

        await until_async(queued)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        flights = await redis.keys("{stub}:dd:*")
        await until_async(lambda: withdrawn(redis, flights))


async def withdrawn(redis: Redis, flights: Sequence[bytes | str]) -> bool:
    """Whether every one of the requests in flight is marked as cancelled, or gone."""
    marks = [await redis.hget(flight, "cancelled") for flight in flights]  # pyright: ignore[reportGeneralTypeIssues]
    gone = [not await redis.exists(flight) for flight in flights]
    return all(bool(mark) or away for mark, away in zip(marks, gone, strict=True))


async def test_a_key_finds_what_another_client_was_answered(redis_url: str) -> None:
    asked: list[bytes] = []

    def answer(entry: Entry) -> Reply:
        asked.append(entry.body)
        right = Result(status=Status.OK, value=float(len(asked)))
        return Reply(entry.request_id, Status.OK, "", codec.encode(right))

    async def score(samples: list[Sample], key: str | None) -> list[float | None]:
        async with AsyncClient(redis_url, service="stub") as client:
            return [result.value for result in await client.score(samples, key=key)]

    async with worker(redis_url, answer):
        first = await score(SAMPLES, "step 3")
        assert sorted(value or 0.0 for value in first) == [1.0, 2.0, 3.0, 4.0]
        assert await score(SAMPLES, "step 3") == first
        assert len(asked) == 4
        # Another sample never gets the answer of one that had its place, and no key means no memory.
        assert await score([*SAMPLES[:3], Sample(id="s3", response="5")], "step 3") == [*first[:3], 5.0]
        assert set(await score(SAMPLES, "step 4")) == {6.0, 7.0, 8.0, 9.0}
        assert set(await score(SAMPLES, None)) == {10.0, 11.0, 12.0, 13.0}


async def test_the_same_prompt_twice_in_a_batch_is_two_requests(redis_url: str) -> None:
    asked: list[str] = []

    def answer(entry: Entry) -> Reply:
        asked.append(entry.request_id)
        return Reply(entry.request_id, Status.OK, "", codec.encode(RIGHT))

    async with worker(redis_url, answer), AsyncClient(redis_url, service="stub") as client:
        await client.score([SAMPLES[0]] * 3, key="k")
        assert len(set(asked)) == 3


async def test_a_batch_that_has_begun_waits_for_redis(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from guerdon.queue import producer as producer_module

    # Far less than the outage lasts.
    monkeypatch.setattr(producer_module, "SUBMIT_PATIENCE_S", 0.0)
    transport = QueueTransport(redis_url, "stub")
    link = transport._producer._link  # pyright: ignore[reportPrivateUsage]
    call, failures = link._round_trip, 0  # pyright: ignore[reportPrivateUsage]

    async def round_trip(calls: Sequence[Any]) -> list[Any]:
        nonlocal failures
        # The first submission goes through, the next three do not.
        if calls[0].script == "submit" and b"s0" not in calls[0].arguments[2] and failures < 3:
            failures += 1
            raise ConnectionError("Redis is away")
        return await call(calls)

    monkeypatch.setattr(link, "_round_trip", round_trip)
    async with (
        worker(redis_url, lambda entry: Reply(entry.request_id, Status.OK, "", codec.encode(RIGHT))),
        AsyncClient(redis_url, service="stub") as client,
    ):
        client._transport = transport  # pyright: ignore[reportPrivateUsage]
        assert [result.value for result in await client.score(SAMPLES)] == [1.0] * 4
    assert failures == 3
