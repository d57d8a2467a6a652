"""The queue's promises one by one, on a real server, producer and consumer in one process."""

import asyncio
from typing import Any

import pytest
from queue_ends import consumer, ok, producer, redis, take
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoScriptError,
    OutOfMemoryError,
    ResponseError,
)

from guerdon import errors
from guerdon.queue import Reply, stats
from guerdon.queue import producer as producer_module
from guerdon.queue.link import Link
from guerdon.types import Status
from tests.waiting import PATIENCE_S, until_async


async def test_request_and_reply(redis_url: str) -> None:
    async with producer(redis_url) as client, consumer(redis_url) as worker:
        future = await client.submit("score", b"\x00\xffbody", request_id="r1", deadline_s=30)
        [entry] = await take(worker, 1)
        assert (entry.request_id, entry.op, entry.body) == ("r1", "score", b"\x00\xffbody")
        assert (entry.client, entry.deliveries) == (client.client_id, 1)
        assert entry.deadline_unix_ms is not None
        # What went by until it was there is off.
        assert 0 < entry.deadline_unix_ms - entry.enqueued_unix_ms <= 30_000
        assert entry.left_s is not None
        assert 0 < entry.left_s <= 30
        await worker.complete(entry, ok(entry, b"\x01\x00"))
        assert await future == Reply("r1", Status.OK, "", b"\x01\x00")


async def test_an_entry_brings_its_trace_and_says_how_long_it_waited(redis_url: str) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with producer(redis_url) as client, redis(redis_url) as server:
        await client.submit("score", b"traced", trace=trace)
        # One that an older client wrote half a minute ago.
        seconds, _ = await server.time()
        fields = {"rid": "old", "op": "score", "body": b"", "client": client.client_id}
        await server.xadd("{math}:q:1", {**fields, "enqueued": 1000 * (seconds - 30)})
        async with consumer(redis_url) as worker:
            traced, old = await take(worker, 2)
    assert (traced.trace, old.trace) == (trace, "")
    assert 0 <= traced.waited_s < old.waited_s
    assert old.waited_s >= 30


async def test_a_request_without_deadline_has_none(redis_url: str) -> None:
    async with producer(redis_url) as client, consumer(redis_url) as worker:
        await client.submit("score", b"")
        [entry] = await take(worker, 1)
        assert (entry.deadline_unix_ms, entry.left_s) == (None, None)


async def test_take_returns_empty_when_nothing_comes(redis_url: str) -> None:
    async with consumer(redis_url) as worker:
        assert await worker.take(8) == []


async def test_high_priority_first_and_never_more_than_asked(redis_url: str) -> None:
    async with producer(redis_url) as client, consumer(redis_url) as worker:
        for i in range(5):
            await client.submit("score", b"", request_id=f"low{i}")
        for i in range(3):
            await client.submit("info", b"", request_id=f"high{i}", high_priority=True)
        first = await worker.take(4)
        assert [entry.request_id for entry in first] == ["high0", "high1", "high2", "low0"]
        rest = await worker.take(64)
        assert [entry.request_id for entry in rest] == ["low1", "low2", "low3", "low4"]


async def test_a_waiting_worker_asked_for_one_gets_one(redis_url: str) -> None:
    async with producer(redis_url) as client, consumer(redis_url) as worker:
        waiting = asyncio.create_task(worker.take(1))
        await asyncio.gather(
            client.submit("score", b"", request_id="low"),
            client.submit("score", b"", request_id="high", high_priority=True),
        )
        first = await waiting or await take(worker, 1)
        assert len(first) == 1
        second = await take(worker, 1)
        assert {first[0].request_id, second[0].request_id} == {"low", "high"}


async def test_duplicate_submission_in_flight_is_queued_once(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_module, "PROBE_EVERY_S", 0.3)
    async with producer(redis_url) as one, producer(redis_url) as two, consumer(redis_url) as worker:
        await one.submit("score", b"a", request_id="same")
        again = await one.submit("score", b"a", request_id="same")
        elsewhere = await two.submit("score", b"a", request_id="same")
        assert (await stats(redis_url, "math")).queued == 1
        [entry] = await take(worker, 1)
        assert await worker.take(1) == []
        await worker.complete(entry, ok(entry))
        # The last client that asked is answered first; the other one asks again after a silence.
        assert (await asyncio.wait_for(elsewhere, PATIENCE_S)).body == b"done"
        assert (await asyncio.wait_for(again, PATIENCE_S)).body == b"done"


