"""What a client that was killed left behind is withdrawn, and nothing else."""

import asyncio

from guerdon import codec
from guerdon.client import AsyncClient
from guerdon.queue import Consumer, Entry, Producer, Reply, withdraw
from guerdon.types import Sample, ScoreRequest, Status
from tests.waiting import PATIENCE_S

BODY = codec.encode(ScoreRequest(samples=[Sample(response="1", references=["1"])]))


async def submit(client: Producer, *request_ids: str, high_priority: bool = False) -> None:
    for id in request_ids:
        await client.submit("score", BODY, request_id=id, deadline_s=900, high_priority=high_priority)


async def taken(worker: Consumer, count: int) -> list[Entry]:
    entries: list[Entry] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(entries) < count:
            entries += await worker.take(8)
    return entries


async def test_what_nobody_has_begun_is_never_executed(redis_url: str) -> None:
    dead, other = Producer(redis_url, "math"), Producer(redis_url, "math")
    worker = Consumer(redis_url, "math")
    await worker.start()
    await submit(dead, "begun")
    begun = await taken(worker, 1)
    await submit(dead, *(f"left{n}" for n in range(250)))
    await submit(dead, "left, high", high_priority=True)
    await submit(other, "mine")
    # The one that is worked on counts too: should its worker die, nobody does it again.
    assert await withdraw(redis_url, "math", dead.client_id) == 252
    entries = await taken(worker, 1)
    assert [entry.request_id for entry in entries] == ["mine"]
    for entry in (*begun, *entries):
        await worker.complete(entry, Reply(entry.request_id, Status.OK, "", b"answer"))
    assert await withdraw(redis_url, "math", dead.client_id) == 0
    for one in (dead, other):
        await one.close()
    await worker.close()


async def test_what_was_asked_for_again_stays(redis_url: str) -> None:
    dead, heir = Producer(redis_url, "math"), Producer(redis_url, "math")
    await submit(dead, "a", "b")
    await submit(heir, "a")
    assert await withdraw(redis_url, "math", dead.client_id) == 1
    # Asking for what was withdrawn brings it back.
    await submit(heir, "b")
    worker = Consumer(redis_url, "math")
    await worker.start()
    assert {entry.request_id for entry in await taken(worker, 2)} == {"a", "b"}
    await worker.close()
    await heir.close()
    await dead.close()


async def test_a_client_knows_its_name_at_the_queue_alone(redis_url: str) -> None:
    async with AsyncClient(redis_url, service="math") as queued, AsyncClient("http://127.0.0.1:1") as direct:
        assert queued.client_id
        assert direct.client_id is None
    assert await withdraw(redis_url, "math", queued.client_id) == 0
