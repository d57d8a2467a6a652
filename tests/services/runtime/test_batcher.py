"""The micro-batcher on its own."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence
from typing import Any, NamedTuple

import pytest

from guerdon.types import Result, Status
from guerdon_services.runtime.batcher import Batcher
from guerdon_services.runtime.lane import Lane
from guerdon_services.runtime.metrics import Metrics
from guerdon_services.runtime.scorer import Batching, OutOfMemory
from guerdon_services.runtime.submission import Failure, Ran, Submission


class Outcome(NamedTuple):
    """What a request here gets for each word."""

    value: Any
    model_version: int | None


def outcomes_of(_: Sequence[str | None], values: Sequence[Any], ran: Ran) -> list[Outcome]:
    return [Outcome(value, ran.model_version) for value in values]


class Bench:
    """A batcher of words whose operation can be held."""

    def __init__(self, batching: Batching, lane: Lane | None = None) -> None:
        self.batches: list[list[str]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.held = threading.Event()
        self.lane = lane or Lane(batching.concurrency, "bench")
        self.batcher: Batcher[str, Result] = Batcher(
            "score",
            self._run,
            Result,
            lane=self.lane,
            limits=lambda: batching,
            version=lambda: 7,
            metrics=Metrics().operation("score"),
        )

    def _run(self, words: Sequence[str]) -> list[Result]:
        self.batches.append(list(words))
        self.held.set()
        assert self.gate.wait(30)
        return [Result(status=Status.OK, value=float(len(word))) for word in words]

    def submit(
        self, *words: str | Failure, tokens: Sequence[int] | None = None, timeout_s: float | None = None
    ) -> Submission[Any]:
        submission: Submission[Any] = Submission([None] * len(words), outcomes_of)
        self.batcher.submit(words, submission, timeout_s, tokens or [1] * len(words))
        return submission


@pytest.fixture
async def benches() -> AsyncGenerator[list[Bench]]:
    made: list[Bench] = []
    yield made
    for bench in made:
        bench.gate.set()
        await bench.lane.idle()
        bench.lane.stop()


async def test_batches_hold_at_most_max_items(benches: list[Bench]) -> None:
    bench = Bench(Batching(max_items=3, max_wait_ms=1))
    benches.append(bench)
    submission = bench.submit(*"abcdefg")
    bench.lane.start()
    outcomes = await submission.all()
    assert bench.batches == [["a", "b", "c"], ["d", "e", "f"], ["g"]]
    assert [outcome.value.value for outcome in outcomes] == [1.0] * 7
    assert {outcome.model_version for outcome in outcomes} == {7}


async def test_requests_share_a_batch(benches: list[Bench]) -> None:
    bench = Bench(Batching(max_items=10, max_wait_ms=50))
    benches.append(bench)
    bench.lane.start()
    first, second = bench.submit("a"), bench.submit("b", "c")
    await asyncio.gather(first.all(), second.all())
    assert bench.batches == [["a", "b", "c"]]


async def test_an_item_too_large_for_the_memory_is_unavailable_and_its_neighbours_are_served(
    benches: list[Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(Batching(max_items=3, max_wait_ms=1))
    benches.append(bench)

    def run(words: Sequence[str]) -> list[Result]:
        if "large" in words:
            raise OutOfMemory("not enough memory")
        return [Result(status=Status.OK, value=1.0) for _ in words]

    monkeypatch.setattr(bench.batcher, "_operation", run)
    submission = bench.submit("a", "large", "b")
    bench.lane.start()
    values = [outcome.value for outcome in await submission.all()]
    assert values[1] == Failure(Status.UNAVAILABLE, "not enough memory")
    assert [values[0].value, values[2].value] == [1.0, 1.0]


async def test_a_full_batch_does_not_wait(benches: list[Bench]) -> None:
    bench = Bench(Batching(max_items=2, max_wait_ms=60_000))
    benches.append(bench)
    bench.lane.start()
    await asyncio.wait_for(bench.submit("a", "b").all(), 10)
    await asyncio.wait_for(bench.submit("c", tokens=[20_000]).all(), 10)
    assert bench.batches == [["a", "b"], ["c"]]


async def test_batches_hold_at_most_max_tokens(benches: list[Bench]) -> None:
    bench = Bench(Batching(max_items=10, max_tokens=10, max_wait_ms=1))
    benches.append(bench)
    submission = bench.submit("a", "b", "c", "d", "e", tokens=[6, 4, 3, 30, 1])
    bench.lane.start()
    await submission.all()
    assert bench.batches == [["a", "b"], ["c"], ["d"], ["e"]]


async def test_items_that_fail_at_the_door_never_run(benches: list[Bench]) -> None:
    bench = Bench(Batching(max_items=10, max_wait_ms=1))
    benches.append(bench)
    bench.lane.start()
    wrong = Failure(Status.INVALID_INPUT, "response: wrong")
    outcomes = await bench.submit("a", wrong, "b").all()
    assert outcomes[1].value is wrong
    assert bench.batches == [["a", "b"]]
    assert (await bench.submit(wrong).all())[0].value is wrong
    assert await bench.submit().all() == []


async def test_cancelled_items_never_run(benches: list[Bench]) -> None:
    bench = Bench(Batching(max_items=1, max_wait_ms=0))
    benches.append(bench)
    bench.gate.clear()
    bench.lane.start()
    running, waiting, last = bench.submit("a"), bench.submit("b", "c"), bench.submit("d")
    await asyncio.to_thread(bench.held.wait, 10)
    assert bench.batcher.waiting == 3
    waiter = asyncio.ensure_future(waiting.all())
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert (waiting.cancelled, waiting.started, running.started) == (True, False, True)
    assert bench.batcher.waiting == 1
    bench.gate.set()
    await asyncio.gather(running.all(), last.all())
    assert bench.batches == [["a"], ["d"]]


async def test_a_deadline_resolves_what_runs_and_what_waits(benches: list[Bench]) -> None:
    bench = Bench(Batching(max_items=1, max_wait_ms=0))
    benches.append(bench)
    bench.gate.clear()
    bench.lane.start()
    late = bench.submit("a", "b", timeout_s=0.02)
    outcomes = await asyncio.wait_for(late.all(), 10)
    assert [outcome.value.status for outcome in outcomes] == [Status.TIMEOUT] * 2
    assert "during execution" in outcomes[0].value.reason
    assert "before execution" in outcomes[1].value.reason
    assert bench.batcher.waiting == 0
    bench.gate.set()
    await bench.lane.idle()
    assert bench.batches == [["a"]]


async def test_skipped_items_do_not_pile_up(benches: list[Bench]) -> None:
    bench = Bench(Batching(max_items=1, max_wait_ms=0))
    benches.append(bench)
    bench.gate.clear()
    bench.lane.start()
    bench.submit("a")
    for _ in range(40):
        bench.submit(*["x"] * 100).cancel()
    assert bench.batcher.waiting == 0
    assert len(bench.batcher._line) <= 1124  # pyright: ignore[reportPrivateUsage]


async def test_whoever_waits_hears_of_a_mistake_of_the_runtime(benches: list[Bench]) -> None:
    bench = Bench(Batching(max_items=10, max_wait_ms=1))
    benches.append(bench)
    bench.lane.start()

    def finish(ids: Sequence[str | None], values: Sequence[Any], ran: Ran) -> list[Outcome]:
        if "second" in ids and all(isinstance(value, Result) for value in values):
            raise RuntimeError("the stamp broke")
        return outcomes_of(ids, values, ran)

    submission: Submission[Any] = Submission(["first", "second", "third"], finish)
    bench.batcher.submit("abc", submission)
    first, *others = await asyncio.wait_for(submission.all(), 30)
    assert (first.value.value, others[1].value.value) == (1.0, 1.0)
    assert others[0].value.status is Status.INTERNAL_ERROR
    assert others[0].value.reason == "the result cannot be read: RuntimeError: the stamp broke"
    again = bench.batcher._again  # pyright: ignore[reportPrivateUsage]

    def broken(*_: object) -> bool:
        raise RuntimeError("the question broke")

    bench.batcher._again = broken  # pyright: ignore[reportPrivateUsage]
    [result] = await asyncio.wait_for(bench.submit("d").all(), 30)
    assert result.value.status is Status.INTERNAL_ERROR
    assert result.value.reason == "the runtime failed: RuntimeError: the question broke"
    bench.batcher._again = again  # pyright: ignore[reportPrivateUsage]
    assert (await asyncio.wait_for(bench.submit("d").all(), 30))[0].value.value == 1.0


def test_a_reason_is_text_that_every_door_can_carry() -> None:
    assert Failure(Status.INTERNAL_ERROR, "not text: \udcff, ü").reason == "not text: \\udcff, ü"


async def test_two_lines_share_one_lane_fairly(benches: list[Bench]) -> None:
    batching = Batching(max_items=1, max_wait_ms=0)
    first = Bench(batching)
    second = Bench(batching, first.lane)
    benches.append(first)
    order: list[str] = []
    submissions = [first.submit("a"), second.submit("b"), first.submit("c"), second.submit("d")]
    for submission, word in zip(submissions, "abcd", strict=True):
        submission.on_end(lambda word=word, submission=submission: order.append(word))
    first.lane.start()
    await first.lane.idle()
    assert order == ["a", "b", "c", "d"]


async def test_idle_is_when_nothing_waits_or_runs(benches: list[Bench]) -> None:
    bench = Bench(Batching(max_items=1, max_wait_ms=0))
    benches.append(bench)
    await asyncio.wait_for(bench.lane.idle(), 1)
    bench.gate.clear()
    bench.lane.start()
    bench.submit("a", "b")
    idle = asyncio.ensure_future(bench.lane.idle())
    await asyncio.to_thread(bench.held.wait, 10)
    assert not idle.done()
    bench.gate.set()
    await asyncio.wait_for(idle, 10)
    assert bench.batches == [["a"], ["b"]]
