"""Workers that are killed or frozen, and samples that kill them."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from queue_fire import (
    NO_FAULTS,
    NOTHING_LEFT,
    QUEUE,
    Fleet,
    Server,
    ask_all,
    asked_again,
    eventually,
    kill_every_second,
    left_in,
    numbers,
)

from guerdon.queue import Producer, dead_letters, redrive, stats
from tests.waiting import PATIENCE_S

#: Seconds after which a silent worker counts as dead: many times what a busy machine holds one up.
LEASE_S = 3.0


async def test_random_workers_killed(
    server: Server, fleet: Callable[..., Fleet], full: bool, figures: Callable[..., None]
) -> None:
    responses = numbers(10_000 if full else 240)
    server.start()
    # Slow enough that in full there are enough seconds to kill in.
    workers = fleet(lease_s=LEASE_S, batch_ms=80.0 if full else 20.0)
    workers.grow(4 if full else 3)
    began = time.monotonic()
    client = Producer(server.url, QUEUE)
    enough = asyncio.Event()
    killer = asyncio.create_task(kill_every_second(workers, enough)) if full else None

    def at_answer(count: int) -> None:
        if not full and count % 40 == 0 and count < len(responses):
            workers.kill_one()

    books = await ask_all(client, responses, at_answer=at_answer, timeout_s=1800 if full else PATIENCE_S)
    if killer is not None:
        enough.set()
        await killer
    wall_s = time.monotonic() - began
    again = await asked_again(server.url, responses)
    other = [id for id, reply in again.items() if reply != books.replies[id]]
    begun = workers.begun()
    figures(
        requests=len(responses),
        kills=workers.deaths,
        **{name: len(ids) for name, ids in books.faults().items()},
        duplicates=len(other),
        executed_again=begun.total() - len(begun),
        wall_s=round(wall_s),
    )
    assert workers.deaths >= 5
    assert books.faults() == NO_FAULTS
    # One answer is all that anybody ever sees, whoever asks, also of a request that was executed twice.
    assert other == []
    assert begun.keys() == responses.keys()
    assert left_in(server) == NOTHING_LEFT
    assert (await stats(server.url, QUEUE)).dead == 0
    await client.close()


async def test_poison_is_given_up_its_neighbours_are_answered_and_it_is_queued_anew(
    server: Server, fleet: Callable[..., Fleet], full: bool, figures: Callable[..., None]
) -> None:
    responses = numbers(1000 if full else 60)
    poison = list(responses)[10 :: 50 if full else 30]
    doomed = {id: "poison" for id in poison}
    deliveries = 5 if full else 3
    server.start()
    workers = fleet(lease_s=LEASE_S, max_items=16, max_deliveries=deliveries)
    workers.grow(4 if full else 2)
    began = time.monotonic()
    client = Producer(server.url, QUEUE)
    answers = asyncio.create_task(ask_all(client, {**responses, **doomed}, in_flight=200, timeout_s=1800))
    while not answers.done():
        await asyncio.to_thread(workers.replace_dead)
        await asyncio.wait([answers], timeout=0.05)
    books = await answers
    wall_s = time.monotonic() - began
    letters = {letter.request_id: letter async for letter in dead_letters(server.url, QUEUE)}
    figures(
        requests=len(responses),
        poison=len(poison),
        deaths=workers.deaths,
        **{name: len(ids) for name, ids in books.faults(doomed=poison).items()},
        dead_letters=len(letters),
        wall_s=round(wall_s),
    )
    assert books.faults(doomed=poison) == NO_FAULTS
    assert letters.keys() == set(poison)
    for id in poison:
        assert books.replies[id].reason == letters[id].reason
        assert f"given up: {deliveries} workers" in letters[id].reason
    assert left_in(server) == NOTHING_LEFT
    await check_redrive(server, workers, client, {id: letters[id].letter_id for id in poison})
    await client.close()


async def check_redrive(server: Server, workers: Fleet, client: Producer, letters: dict[str, Any]) -> None:
    """The workers are mended; what had killed them is scored once, and seen by who waits and by who asks later."""
    workers.close()
    before = workers.begun()
    assert set(await redrive(server.url, QUEUE, list(letters.values()))) == {"queued"}
    waiting = asyncio.create_task(ask_all(client, dict.fromkeys(letters, "0")))
    workers.grow(1, fragile=False, lease_s=60)
    books = await waiting
    assert books.faults() == NO_FAULTS
    assert await asked_again(server.url, books.responses) == books.replies
    after = workers.begun()
    assert {id: after[id] - before[id] for id in letters} == dict.fromkeys(letters, 1)
    seen = await stats(server.url, QUEUE)
    assert (seen.queued, seen.pending, seen.dead) == (0, 0, 0)


async def test_a_worker_that_was_frozen_past_its_lease_answers_too_late(
    server: Server, fleet: Callable[..., Fleet], full: bool, figures: Callable[..., None]
) -> None:
    responses = numbers(400 if full else 40)
    server.start()
    workers = fleet(lease_s=LEASE_S, max_items=8)
    # It is at its first batch, and holds more, when it stands still.
    workers.grow(1, batch_ms=2000.0)
    [frozen] = workers.pids
    client = Producer(server.url, QUEUE)
    answers = asyncio.create_task(ask_all(client, responses))
    await eventually(lambda: len(workers.begun()) > 0)
    os.kill(frozen, signal.SIGSTOP)
    held = (await stats(server.url, QUEUE)).pending
    workers.grow(1)
    books = await answers
    begun = workers.begun()
    os.kill(frozen, signal.SIGCONT)
    more = await ask_all(client, {f"late {id}": response for id, response in list(responses.items())[:8]})
    again = await asked_again(server.url, responses)
    figures(requests=len(responses), held=held, executed_again=begun.total() - len(begun))
    assert (books.faults(), more.faults()) == (NO_FAULTS, NO_FAULTS)
    assert {id for id, reply in again.items() if reply != books.replies[id]} == set()
    await eventually(lambda: left_in(server) == NOTHING_LEFT)
    assert (await stats(server.url, QUEUE)).dead == 0
    await client.close()
