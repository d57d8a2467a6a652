"""Dead letters: shown, queued anew, forgotten."""

import asyncio
import json
from typing import Any, cast

from redis.asyncio import Redis
from typer.testing import CliRunner, Result

from guerdon import codec
from guerdon.cli import app
from guerdon.queue import Consumer, Entry, Producer, Reply, dead_letters, purge, redrive, stats
from guerdon.types import Sample, ScoreRequest, Status
from tests.waiting import PATIENCE_S

BODY = codec.encode(ScoreRequest(samples=[Sample(response="poison", references=["3/4"])]))


async def take(worker: Consumer) -> Entry:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if entries := await worker.take(1):
                return entries[0]


async def give_up(url: str, *request_ids: str) -> list[Reply]:
    """Have requests become dead letters: workers take them, and vanish. What their client is told."""
    client = Producer(url, "math")
    futures = [
        await client.submit("score", BODY, request_id=id, high_priority=id == "high") for id in request_ids
    ]
    server: Any = cast(Any, Redis).from_url(url)
    worker = Consumer(url, "math", max_deliveries=1)
    await worker.start()
    for stream in ("{math}:q:0", "{math}:q:1"):
        await server.xreadgroup("workers", "dead", {stream: ">"})
        for left in await server.xpending_range(stream, "workers", "-", "+", 100, consumername="dead"):
            await server.xclaim(
                stream, "workers", "dead", 0, [left["message_id"]], idle=3_600_000, justid=True
            )
    assert await worker.take(8) == []
    async with asyncio.timeout(PATIENCE_S):
        replies = list(await asyncio.gather(*futures))
    await worker.close()
    await client.close()
    await server.aclose()
    return replies


async def listed(url: str) -> dict[str, str]:
    """Ids of dead letters by request id."""
    return {letter.request_id: letter.letter_id async for letter in dead_letters(url, "math")}


async def test_a_letter_says_what_was_given_up_and_why(redis_url: str) -> None:
    [reply] = await give_up(redis_url, "p")
    [letter] = [letter async for letter in dead_letters(redis_url, "math")]
    assert (letter.request_id, letter.op, letter.body, letter.deliveries) == ("p", "score", BODY, 1)
    assert letter.reason == reply.reason == "given up: 1 workers stopped answering while they worked on it"
    assert letter.enqueued_unix_ms is not None
    assert letter.enqueued_unix_ms <= letter.died_unix_ms


async def test_many_letters_come_in_order(redis_url: str) -> None:
    server: Any = cast(Any, Redis).from_url(redis_url)
    for i in range(250):
        await server.xadd("{math}:dlq", {"rid": f"r{i}"})
    await server.aclose()
    assert list(await listed(redis_url)) == [f"r{i}" for i in range(250)]
    assert await purge(redis_url, "math", list((await listed(redis_url)).values())) == 250


async def test_a_letter_queued_anew_is_done_once_and_answers_whoever_asks(redis_url: str) -> None:
    [told] = await give_up(redis_url, "p")
    assert told.status is Status.INTERNAL_ERROR
    letters = await listed(redis_url)
    assert await redrive(redis_url, "math", [letters["p"]]) == ["queued"]
    assert await redrive(redis_url, "math", [letters["p"]]) == ["missing"]
    client, worker = Producer(redis_url, "math"), Consumer(redis_url, "math")
    await worker.start()
    # One asks while it waits, another one when it is done.
    waiting = await client.submit("score", BODY, request_id="p")
    assert (await stats(redis_url, "math")).queued == 1
    entry = await take(worker)
    assert (entry.request_id, entry.body, entry.deliveries, entry.left_s) == ("p", BODY, 1, None)
    await worker.complete(entry, Reply("p", Status.OK, "", b"done"))
    assert await asyncio.wait_for(waiting, PATIENCE_S) == Reply("p", Status.OK, "", b"done")
    other = Producer(redis_url, "math")
    later = await other.submit("score", BODY, request_id="p")
    assert await asyncio.wait_for(later, PATIENCE_S) == Reply("p", Status.OK, "", b"done")
    assert await worker.take(1) == []
    assert (await stats(redis_url, "math")).dead == 0
    for end in (client, other, worker):
        await end.close()