async def test_resubmission_returns_the_stored_result(redis_url: str) -> None:
    async with consumer(redis_url) as worker:
        async with producer(redis_url) as first:
            future = await first.submit("update", b"a", request_id="u1")
            [entry] = await take(worker, 1)
            await worker.complete(entry, ok(entry, b"first"))
            await future
        async with producer(redis_url) as second:
            again = await second.submit("update", b"a", request_id="u1")
            assert (await asyncio.wait_for(again, PATIENCE_S)).body == b"first"
        assert await worker.take(1) == []


async def test_only_the_first_completion_is_seen(redis_url: str) -> None:
    async with producer(redis_url) as client, consumer(redis_url) as worker, redis(redis_url) as server:
        future = await client.submit("score", b"", request_id="r")
        [entry] = await take(worker, 1)
        await worker.complete(entry, ok(entry, b"first"))
        await worker.complete(entry, ok(entry, b"second"))
        assert (await future).body == b"first"
        assert await server.hget("{math}:res:r", "body") == b"first"

        async def read() -> bool:
            return await server.xlen(f"{{math}}:reply:{client.client_id}") == 0

        await until_async(read)


async def test_a_reason_without_utf8_form_arrives_escaped_and_harms_no_neighbour(redis_url: str) -> None:
    async with producer(redis_url) as client, consumer(redis_url) as worker:
        odd = await client.submit("score", b"", request_id="odd")
        plain = await client.submit("score", b"", request_id="plain")
        entries = await take(worker, 2)
        replies = {"odd": Reply("odd", Status.INTERNAL_ERROR, "ü \udcff", b""), "plain": ok(entries[1])}
        # At the same time, so that both share a round trip.
        await asyncio.gather(*(worker.complete(entry, replies[entry.request_id]) for entry in entries))
        assert (await asyncio.wait_for(odd, PATIENCE_S)).reason == "ü \\udcff"
        assert (await asyncio.wait_for(plain, PATIENCE_S)).status is Status.OK


