"""Trainers that are killed, clocks that are wrong, and releases side by side."""

import asyncio
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable

import pytest
from queue_fire import (
    HERE,
    NO_FAULTS,
    NOTHING_LEFT,
    QUEUE,
    Fleet,
    Server,
    ask_all,
    body,
    eventually,
    left_in,
    numbers,
    result_of,
)

from guerdon.queue import Producer, Reply, link, stats
from guerdon.types import Status
from tests.waiting import PATIENCE_S

#: Seconds after which a silent worker counts as dead; none dies here.
LEASE_S = 60.0
#: The scripts of the first release of the queue.
FIRST_RELEASE = HERE.parent / "golden" / "queue" / "1"


async def test_a_killed_trainer_finds_its_results(
    server: Server, fleet: Callable[..., Fleet], full: bool, figures: Callable[..., None]
) -> None:
    count, kills = (5000, 5) if full else (200, 2)
    server.start()
    workers = fleet(lease_s=LEASE_S, batch_ms=5.0)
    workers.grow(2)

    async def life(results: int) -> dict[int, str]:
        """What one life of the trainer hears, until it is killed after so many results."""
        command = (sys.executable, str(HERE / "queue_trainer.py"), server.url, QUEUE, str(count))
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        heard: dict[int, str] = {}
        while len(heard) < results:
            line = (await process.stdout.readline()).decode()
            assert line
            index, _, result = line.strip().partition(" ")
            assert int(index) not in heard
            heard[int(index)] = result
        if results < count:
            process.kill()
        # Unread output would keep it from ending.
        await process.communicate()
        assert process.returncode == (0 if results == count else -signal.SIGKILL)
        return heard

    async with asyncio.timeout(1800 if full else PATIENCE_S):
        lives = [await life(count // (kills + 2) * (i + 1)) for i in range(kills)]
        last = await life(count)
    begun = workers.begun()
    figures(requests=count, kills=kills, heard=len(last), executed_again=begun.total() - len(begun))
    assert last == {i: f"ok {i / 8}" for i in range(count)}
    assert all(last[index] == result for heard in lives for index, result in heard.items())
    # Nothing was scored twice, however often it was asked for.
    assert begun == Counter(f"r{i}" for i in range(count))
    assert left_in(server) == NOTHING_LEFT


async def test_deadlines_survive_wrong_clocks(
    server: Server, fleet: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    responses = numbers(60)
    server.start()
    # Only the clock of Redis counts, and on each side only how much time goes by.
    right_time = time.time
    monkeypatch.setattr(time, "time", lambda: right_time() + 86_400)
    client = Producer(server.url, QUEUE)
    late = {
        id: await client.submit("score", body(id, "1"), request_id=id, deadline_s=0.3)
        for id in (f"late{i}" for i in range(10))
    }
    replies = [await asyncio.wait_for(future, PATIENCE_S) for future in late.values()]
    assert {reply.status for reply in replies} == {Status.TIMEOUT}
    flights = [f"{{{QUEUE}}}:dd:{id}" for id in late]
    latest = max(int(server.client.hget(flight, "deadline") or 0) for flight in flights)
    await eventually(lambda: server.client.time()[0] * 1000 > latest)
    futures = {
        id: await client.submit("score", body(id, response), request_id=id, deadline_s=900)
        for id, response in responses.items()
    }
    workers = fleet(lease_s=LEASE_S)
    for skew_s in (-3600.0, 3600.0):
        workers.grow(1, skew_s=skew_s)
    for id, future in futures.items():
        assert result_of(await asyncio.wait_for(future, PATIENCE_S)).value == float(responses[id])
    await eventually(lambda: left_in(server) == NOTHING_LEFT)
    assert workers.begun() == dict.fromkeys(responses, 1)
    await client.close()


async def test_entries_of_other_releases(server: Server, fleet: Callable[..., Fleet]) -> None:
    plain = body("a", "2")
    #: Field 1999 of the request, a number: no release has it yet.
    unknown = plain + b"\xf8\x7c\x01"
    entries: dict[str, dict[str, str | bytes]] = {
        "bare": {"rid": "bare", "op": "score", "body": plain, "client": "c"},
        "rich": {"rid": "rich", "op": "score", "body": plain, "client": "c", "region": "x", "deadline": ""},
        "newer body": {"rid": "newer body", "op": "score", "body": unknown, "client": "c"},
        "newer op": {"rid": "newer op", "op": "explain", "body": plain, "client": "c"},
        "no client": {"rid": "no client", "op": "score", "body": plain},
        "no op": {"rid": "no op", "body": plain, "client": "c"},
    }
    server.start()
    for fields in entries.values():
        server.client.xadd(f"{{{QUEUE}}}:q:1", fields)
    workers = fleet(lease_s=LEASE_S)
    workers.grow(1)
    answered = [id for id in entries if id != "no client"]
    client = Producer(server.url, QUEUE)
    await eventually(lambda: server.client.xlen(f"{{{QUEUE}}}:q:1") == 0)
    replies: dict[str, Reply] = {}
    for id in answered:
        future = await client.submit("score", b"never looked at", request_id=id)
        replies[id] = await asyncio.wait_for(future, PATIENCE_S)
    results = {id: result_of(reply) for id, reply in replies.items()}
    assert results["bare"].value == results["rich"].value == 2.0
    refused = {id: results[id].reason for id in ("newer body", "newer op", "no op")}
    assert {results[id].status for id in refused} == {Status.INVALID_INPUT}
    assert "field 1999 is not known" in refused["newer body"]
    assert "no such operation 'explain'" in refused["newer op"]
    assert "op is missing" in refused["no op"]
    # What cannot be answered, or lacks what it needs, is kept for somebody to look at.
    assert (await stats(server.url, QUEUE)).dead == 2
    assert workers.begun() == {"a": 2}
    await client.close()


async def test_a_rolling_upgrade(
    server: Server,
    fleet: Callable[..., Fleet],
    full: bool,
    figures: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    responses = numbers(4000 if full else 240)
    server.start()
    workers = fleet(lease_s=LEASE_S, batch_ms=10.0)
    workers.grow(2, scripts=str(FIRST_RELEASE))
    clients = [Producer(server.url, QUEUE), old_client(server, monkeypatch)]
    halves = [dict(list(responses.items())[i::2]) for i in range(2)]
    answered, codes = 0, list[int]()

    def at_answer(_: int) -> None:
        nonlocal answered
        answered += 1
        if answered in (len(responses) // 4, len(responses) // 2):
            # The oldest worker ends as it is asked to, and one of this release takes its place.
            codes.append(workers.replace(0, signal.SIGTERM))

    books = await asyncio.gather(
        *(ask_all(client, half, at_answer=at_answer) for client, half in zip(clients, halves, strict=True))
    )
    figures(requests=len(responses), upgrades=len(codes))
    assert [one.faults() for one in books] == [NO_FAULTS, NO_FAULTS]
    # Workers that left handed back what they had not begun.
    assert codes == [0, 0]
    assert workers.begun() == dict.fromkeys(responses, 1)
    # Each finds what the other one asked for.
    for client, half in zip(clients, reversed(halves), strict=True):
        again = await ask_all(client, half)
        assert again.faults() == NO_FAULTS
    assert workers.begun() == dict.fromkeys(responses, 1)
    await eventually(lambda: left_in(server) == NOTHING_LEFT)
    for client in clients:
        await client.close()


def old_client(server: Server, monkeypatch: pytest.MonkeyPatch) -> Producer:
    """A client with the scripts of the first release."""
    with monkeypatch.context() as patch:
        patch.setattr(link, "SCRIPTS", {**link.SCRIPTS, **link.load_scripts(FIRST_RELEASE)})
        return Producer(server.url, QUEUE)
