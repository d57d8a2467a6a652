"""A producer that is faster than its workers: bounded memory, order, deadlines and withdrawals."""

import asyncio
from collections.abc import Callable

from queue_fire import (
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

from guerdon.queue import Producer, stats
from guerdon.types import Status
from tests.waiting import PATIENCE_S

#: Seconds after which a silent worker counts as dead; none dies here.
LEASE_S = 60.0
#: Items that a worker holds at most: what it runs at once, and as much again.
HELD = 2 * 4


class Most:
    """The most that was ever seen of some numbers."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}

    def look(self, **numbers: int) -> None:
        """Note what is more than before."""
        for name, number in numbers.items():
            self.seen[name] = max(self.seen.get(name, 0), number)


async def test_a_producer_ten_times_as_fast(
    server: Server, fleet: Callable[..., Fleet], full: bool, figures: Callable[..., None]
) -> None:
    bound, kilobytes = (500, 10) if full else (50, 20)
    # Ten times as many at once as the queue has room for, and more than its one worker can do in a while.
    responses = numbers(10 * bound)
    server.start()
    workers = fleet(lease_s=LEASE_S, max_items=4, batch_ms=10.0)
    workers.grow(1)
    before = server.client.info("memory")["used_memory"]
    client, most, submitted = Producer(server.url, QUEUE, max_length=bound), Most(), asyncio.Event()

    async def watch() -> None:
        while not submitted.is_set():
            waiting = await asyncio.to_thread(server.client.xlen, f"{{{QUEUE}}}:q:1")
            memory = (await asyncio.to_thread(server.client.info, "memory"))["used_memory"]
            most.look(waiting=waiting, memory=memory - before)
            await asyncio.sleep(0.02)

    watching = asyncio.create_task(watch())
    books = await ask_all(client, responses, in_flight=len(responses), prompt="x" * 1024 * kilobytes)
    submitted.set()
    await watching
    figures(
        requests=len(responses),
        bound=bound,
        most_waiting=most.seen["waiting"],
        most_redis_mb=round(most.seen["memory"] / 2**20, 1),
        refusals=books.refusals,
    )
    assert books.faults() == NO_FAULTS
    assert workers.begun() == dict.fromkeys(responses, 1)
    # The producer had to wait for room, and nothing was trimmed to make it.
    assert books.refusals > 0
    assert most.seen["waiting"] <= bound
    # All of them would be ten times this.
    assert most.seen["memory"] < len(responses) * 1024 * kilobytes / 2
    assert left_in(server) == NOTHING_LEFT
    await client.close()


async def test_high_priority_passes_a_full_queue(
    server: Server, fleet: Callable[..., Fleet], full: bool
) -> None:
    responses = numbers(2000 if full else 200)
    server.start()
    # All of them take much longer than the five that pass them.
    workers = fleet(lease_s=LEASE_S, batch_ms=50.0)
    client = Producer(server.url, QUEUE, max_length=len(responses))
    for id, response in responses.items():
        await client.submit("score", body(id, response), request_id=id)
    workers.grow(1)
    await eventually(lambda: workers.log.stat().st_size > 0)
    passed: dict[str, int] = {}
    for i in range(5):
        urgent = await client.submit("score", body(f"h{i}", "1"), request_id=f"h{i}", high_priority=True)
        passed[f"h{i}"] = len(workers.log.read_text().split())
        assert result_of(await asyncio.wait_for(urgent, PATIENCE_S)).value == 1.0
    begun = workers.log.read_text().split()
    for id, at in passed.items():
        # Before it came only what the worker had in hand, or was just taking.
        assert begun.index(id) - at <= 2 * HELD
    assert len(begun) < len(responses)
    await client.close()


async def test_expired_work_is_a_status_and_never_done(server: Server, fleet: Callable[..., Fleet]) -> None:
    responses = numbers(60)
    short = list(responses)[::2]
    server.start()
    client = Producer(server.url, QUEUE)
    futures = {
        id: await client.submit(
            "score", body(id, response), request_id=id, deadline_s=0.5 if id in short else 600
        )
        for id, response in responses.items()
    }
    for id in short:
        reply = await asyncio.wait_for(futures[id], PATIENCE_S)
        assert (reply.status, reply.body) == (Status.TIMEOUT, b"")
        assert "deadline" in reply.reason
    flights = [f"{{{QUEUE}}}:dd:{id}" for id in short]
    # A server that was slow to take them counts from then on.
    latest = max(int(server.client.hget(flight, "deadline") or 0) for flight in flights)
    await eventually(lambda: server.client.time()[0] * 1000 > latest)
    workers = fleet(lease_s=LEASE_S)
    workers.grow(2)
    for id in responses.keys() - set(short):
        assert result_of(await asyncio.wait_for(futures[id], PATIENCE_S)).value == float(responses[id])
    await eventually(lambda: left_in(server) == NOTHING_LEFT)
    assert workers.begun() == dict.fromkeys(responses.keys() - set(short), 1)
    await client.close()


async def test_work_that_was_withdrawn_is_not_done(server: Server, fleet: Callable[..., Fleet]) -> None:
    responses = numbers(60)
    doomed = list(responses)[::2]
    server.start()
    client, leaving = Producer(server.url, QUEUE), Producer(server.url, QUEUE)
    futures = {
        id: await client.submit("score", body(id, response), request_id=id)
        for id, response in responses.items()
    }
    for id in doomed:
        futures[id].cancel()
    abandoned = [
        await leaving.submit("score", body(f"left{i}", "1"), request_id=f"left{i}") for i in range(10)
    ]
    # A client that ends withdraws what it asked for.
    await leaving.close()
    assert {(await future).status for future in abandoned} == {Status.UNAVAILABLE}
    withdrawn = [f"{{{QUEUE}}}:dd:{id}" for id in [*doomed, *(f"left{i}" for i in range(10))]]
    await eventually(lambda: all(server.client.hexists(flight, "cancelled") for flight in withdrawn))
    assert (await stats(server.url, QUEUE)).queued == 70
    workers = fleet(lease_s=LEASE_S)
    workers.grow(2)
    for id in responses.keys() - set(doomed):
        assert result_of(await asyncio.wait_for(futures[id], PATIENCE_S)).value == float(responses[id])
    await eventually(lambda: left_in(server) == NOTHING_LEFT)
    assert workers.begun() == dict.fromkeys(responses.keys() - set(doomed), 1)
    await client.close()