async def test_a_worker_outlives_errors_that_are_none_of_rediss(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with producer(redis_url) as client, consumer(redis_url) as worker:

        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("unable to perform operation on a closed transport")

        for name in ("pipeline", "execute_command"):
            with monkeypatch.context() as patch:
                patch.setattr(worker._link._redis, name, fail)
                assert await worker.take(1) == []
        await client.submit("score", b"", request_id="r")
        assert [entry.request_id for entry in await take(worker, 1)] == ["r"]


async def test_a_passing_failure_is_not_kept(redis_url: str) -> None:
    async with producer(redis_url) as client, consumer(redis_url) as worker:
        future = await client.submit("score", b"", request_id="r")
        [entry] = await take(worker, 1)
        await worker.complete(entry, Reply("r", Status.UNAVAILABLE, "stopping", b""))
        assert await future == Reply("r", Status.UNAVAILABLE, "stopping", b"")
        retried = await client.submit("score", b"", request_id="r")
        [entry] = await take(worker, 1)
        await worker.complete(entry, ok(entry))
        assert (await retried).status is Status.OK


async def test_full_queue_refuses_and_loses_nothing(redis_url: str) -> None:
    async with producer(redis_url, max_length=5) as client, consumer(redis_url) as worker:
        futures = [await client.submit("score", b"", request_id=f"r{i}") for i in range(5)]
        with pytest.raises(errors.Overloaded, match="math"):
            await client.submit("score", b"", request_id="r5")
        # The other priority has its own bound, and what is in there already is no addition.
        futures.append(await client.submit("info", b"", high_priority=True))
        await client.submit("score", b"", request_id="r0")
        entries = await take(worker, 6)
        with pytest.raises(errors.Overloaded):
            await client.submit("score", b"", request_id="r5")
        for entry in entries:
            await worker.complete(entry, ok(entry))
        assert {reply.status for reply in await asyncio.gather(*futures)} == {Status.OK}
        await client.submit("score", b"", request_id="r5")
        assert len(await take(worker, 1)) == 1


async def test_deadline_that_has_passed_already_queues_nothing(redis_url: str) -> None:
    async with producer(redis_url) as client:
        future = await client.submit("score", b"", deadline_s=0.0)
        assert (await future).status is Status.TIMEOUT
        assert (await stats(redis_url, "math")).queued == 0


async def test_expired_work_is_skipped_and_answered(redis_url: str) -> None:
    async with producer(redis_url) as client, redis(redis_url) as server:
        # The first submission also connects, and the deadline in Redis starts when the request is there.
        first = await client.submit("score", b"", request_id="first")
        expired = await client.submit("score", b"", request_id="late", deadline_s=0.05)
        live = await client.submit("score", b"", request_id="live", deadline_s=60)
        assert (await expired).status is Status.TIMEOUT
        await asyncio.sleep(0.05)
        async with consumer(redis_url) as worker:
            entries = await take(worker, 2)
            assert [entry.request_id for entry in entries] == ["first", "live"]
            for entry in entries:
                await worker.complete(entry, ok(entry))
            assert (await first).status is (await live).status is Status.OK
        assert await server.exists("{math}:res:late", "{math}:dd:late") == 0
        assert await server.xlen("{math}:q:1") == 0


async def test_a_worker_reports_expiry_when_the_client_does_not_notice(redis_url: str) -> None:
    async with producer(redis_url) as client, consumer(redis_url) as worker, redis(redis_url) as server:
        future = await client.submit("score", b"", request_id="r", deadline_s=60)
        await server.hset("{math}:dd:r", "deadline", "1")
        assert await worker.take(1) == []
        reply = await future
        assert reply.status is Status.TIMEOUT
        assert "deadline" in reply.reason


async def test_cancelled_work_is_skipped(redis_url: str) -> None:
    async with producer(redis_url) as client, redis(redis_url) as server:
        doomed = await client.submit("score", b"", request_id="doomed")
        await client.submit("score", b"", request_id="wanted")
        doomed.cancel()

        async def cancelled() -> bool:
            return bool(await server.hexists("{math}:dd:doomed", "cancelled"))

        await until_async(cancelled)
        async with consumer(redis_url) as worker:
            entries = await worker.take(8)
            assert [entry.request_id for entry in entries] == ["wanted"]


async def test_cancelled_work_that_is_submitted_again_is_done(redis_url: str) -> None:
    async with producer(redis_url) as client, consumer(redis_url) as worker:
        (await client.submit("score", b"", request_id="r")).cancel()
        future = await client.submit("score", b"", request_id="r")
        [entry] = await take(worker, 1)
        await worker.complete(entry, ok(entry))
        assert (await future).status is Status.OK


async def test_who_joins_a_request_in_flight_may_leave_it_to_the_other(redis_url: str) -> None:
    async with producer(redis_url) as client, consumer(redis_url) as worker:
        first = await client.submit("score", b"", request_id="r")
        second = await client.submit("score", b"", request_id="r")
        third = await client.submit("score", b"", request_id="r")
        second.cancel()
        [entry] = await take(worker, 1)
        await worker.complete(entry, ok(entry))
        assert (await first).status is Status.OK
        assert (await third).status is Status.OK


async def test_fields_that_another_release_adds_or_leaves_out_do_no_harm(redis_url: str) -> None:
    async with consumer(redis_url) as worker, redis(redis_url) as server:
        named = {"rid": "r", "op": "score", "body": b"b", "client": "c"}
        id = await server.xadd("{math}:q:1", {**named, "shard": "7"})
        [entry] = await take(worker, 1)
        assert (entry.request_id, entry.body, entry.deadline_unix_ms, entry.left_s) == ("r", b"b", None, None)
        assert entry.enqueued_unix_ms == int(id.split(b"-")[0])
        await worker.complete(entry, ok(entry))
        [(_, answer)] = await server.xrange("{math}:reply:c")
        assert (answer[b"rid"], answer[b"status"]) == (b"r", b"ok")
        assert await server.hget("{math}:res:r", "body") == b"done"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"status": "deferred", "body": b"x"}, "unknown status 'deferred'"),
        ({"status": "ok"}, "without a body"),
        ({"body": b"x"}, "unknown status ''"),
    ],
)
async def test_a_reply_that_cannot_be_read_is_no_reward_and_harms_no_other(
    redis_url: str, fields: dict[str, Any], reason: str
) -> None:
    async with producer(redis_url) as client, consumer(redis_url) as worker, redis(redis_url) as server:
        odd = await client.submit("score", b"", request_id="odd")
        plain = await client.submit("score", b"", request_id="plain")
        reply_stream = f"{{math}}:reply:{client.client_id}"
        await server.xadd(reply_stream, {"nothing": "known"})
        await server.xadd(reply_stream, {"rid": b"\xff"})
        await server.xadd(reply_stream, {"rid": "odd", "newer": "field", **fields})
        reply = await asyncio.wait_for(odd, PATIENCE_S)
        assert (reply.status, reply.body) == (Status.INTERNAL_ERROR, b"")
        assert reason in reply.reason
        for entry in await take(worker, 2):
            await worker.complete(entry, ok(entry))
        assert (await asyncio.wait_for(plain, PATIENCE_S)).body == b"done"


