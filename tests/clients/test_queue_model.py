"""The queue against a model of it: random submissions, takes, completions, releases, crashes, on a real server."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from redis import Redis

from guerdon.queue import Consumer, Entry, Producer, Reply
from guerdon.queue import consumer as consumer_module
from guerdon.types import Status
from tests.waiting import PATIENCE_S

REQUESTS = st.sampled_from([f"r{i}" for i in range(20)])
WORKERS = st.integers(0, 1)
MAX_DELIVERIES = 4
#: Deliveries of an entry that it may share with others.
SHARED_DELIVERIES = 2
#: Seconds: never ends by itself here, crashes age what they leave.
LEASE_S = 600.0


@dataclass
class Request:
    """What the model knows of a request."""

    future: "asyncio.Future[Reply]"
    #: Deliveries so far that count.
    deliveries: int = 0
    #: "waiting", "abandoned" by a worker that crashed, "held" or "answered"
    state: str = "waiting"
    answer: Reply | None = None
    #: Those of who asked for the same while it was in flight.
    joined: "list[asyncio.Future[Reply]]" = field(default_factory=list)


@dataclass
class Worker:
    consumer: Consumer
    held: list[Entry] = field(default_factory=list)

    @property
    def alone(self) -> bool:
        """Whether it holds what crashed several workers."""
        return any(entry.deliveries > SHARED_DELIVERIES for entry in self.held)


class QueueMachine(RuleBasedStateMachine):
    """One client and two workers, which crash."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.server: Any = cast(Any, Redis).from_url(url)
        self.server.flushdb()
        self.runner = asyncio.Runner()
        self.client = Producer(url, "math")
        self.requests: dict[str, Request] = {}
        self.workers = [Worker(self.new_consumer()), Worker(self.new_consumer())]
        self.answers = 0
        self.crashes = 0

    def new_consumer(self) -> Consumer:
        consumer = Consumer(self.url, "math", lease_s=LEASE_S, max_deliveries=MAX_DELIVERIES)
        self.runner.run(consumer.start())
        return consumer

    def in_state(self, *states: str) -> dict[str, Request]:
        return {id: request for id, request in self.requests.items() if request.state in states}

    @rule(ids=st.lists(REQUESTS, min_size=1, max_size=4), high=st.booleans())
    def submit_some(self, ids: list[str], high: bool) -> None:
        for id in ids:
            self.submit(id, high)

    def submit(self, id: str, high: bool) -> None:
        future = self.runner.run(self.client.submit("score", id.encode(), request_id=id, high_priority=high))
        known = self.requests.get(id)
        if known is None:
            self.requests[id] = Request(future)
        elif known.answer is not None:
            assert self.wait(future) == known.answer
        else:
            known.joined.append(future)

    @precondition(lambda self: self.in_state("waiting", "abandoned"))
    @rule(most=st.integers(1, 3))
    def both_take(self, most: int) -> None:
        self.take(0, most)
        self.take(1, most)

    @precondition(lambda self: self.in_state("waiting", "abandoned"))
    @rule(index=WORKERS, most=st.integers(1, 3))
    def take(self, index: int, most: int) -> None:
        worker = self.workers[index]
        alone, holding = worker.alone, bool(worker.held)
        entries = self.runner.run(worker.consumer.take(most))
        self.note_dead_letters()
        suspect = any(entry.deliveries > SHARED_DELIVERIES for entry in entries)
        if alone:
            assert not entries
        elif suspect:
            # What may crash a worker is the only thing it has in hand.
            assert not holding
            assert len(entries) == 1
        elif self.in_state("waiting") and not self.in_state("abandoned"):
            assert entries
        assert len(entries) <= most
        for entry in entries:
            request = self.requests[entry.request_id]
            assert request.state in ("waiting", "abandoned")
            assert entry.body == entry.request_id.encode()
            request.state = "held"
            request.deliveries += 1
            assert entry.deliveries == request.deliveries <= MAX_DELIVERIES
        worker.held += entries

    def note_dead_letters(self) -> None:
        """An abandoned request that used up its deliveries may be answered by any take."""
        for id, request in self.in_state("abandoned").items():
            if request.deliveries == MAX_DELIVERIES and self.server.exists(f"{{math}}:res:{id}"):
                reply = self.wait(request.future)
                assert reply.status is Status.INTERNAL_ERROR
                request.state, request.answer = "answered", reply

    @precondition(lambda self: any(worker.held for worker in self.workers))
    @rule(data=st.data(), again=st.booleans())
    def complete(self, data: st.DataObject, again: bool) -> None:
        worker = data.draw(st.sampled_from([worker for worker in self.workers if worker.held]))
        entry = worker.held.pop(data.draw(st.integers(0, len(worker.held) - 1)))
        self.answers += 1
        reply = Reply(entry.request_id, Status.OK, "", b"answer %d" % self.answers)
        self.runner.run(worker.consumer.complete(entry, reply))
        if again:
            # As after a lost connection; this time with another body, to see which one counts.
            self.runner.run(worker.consumer.complete(entry, Reply(entry.request_id, Status.OK, "", b"again")))
        request = self.requests[entry.request_id]
        assert {self.wait(future) for future in (request.future, *request.joined)} == {reply}
        request.state, request.answer = "answered", reply

    @precondition(lambda self: any(worker.held for worker in self.workers))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from([worker for worker in self.workers if worker.held]))
        self.runner.run(worker.consumer.release(worker.held))
        self.hand_back(worker.held)
        worker.held = []

    def hand_back(self, entries: list[Entry]) -> None:
        for entry in entries:
            request = self.requests[entry.request_id]
            request.deliveries -= 1
            request.state = "abandoned" if request.deliveries else "waiting"

    @rule(index=WORKERS)
    def restart(self, index: int) -> None:
        worker = self.workers[index]
        self.runner.run(worker.consumer.close())
        self.hand_back(worker.held)
        self.workers[index] = Worker(self.new_consumer())

    @precondition(lambda self: any(worker.held for worker in self.workers))
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        index = data.draw(st.sampled_from([i for i in range(2) if self.workers[i].held]))
        worker = self.workers[index]
        self.runner.run(die(worker.consumer))
        for entry in worker.held:
            # The lease ends.
            self.server.xclaim(
                *(entry.stream, "workers", worker.consumer.consumer_id, 0, [entry.entry_id]),
                idle=round(LEASE_S * 1000),
                justid=True,
            )
            self.requests[entry.request_id].state = "abandoned"
        self.workers[index] = Worker(self.new_consumer())
        self.crashes += 1

    @invariant()
    def nothing_is_lost(self) -> None:
        unanswered = self.in_state("waiting", "abandoned", "held")
        entries = [entry for priority in (0, 1) for entry in self.server.xrange(f"{{math}}:q:{priority}")]
        assert sorted(fields[b"rid"].decode() for _, fields in entries) == sorted(unanswered)
        assert len(self.server.keys("{math}:dd:*")) == len(unanswered)
        assert not any(request.future.done() for request in unanswered.values())

    def wait(self, future: "asyncio.Future[Reply]") -> Reply:
        return self.runner.run(asyncio.wait_for(future, PATIENCE_S))

    def teardown(self) -> None:
        try:
            self.finish()
        finally:
            self.runner.run(self.client.close())
            for worker in self.workers:
                self.runner.run(worker.consumer.close())
            self.runner.close()
            self.server.close()

    def finish(self) -> None:
        """Everything that was submitted gets its answer, and nothing remains."""
        for index in range(2):
            self.restart(index)
        while self.in_state("waiting", "abandoned"):
            self.take(0, 4)
            for entry in self.workers[0].held:
                self.runner.run(
                    self.workers[0].consumer.complete(entry, Reply(entry.request_id, Status.OK, "", b""))
                )
                assert self.wait(self.requests[entry.request_id].future).status is Status.OK
                self.requests[entry.request_id].state = "answered"
            self.workers[0].held = []
        self.nothing_is_lost()
        assert [
            self.server.xpending(f"{{math}}:q:{priority}", "workers")["pending"] for priority in (0, 1)
        ] == [0, 0]
        assert self.server.zcard("{math}:workers") == 2 + self.crashes


async def die(consumer: Consumer) -> None:
    """Cut the connection without handing anything back."""
    assert consumer._renewer is not None
    consumer._renewer.cancel()
    await asyncio.wait([consumer._renewer])
    await consumer._link.close()


def test_queue_behaves_like_its_model(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_module, "BLOCK_MS", 1)
    monkeypatch.setattr(consumer_module, "RESCUE_EVERY_S", 0.0)
    run_state_machine_as_test(
        cast(Any, lambda: QueueMachine(redis_url)),
        settings=settings(
            max_examples=40,
            stateful_step_count=40,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
