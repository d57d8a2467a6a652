"""What nobody would send, and keys that somebody else has written: refused, or paid by the one request concerned."""

import asyncio
import hashlib
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from guerdon import errors
from guerdon.queue import Consumer, Entry, Producer, Reply, dead_letters, redrive
from guerdon.queue import consumer as consumer_module
from guerdon.queue import link as link_module
from guerdon.queue import producer as producer_module
from guerdon.types import Status
from tests.waiting import PATIENCE_S, until_async


class Bench:
    """A client, a worker that is told when to work, and Redis itself."""

    def __init__(self, url: str) -> None:
        self.client = Producer(url, "math")
        self.worker = Consumer(url, "math")
        self.redis: Any = cast(Any, Redis).from_url(url)
        self.url = url

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """The worker answers whatever comes."""
        enough = asyncio.Event()

        async def work() -> None:
            while not enough.is_set():
                for entry in await self.worker.take(16):
                    await self.worker.complete(entry, ok(entry))

        task = asyncio.create_task(work())
        try:
            async with asyncio.timeout(PATIENCE_S):
                yield
        finally:
            enough.set()
            await task

    async def answered(self, *futures: asyncio.Future[Reply]) -> list[Reply]:
        """The replies, while the worker works."""
        async with self.working():
            return list(await asyncio.gather(*futures))


def ok(entry: Entry) -> Reply:
    return Reply(entry.request_id, Status.OK, "", b"done")


@pytest.fixture
async def bench(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(producer_module, "PROBE_EVERY_S", 0.2)
    async with opened(redis_url) as made:
        yield made


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Bench]:
    made = Bench(url)
    await made.worker.start()
    try:
        yield made
    finally:
        await made.client.close()
        await made.worker.close()
        await made.redis.aclose()


@pytest.mark.parametrize("deadline_s", [math.inf, 1e300, 1e13])
async def test_a_deadline_may_be_as_far_away_as_one_likes(bench: Bench, deadline_s: float) -> None:
    [reply] = await bench.answered(await bench.client.submit("score", b"", deadline_s=deadline_s))
    assert reply.status is Status.OK


async def test_a_deadline_that_is_no_number_is_refused(bench: Bench) -> None:
    with pytest.raises(errors.InvalidRequest, match="deadline_s: must be a number of seconds, not nan"):
        await bench.client.submit("score", b"", deadline_s=math.nan)
    assert bench.client._waiting == {}


@pytest.mark.parametrize("request_id", ["nul \0", "日本語 \U0001f600", "{}:\r\n*", "x" * 1024])
async def test_an_id_may_be_any_text(bench: Bench, request_id: str) -> None:
    [reply] = await bench.answered(await bench.client.submit("score", b"", request_id=request_id))
    assert (reply.request_id, reply.body) == (request_id, b"done")


@pytest.mark.parametrize(
    ("request_id", "words"), [("half \udcff", "half of a surrogate pair"), ("ü" * 513, "has 1026 bytes")]
)
async def test_an_id_that_no_answer_could_name_is_refused(bench: Bench, request_id: str, words: str) -> None:
    with pytest.raises(errors.InvalidRequest, match=words):
        await bench.client.submit("score", b"", request_id=request_id)
    assert bench.client._waiting == {}


@pytest.mark.parametrize("key", ["res:wrong", "dd:wrong"])
async def test_keys_that_hold_something_else_cost_their_request_alone(bench: Bench, key: str) -> None:
    wrong = await bench.client.submit("score", b"", request_id="wrong")
    right = await bench.client.submit("score", b"", request_id="right")
    await bench.redis.set(f"{{math}}:{key}", "a string")
    replies = await bench.answered(wrong, right)
    assert [(one.status, one.body) for one in replies] == [
        (Status.INTERNAL_ERROR, b""),
        (Status.OK, b"done"),
    ]
    assert replies[0].reason == "Redis holds something else under the keys of this request"

    async def empty() -> bool:
        return await bench.redis.xlen("{math}:q:1") == 0

    async with bench.working():
        await until_async(empty)
    [letter] = [letter async for letter in dead_letters(bench.url, "math")]
    assert letter.request_id == "wrong"
    assert letter.reason.startswith("its keys hold something else: WRONGTYPE")
    if key == "res:wrong":
        other = await bench.redis.xadd(
            "{math}:dlq", {"rid": "other", "op": "score", "body": "", "client": ""}
        )
        states = await redrive(bench.url, "math", [letter.letter_id, other.decode()])
        assert states == ["malformed", "queued"]


