"""What dead workers leave, what is handed back, and what is given up, on a real server."""

import asyncio

import pytest
from queue_ends import consumer, ok, producer, redis, take

from guerdon.queue import Consumer, stats
from guerdon.queue import consumer as consumer_module
from guerdon.types import Status


async def test_released_work_is_delivered_again_at_once_and_uncounted(redis_url: str) -> None:
    async with producer(redis_url) as client, consumer(redis_url) as other:
        for i in range(10):
            await client.submit("score", b"", request_id=f"r{i}")
        async with consumer(redis_url) as drained:
            entries = await take(drained, 10)
            await drained.release(entries[:4])
            # Closing hands back the rest.
        entries = await take(other, 10)
        assert sorted(entry.request_id for entry in entries) == [f"r{i}" for i in range(10)]
        assert {entry.deliveries for entry in entries} == {1}
        assert (await stats(redis_url, "math")).workers == 1


async def test_what_one_dead_worker_left_is_rescued_together(redis_url: str) -> None:
    async with producer(redis_url) as client, consumer(redis_url) as rescuer:
        for i in range(3):
            await client.submit("score", b"", request_id=f"r{i}")
        await abandon(redis_url, 3)
        await client.submit("score", b"", request_id="new")
        entries = await take(rescuer, 4)
        assert [(entry.request_id, entry.deliveries) for entry in entries] == [
            *((f"r{i}", 2) for i in range(3)),
            ("new", 1),
        ]


async def test_what_two_dead_workers_left_runs_alone(redis_url: str) -> None:
    async with producer(redis_url) as client, consumer(redis_url) as rescuer:
        await client.submit("score", b"", request_id="new")
        [held] = await take(rescuer, 1)
        for i in range(3):
            await client.submit("score", b"", request_id=f"r{i}")
        await abandon(redis_url, 3, deliveries=2)
        # Something is held, so nothing that may crash this worker is given out, and nothing new either.
        await client.submit("score", b"", request_id="newer")
        await asyncio.sleep(consumer_module.RESCUE_EVERY_S)
        assert await rescuer.take(8) == []
        await rescuer.complete(held, ok(held))
        for i in range(3):
            [entry] = await rescuer.take(8)
            assert (entry.request_id, entry.deliveries) == (f"r{i}", 3)
            assert await rescuer.take(8) == []
            await rescuer.complete(entry, ok(entry))
        assert [entry.request_id for entry in await rescuer.take(8)] == ["newer"]


async def abandon(url: str, count: int, *, deliveries: int = 1) -> None:
    """Take `count` entries as workers that died would have left them: a lease ago."""
    async with redis(url) as server:
        await server.xreadgroup("workers", "dead", {"{math}:q:1": ">"}, count=count)
        left = await server.xpending_range("{math}:q:1", "workers", "-", "+", count, consumername="dead")
        assert len(left) == count
        ids = [entry["message_id"] for entry in left]
        settings = {"idle": 3_600_000, "retrycount": deliveries, "justid": True}
        await server.xclaim("{math}:q:1", "workers", "dead", 0, ids, **settings)


async def die(worker: Consumer) -> None:
    """Cut the connection without handing anything back."""
    assert worker._renewer is not None
    worker._renewer.cancel()
    await asyncio.wait([worker._renewer])
    await worker._link.close()


async def test_a_restarted_worker_of_the_same_name_need_not_wait(redis_url: str) -> None:
    async with producer(redis_url) as client:
        await client.submit("score", b"", request_id="r")
        dying = Consumer(redis_url, "math", consumer_id="same", lease_s=600)
        await dying.start()
        await take(dying, 1)
        await die(dying)
        async with consumer(redis_url, consumer_id="same", lease_s=600) as reborn:
            [entry] = await take(reborn, 1)
            assert (entry.request_id, entry.deliveries) == ("r", 2)


async def test_a_long_task_keeps_its_lease(redis_url: str) -> None:
    async with (
        producer(redis_url) as client,
        consumer(redis_url, lease_s=5.0) as slow,
        consumer(redis_url, lease_s=5.0) as idle,
    ):
        future = await client.submit("update", b"")
        [entry] = await take(slow, 1)
        # Two leases, and nobody else gets it.
        end = asyncio.get_running_loop().time() + 10.0
        while asyncio.get_running_loop().time() < end:
            assert await idle.take(1) == []
        await slow.complete(entry, ok(entry))
        assert (await future).status is Status.OK