async def test_what_a_lost_answer_had_given_comes_again_at_once_and_uncounted(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with producer(redis_url) as client, consumer(redis_url, lease_s=600) as worker:
        await client.submit("score", b"", request_id="kept")
        [kept] = await take(worker, 1)
        await client.submit("score", b"", request_id="lost")
        take_now = worker._take_now

        async def lose(*arguments: Any, **others: Any) -> Any:
            await take_now(*arguments, **others)
            worker._held = {key: entry for key, entry in worker._held.items() if entry is kept}
            raise errors.Unavailable("the answer was lost")

        with monkeypatch.context() as patch:
            patch.setattr(worker, "_take_now", lose)
            assert await worker.take(1) == []
        [lost] = await take(worker, 1)
        assert (lost.request_id, lost.deliveries) == ("lost", 1)
        assert await worker.take(1) == []


async def test_results_under_a_chosen_request_id_stay_after_they_were_read(redis_url: str) -> None:
    async with producer(redis_url) as client, consumer(redis_url) as worker, redis(redis_url) as server:
        for request_id in ("chosen", None):
            future = await client.submit("score", b"", request_id=request_id)
            [entry] = await take(worker, 1)
            await worker.complete(entry, ok(entry))
            await asyncio.wait_for(future, PATIENCE_S)

            async def read() -> bool:
                return await server.xlen(f"{{math}}:reply:{client.client_id}") == 0

            await until_async(read)
            left_ms = await server.pttl(f"{{math}}:res:{entry.request_id}")
            assert (left_ms > 60_000) is (request_id is not None)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (
            ResponseError("MISCONF Errors writing to the AOF file: No space left on device"),
            errors.Unavailable,
        ),
        (ResponseError("NOREPLICAS Not enough good replicas to write."), errors.Unavailable),
        (ResponseError("BUSY Redis is busy running a script."), errors.Unavailable),
        (BusyLoadingError("Redis is loading the dataset in memory"), errors.Unavailable),
        (NoScriptError("No matching script."), errors.Unavailable),
        (RuntimeError("unable to perform operation on <TCPTransport closed=True>"), errors.Unavailable),
        (OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), errors.Overloaded),
        (AuthenticationError("WRONGPASS"), errors.Unauthorized),
        (ResponseError("WRONGTYPE Operation against a key"), errors.InternalError),
        (KeyError("a bug"), errors.InternalError),
    ],
)
async def test_what_an_error_means(error: Exception, kind: type[Exception]) -> None:
    link = Link("redis://user:secret@127.0.0.1:1/0", "math")
    translated = link._translated(error)
    await link.close()
    assert type(translated) is kind
    assert "secret" not in str(translated)