async def test_a_client_whose_stream_is_something_else_stops_nobody(bench: Bench, redis_url: str) -> None:
    async with opened(redis_url) as other:
        lost = await bench.client.submit("score", b"", request_id="lost")
        await bench.redis.delete(f"{{math}}:reply:{bench.client.client_id}")
        await bench.redis.set(f"{{math}}:reply:{bench.client.client_id}", "a string")
        [reply] = await bench.answered(await other.client.submit("score", b""))
        assert reply.status is Status.OK
        await bench.redis.delete(f"{{math}}:reply:{bench.client.client_id}")
        # Its result was kept, and it asks again.
        [reply] = await bench.answered(lost)
        assert reply.body == b"done"


async def test_answers_are_found_when_redis_lost_its_data_and_its_clock_went_back(bench: Bench) -> None:
    stream = f"{{math}}:reply:{bench.client.client_id}"
    first = await bench.client.submit("score", b"", request_id="first")
    # As a server numbers whose clock is ahead.
    await bench.redis.xadd(stream, {"rid": "first", "status": "ok", "body": "early"}, id="99999999999999-0")
    assert (await asyncio.wait_for(first, PATIENCE_S)).body == b"early"
    await bench.redis.flushdb()
    [reply] = await bench.answered(await bench.client.submit("score", b"", request_id="second"))
    assert reply.body == b"done"


async def test_what_is_too_large_for_redis_is_refused_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "MAX_CALL_BYTES", 100_000)
    small = await bench.client.submit("score", b"")
    with pytest.raises(errors.TooLarge, match="larger than max"):
        await bench.client.submit("score", bytes(100_001))
    [reply] = await bench.answered(small)
    assert reply.status is Status.OK


async def test_an_answer_that_is_too_large_for_redis_is_a_failure_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "MAX_CALL_BYTES", 100_000)
    future = await bench.client.submit("score", b"")
    entries: list[Entry] = []
    async with asyncio.timeout(PATIENCE_S):
        while not entries:
            entries = await bench.worker.take(1)
        await bench.worker.complete(entries[0], Reply(entries[0].request_id, Status.OK, "", bytes(100_001)))
        reply = await future
    assert (reply.status, reply.body) == (Status.INTERNAL_ERROR, b"")
    assert reply.reason.startswith("the answer: ")
    assert await bench.redis.xlen("{math}:q:1") == 0


async def test_large_calls_travel_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "TRIP_BYTES", 100_000)
    trips: list[list[int]] = []
    link = bench.client._link
    round_trip = link._round_trip

    async def counted(calls: Any) -> list[Any]:
        trips.append([len(call.arguments[2]) for call in calls if call.script == "submit"])
        return await round_trip(calls)

    monkeypatch.setattr(link, "_round_trip", counted)
    bodies = [bytes(size) for size in (10, 20, 90_000, 20_000, 200_000, 30)]
    futures = await asyncio.gather(*(bench.client.submit("score", body) for body in bodies))
    assert [trip for trip in trips if trip] == [[10, 20, 90_000], [20_000], [200_000], [30]]
    assert {reply.body for reply in await bench.answered(*futures)} == {b"done"}


async def test_a_redis_that_is_too_old_is_named(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = b"this is no Lua"
    monkeypatch.setattr(link_module, "SCRIPTS", {"join": (hashlib.sha1(source).hexdigest(), source)})
    worker = Consumer(redis_url, "math")
    with pytest.raises(errors.InternalError, match=r"it must be Valkey or Redis 7\.0 or newer"):
        await worker.start()
    await worker._link.close()


async def test_a_long_lease_is_renewed_before_a_worker_with_a_short_one_sees_it_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "RENEW_EVERY_S", 0.5)
    worker = Consumer(bench.url, "math", lease_s=600)
    await worker.start()
    await bench.client.submit("score", b"")
    entries: list[Entry] = []

    async def idle_ms() -> int:
        [pending] = await bench.redis.xpending_range("{math}:q:1", "workers", "-", "+", 1)
        return pending["time_since_delivered"]

    async with asyncio.timeout(PATIENCE_S):
        while not entries:
            entries = await worker.take(1)
        before = await idle_ms()
        while (now := await idle_ms()) >= before:
            before = now
            await asyncio.sleep(0.02)
        await worker.complete(entries[0], ok(entries[0]))
    await worker.close()
