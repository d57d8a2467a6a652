"""A Redis that is killed, absent, full, read-only or slow: clients wait and resume, and nothing is lost."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from queue_fire import (
    NO_FAULTS,
    NOTHING_LEFT,
    QUEUE,
    Books,
    Fleet,
    Server,
    ask_all,
    asked_again,
    eventually,
    kill_every_second,
    left_in,
    numbers,
    result_of,
)

from guerdon.errors import Overloaded, Unavailable
from guerdon.queue import Consumer, Producer, Reply, dead_letters, link, stats
from guerdon.types import Status
from tests.waiting import PATIENCE_S

#: Seconds after which a silent worker counts as dead: many times what a busy machine holds one up.
LEASE_S = 10.0


def restart(server: Server, down_s: float) -> None:
    """SIGKILL, a while without a server, and a new one."""
    server.kill()
    time.sleep(down_s)
    server.start()


@pytest.mark.parametrize("fsync", ["everysec", "always"])
async def test_redis_killed_and_restarted(
    server: Server,
    fleet: Callable[..., Fleet],
    full: bool,
    figures: Callable[..., None],
    fsync: str,
) -> None:
    if fsync == "always" and not full:
        pytest.skip("only in full: make chaos")
    server.configure(f"appendfsync {fsync}")
    responses, kills = numbers(10_000 if full else 200), 5 if full else 2
    server.start()
    # Workers die as well: in full one every second, in short one with each Redis.
    workers = fleet(lease_s=LEASE_S if full else 3.0, batch_ms=80.0 if full else 20.0)
    workers.grow(4 if full else 2)
    began, enough = time.monotonic(), asyncio.Event()
    killer = asyncio.create_task(kill_every_second(workers, enough)) if full else None
    client, deaths = Producer(server.url, QUEUE), asyncio.Queue[int]()

    def at_answer(count: int) -> None:
        if count % (len(responses) // (kills + 1)) == 0 and count < len(responses):
            deaths.put_nowait(count)

    async def kill() -> None:
        for i in range(kills):
            await deaths.get()
            if not full:
                await asyncio.to_thread(workers.kill_one)
            await asyncio.to_thread(restart, server, down_s=i if full else 0.2)

    books, _ = await asyncio.gather(
        ask_all(client, responses, at_answer=at_answer, timeout_s=1800 if full else PATIENCE_S), kill()
    )
    enough.set()
    if killer is not None:
        await killer
    wall_s = time.monotonic() - began
    again = {id: result_of(reply).value for id, reply in (await asked_again(server.url, responses)).items()}
    first = {id: result.value for id, result in books.results().items()}
    begun = workers.begun()
    figures(
        requests=len(responses),
        redis_kills=kills,
        worker_kills=workers.deaths,
        **{name: len(ids) for name, ids in books.faults().items()},
        duplicates=sum(again[id] != first[id] for id in responses),
        executed_again=begun.total() - len(begun),
        wall_s=round(wall_s),
    )
    assert books.faults() == NO_FAULTS
    assert again == first
    # What a crash of Redis undid is done again, with the same end.
    await eventually(lambda: left_in(server) == NOTHING_LEFT)
    assert (await stats(server.url, QUEUE)).dead == 0
    await client.close()


async def test_redis_down_at_start(server: Server, fleet: Callable[..., Fleet], tmp_path: Path) -> None:
    responses = numbers(30)
    workers = fleet(lease_s=LEASE_S)
    workers.grow(2)
    client = Producer(server.url, QUEUE)
    with pytest.raises(Unavailable):
        await client.submit("score", b"", patience_s=0)
    answers = asyncio.create_task(ask_all(client, responses))
    errors = tmp_path / "errors.log"
    await eventually(lambda: errors.exists() and "the queue cannot be reached" in errors.read_text())
    assert not answers.done()
    await asyncio.to_thread(server.start)
    assert (await answers).faults() == NO_FAULTS
    await client.close()


async def test_a_full_redis_refuses_new_work_and_is_emptied(
    server: Server, fleet: Callable[..., Fleet], full: bool, figures: Callable[..., None]
) -> None:
    responses, prompt = numbers(1000 if full else 150), "x" * 40_000
    server.start()
    bound = server.client.info("memory")["used_memory"] + 3_000_000
    server.client.config_set("maxmemory", bound)
    client, books = Producer(server.url, QUEUE), Books(responses)
    # More at a time than there is room for.
    answers = asyncio.create_task(ask_all(client, responses, in_flight=150, prompt=prompt, books=books))
    await eventually(lambda: books.refusals > 0)
    assert "out of memory" in books.last_refusal
    waiting = (await stats(server.url, QUEUE)).queued
    # Workers can join although there is no room, take, answer, and so make room.
    workers = fleet(lease_s=LEASE_S)
    workers.grow(2)
    await answers
    figures(requests=len(responses), room_for=waiting, refusals=books.refusals)
    assert books.faults() == NO_FAULTS
    assert 0 < waiting < len(responses)
    # A worker that finds Redis full loses no lease: nothing was begun twice.
    assert workers.begun().total() == len(responses)
    await eventually(lambda: left_in(server) == NOTHING_LEFT)
    await client.close()


async def test_a_full_redis_takes_nothing_from_who_works(server: Server) -> None:
    server.start()
    client = Producer(server.url, QUEUE)
    first, second = (Consumer(server.url, QUEUE, lease_s=600) for _ in range(2))
    await first.start()
    futures = {
        id: await client.submit("score", b"", request_id=id) for id in ("held", "back", "waiting", "unwanted")
    }
    entries = {entry.request_id: entry for entry in await first.take(2)}
    assert entries.keys() == {"held", "back"}
    held, stream = entries["held"], f"{{{QUEUE}}}:q:1"
    server.client.config_set("maxmemory", 1)
    with pytest.raises(Overloaded, match="out of memory"):
        await client.submit("score", b"", request_id="more")
    # A lease is renewed, work handed back and withdrawn, a worker joins and takes, results arrive.
    server.client.xclaim(stream, "workers", first.consumer_id, 0, [held.entry_id], idle=500_000, justid=True)
    await first._link.call("renew", first.consumer_id, 600_000, stream, held.entry_id)
    [pending] = server.client.xpending_range(stream, "workers", held.entry_id, held.entry_id, 1)
    assert pending["time_since_delivered"] < 500_000
    await first.release([entries["back"]])
    futures["unwanted"].cancel()
    await eventually(lambda: server.client.hexists(f"{{{QUEUE}}}:dd:unwanted", "cancelled"))
    await second.start()
    taken = [*await second.take(4), *await second.take(4)]
    assert {entry.request_id for entry in taken} == {"back", "waiting"}
    for consumer, entry in ((first, held), *((second, entry) for entry in taken)):
        await consumer.complete(entry, Reply(entry.request_id, Status.OK, "", b"done"))
        assert (await asyncio.wait_for(futures[entry.request_id], PATIENCE_S)).body == b"done"
    await eventually(lambda: left_in(server) == NOTHING_LEFT)
    for end in (first, second, client):
        await end.close()
    assert (await stats(server.url, QUEUE)).workers == 0


async def test_a_redis_that_turns_read_only_is_waited_for(
    server: Server, fleet: Callable[..., Fleet], full: bool
) -> None:
    responses = numbers(2000 if full else 200)
    server.start()
    workers = fleet(lease_s=LEASE_S)
    workers.grow(2)
    client, halfway = Producer(server.url, QUEUE), asyncio.Event()

    def at_answer(count: int) -> None:
        if count == len(responses) // 2:
            halfway.set()

    answers = asyncio.create_task(ask_all(client, responses, at_answer=at_answer))
    await asyncio.wait_for(halfway.wait(), PATIENCE_S)
    # A failover made this one a replica; its new master is not there.
    server.client.replicaof("127.0.0.1", 1)
    other = Producer(server.url, QUEUE)
    with pytest.raises(Unavailable, match=r"(?i)read.?only"):
        await other.submit("score", b"", patience_s=0)
    # Looking is possible.
    await stats(server.url, QUEUE)
    assert [letter async for letter in dead_letters(server.url, QUEUE)] == []
    await asyncio.sleep(5 if full else 1)
    assert not answers.done()
    server.client.replicaof("NO", "ONE")
    assert (await answers).faults() == NO_FAULTS
    await eventually(lambda: left_in(server) == NOTHING_LEFT)
    for producer in (client, other):
        await producer.close()


async def test_a_slow_redis_is_waited_for(
    server: Server, fleet: Callable[..., Fleet], full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In short, connections give up sooner.
    timeout_s = link.SOCKET_TIMEOUT_S if full else 2.0
    monkeypatch.setattr(link, "SOCKET_TIMEOUT_S", timeout_s)
    responses = numbers(2000 if full else 200)
    server.start()
    workers = fleet(lease_s=3 * timeout_s + LEASE_S, socket_timeout_s=timeout_s)
    workers.grow(2)
    client, halts = Producer(server.url, QUEUE), asyncio.Queue[int]()

    def at_answer(count: int) -> None:
        if count in (len(responses) // 3, 2 * len(responses) // 3):
            halts.put_nowait(count)

    answers = asyncio.create_task(ask_all(client, responses, at_answer=at_answer))
    await asyncio.wait_for(halts.get(), PATIENCE_S)
    # Longer than a connection waits for an answer: what was asked then may have been done all the same.
    await asyncio.to_thread(server.client.execute_command, "DEBUG", "SLEEP", timeout_s + 1)
    await asyncio.wait_for(halts.get(), PATIENCE_S)
    server.client.execute_command("CLIENT", "PAUSE", round((timeout_s + 1) * 1000), "ALL")
    assert (await answers).faults() == NO_FAULTS
    await eventually(lambda: left_in(server) == NOTHING_LEFT)
    assert (await stats(server.url, QUEUE)).dead == 0
    await client.close()