async def test_dead_letter_after_the_last_delivery(redis_url: str) -> None:
    async with producer(redis_url) as client, redis(redis_url) as server:
        future = await client.submit("score", b"poison", request_id="p")
        for delivery in range(1, 4):
            # Each life of worker "a" takes the entry and vanishes without a word.
            life = Consumer(redis_url, "math", consumer_id="a", max_deliveries=3)
            await life.start()
            [entry] = await take(life, 1)
            assert entry.deliveries == delivery
            await die(life)
        async with consumer(redis_url, consumer_id="a", max_deliveries=3) as last:
            assert await last.take(1) == []
        reply = await future
        assert reply.status is Status.INTERNAL_ERROR
        assert "3 workers" in reply.reason
        [(_, letter)] = await server.xrange("{math}:dlq")
        assert (letter[b"rid"], letter[b"body"], letter[b"deliveries"]) == (b"p", b"poison", b"3")
        assert (await stats(redis_url, "math")).dead == 1


MALFORMED: list[dict[str | bytes, str | bytes]] = [
    {"a": "b"},
    {"rid": "m", "op": "score", "client": "c"},
    {"rid": "m", "op": "score", "body": "", "client": "c", "deadline": "soon", "enqueued": "1"},
    {"rid": "m", "op": "score", "body": "", "client": "c", "deadline": "", "enqueued": "nan"},
    {"rid": "m", "op": "score", "body": "", "client": "c", "deadline": "9" * 30, "enqueued": "1"},
    {"rid": "m", "op": b"\xff", "body": "", "client": "c", "deadline": "", "enqueued": "1"},
    {"rid": b"\xff", "op": "score", "body": "", "client": b"\xfe", "deadline": "", "enqueued": "1"},
]


@pytest.mark.parametrize("fields", MALFORMED)
@pytest.mark.parametrize("waiting", [True, False])
async def test_a_malformed_entry_is_answered_and_stops_no_worker(
    redis_url: str, fields: dict[str | bytes, str | bytes], waiting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "BLOCK_MS", 50)
    async with producer(redis_url) as client, consumer(redis_url) as worker, redis(redis_url) as server:
        taking = asyncio.create_task(take(worker, 1)) if waiting else None
        await server.xadd("{math}:q:1", fields)
        await client.submit("score", b"", request_id="good")
        [entry] = await (taking or take(worker, 1))
        assert entry.request_id == "good"
        assert await worker.take(1) == []
        assert await server.xlen("{math}:q:1") == 1
        if fields.get("client") == "c":
            [(_, answer)] = await server.xrange("{math}:reply:c")
            assert answer[b"status"] == b"invalid_input"
            assert answer[b"reason"].startswith(b"malformed queue entry: ")


async def test_a_malformed_entry_left_by_a_dead_worker_is_a_dead_letter(redis_url: str) -> None:
    async with (
        producer(redis_url) as client,
        consumer(redis_url, lease_s=0.1) as worker,
        redis(redis_url) as server,
    ):
        await server.xadd("{math}:q:1", {"a": "b"})
        await server.xreadgroup("workers", "dead", {"{math}:q:1": ">"})
        await asyncio.sleep(0.2)
        await client.submit("score", b"", request_id="good")
        assert [entry.request_id for entry in await take(worker, 1)] == ["good"]
        assert (await stats(redis_url, "math")).dead == 1


async def test_what_was_given_to_a_slow_worker_and_taken_by_another_is_done_by_the_other(
    redis_url: str,
) -> None:
    async with producer(redis_url) as client, consumer(redis_url) as slow:
        await client.submit("score", b"", request_id="r")
        async with redis(redis_url) as server:
            given = await server.xreadgroup("workers", slow.consumer_id, {"{math}:q:1": ">"}, count=1)
        [[stream, [[id, _]]]] = given
        async with consumer(redis_url, lease_s=0.1) as other:
            [entry] = await take(other, 1)
            # What a worker asks for once its blocking read has been given something.
            mine = await slow._take_now(1, given=[stream, id])  # pyright: ignore[reportPrivateUsage]
            await other.complete(entry, ok(entry))
    assert (mine, entry.request_id, entry.deliveries) == ((False, []), "r", 2)