async def test_a_letter_whose_request_was_answered_meanwhile_is_not_done_again(redis_url: str) -> None:
    await give_up(redis_url, "answered", "queued")
    server: Any = cast(Any, Redis).from_url(redis_url)
    # As ten minutes later.
    await server.delete("{math}:res:answered", "{math}:res:queued")
    await server.aclose()
    client, worker = Producer(redis_url, "math"), Consumer(redis_url, "math")
    await worker.start()
    answered = await client.submit("score", BODY, request_id="answered")
    await worker.complete(await take(worker), Reply("answered", Status.OK, "", b"done"))
    assert (await asyncio.wait_for(answered, PATIENCE_S)).body == b"done"
    queued = await client.submit("score", BODY, request_id="queued")
    letters = await listed(redis_url)
    ids = [letters["answered"], letters["queued"]]
    assert await redrive(redis_url, "math", ids) == ["answered", "queued"]
    assert (await stats(redis_url, "math")).queued == 1
    await worker.complete(await take(worker), Reply("queued", Status.OK, "", b"once"))
    assert (await asyncio.wait_for(queued, PATIENCE_S)).body == b"once"
    assert await listed(redis_url) == {}
    for end in (client, worker):
        await end.close()


async def test_letters_keep_their_priority_and_wait_for_room(redis_url: str) -> None:
    await give_up(redis_url, "high", "a", "b")
    letters = await listed(redis_url)
    ids = [letters[id] for id in ("high", "a", "b")]
    assert await redrive(redis_url, "math", ids, max_length=1) == ["queued", "queued", "full"]
    assert await listed(redis_url) == {"b": letters["b"]}
    worker = Consumer(redis_url, "math")
    await worker.start()
    entries = await worker.take(8)
    assert [(entry.request_id, entry.stream) for entry in entries] == [
        ("high", "{math}:q:0"),
        ("a", "{math}:q:1"),
    ]
    await worker.close()


async def test_what_names_no_request_stays(redis_url: str) -> None:
    server: Any = cast(Any, Redis).from_url(redis_url)
    id = (await server.xadd("{math}:dlq", {"a": b"\xff", "rid": "", "deliveries": "x"})).decode()
    await server.aclose()
    assert await redrive(redis_url, "math", [id]) == ["malformed"]
    [letter] = [letter async for letter in dead_letters(redis_url, "math")]
    assert (letter.letter_id, letter.op, letter.deliveries, letter.enqueued_unix_ms) == (id, "", None, None)


def guerdon(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["queue", "math", *arguments])


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_the_command_shows_queues_anew_and_forgets(redis_url: str) -> None:
    asyncio.run(give_up(redis_url, "a", "b", "c"))
    at = ("--redis", redis_url)
    shown = lines(guerdon("dead", *at))
    assert [line["request_id"] for line in shown] == ["a", "b", "c"]
    assert shown[0].keys() == {"id", "request_id", "op", "reason", "deliveries", "died", "bytes"}
    [content, *_] = lines(guerdon("dead", "--content", *at))
    assert content["request"] == {"samples": [{"response": "poison", "references": ["3/4"]}]}
    again = guerdon("redrive", shown[0]["id"], *at)
    assert (again.exit_code, lines(again)) == (0, [{"id": shown[0]["id"], "state": "queued"}])
    missing = guerdon("redrive", "1-1", *at)
    assert (missing.exit_code, lines(missing)) == (1, [{"id": "1-1", "state": "missing"}])
    assert lines(guerdon("purge", shown[1]["id"], *at)) == [{"purged": 1}]
    assert lines(guerdon("redrive", "--all", *at)) == [{"id": shown[2]["id"], "state": "queued"}]
    assert lines(guerdon("purge", "--all", *at)) == [{"purged": 0}]
    [counts] = lines(guerdon(*at))
    assert (counts["queued"], counts["dead"]) == (2, 0)


def test_the_command_wants_ids_or_all(redis_url: str) -> None:
    for arguments in (("redrive",), ("purge",), ("purge", "--all", "1-1")):
        result = guerdon(*arguments, "--redis", redis_url)
        assert result.exit_code == 2
        assert "--all" in result.stderr
