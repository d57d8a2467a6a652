"""Many samples at once: shared requests, repetitions within a budget, the same order; no failure is a reward."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from guerdon import background
from guerdon.bulk import Bulk, RetryBudget, score_each, score_many
from guerdon.client import AsyncClient
from guerdon.errors import InvalidRequest, Overloaded, TooLarge, Unauthorized, Unavailable
from guerdon.summary import Summary
from guerdon.testing import Failure, StubService
from guerdon.types import Result, Sample, ScoreRequest, Status, failed
from tests.waiting import PATIENCE_S


def judge(sample: Sample) -> Result | float:
    if sample.response == "slow":
        return failed(Status.TIMEOUT, "too slow")
    return float(sample.response or 0)


def samples(count: int) -> list[Sample]:
    return [Sample(id=str(number), response=str(number)) for number in range(count)]


class Scripted:
    """A client whose requests end as the test says: an exception, or None for an answer."""

    def __init__(self, *ends: Exception | None) -> None:
        self.ends = list(ends)
        self.sizes: list[int] = []
        self.open = self.most_open = 0

    async def score_stream(
        self, samples: Sequence[Sample], **_: Any
    ) -> AsyncGenerator[tuple[int, Result], None]:
        self.sizes.append(len(samples))
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            await asyncio.sleep(0)
            end = self.ends.pop(0) if self.ends else None
            for index, sample in enumerate(samples):
                if isinstance(end, Exception) and index == len(samples) // 2:
                    raise end
                yield index, Result(id=sample.id, status=Status.OK, value=float(sample.response or 0))
        finally:
            self.open -= 1


async def test_concurrent_samples_share_requests_and_keep_their_order() -> None:
    client = Scripted()
    bulk = Bulk(client, max_items=10, in_flight=2)
    results = await bulk.score(samples(95))
    assert [result.value for result in results] == [float(number) for number in range(95)]
    assert sorted(client.sizes) == [5, *[10] * 9]
    assert client.most_open == 2


async def test_a_failure_that_may_pass_is_repeated_and_what_was_answered_is_not() -> None:
    client = Scripted(Unavailable("restarting"), Overloaded("full", retry_after_s=0.01))
    results = await Bulk(client, max_items=10).score(samples(10))
    assert [result.value for result in results] == [float(number) for number in range(10)]
    # Half of the first request was answered before it broke, and half of the second.
    assert client.sizes[0] == 10
    assert sum(client.sizes) < 30


async def test_repetitions_end_with_the_budget() -> None:
    client = Scripted(*[Unavailable("gone")] * 1000)
    budget = RetryBudget(share=0.0, reserve=3.0)
    results = await Bulk(client, max_items=1, retries=4, budget=budget).score(samples(20))
    assert Counter(result.status for result in results) == {Status.UNAVAILABLE: 20}
    assert len(client.sizes) == 23
    assert all(result.value is None for result in results)


async def test_repetitions_end_with_their_number_and_with_time() -> None:
    client = Scripted(*[Unavailable("gone")] * 1000)
    [result] = await Bulk(client, retries=1).score(samples(1))
    assert (result.status, len(client.sizes)) == (Status.UNAVAILABLE, 2)
    client = Scripted(*[Unavailable("gone")] * 1000)
    [result] = await Bulk(client, retries=None, timeout_s=0.5).score(samples(1))
    assert (result.status, result.value) == (Status.UNAVAILABLE, None)


async def test_a_sample_at_fault_is_not_repeated() -> None:
    requests: list[Sample] = []

    def refuse(sample: Sample) -> Result:
        requests.append(sample)
        return failed(Status.INVALID_INPUT, "references: missing")

    with StubService(refuse) as stub:
        [result] = await asyncio.to_thread(score_many, samples(1), stub.url)
    assert (result.status, result.reason, len(requests)) == (Status.INVALID_INPUT, "references: missing", 1)


async def test_what_is_too_large_is_halved() -> None:
    class Small(Scripted):
        def score_stream(self, samples: Sequence[Sample], **_: Any) -> Any:
            self.ends = [TooLarge("too large") if len(samples) > 3 else None]
            return super().score_stream(samples)

    results = await Bulk(Small()).score(samples(8))
    assert [result.value for result in results] == [float(number) for number in range(8)]

    class Tiny(Scripted):
        def score_stream(self, samples: Sequence[Sample], **_: Any) -> Any:
            self.ends = [TooLarge("too large")]
            return super().score_stream(samples)

    [result] = await Bulk(Tiny()).score(samples(1))
    assert (result.status, result.reason) == (Status.INVALID_INPUT, "too large")


async def test_a_wrong_token_or_option_is_raised() -> None:
    with StubService(judge, token="right") as stub, pytest.raises(Unauthorized):
        score_many(samples(3), stub.url, token="wrong")
    with pytest.raises(InvalidRequest, match="scheme"):
        score_many(samples(3), "ftp://127.0.0.1")


async def test_a_second_request_answers_where_the_first_hangs() -> None:
    class Hanging(Scripted):
        async def score_stream(
            self, samples: Sequence[Sample], **_: Any
        ) -> AsyncGenerator[tuple[int, Result], None]:
            self.sizes.append(len(samples))
            if len(self.sizes) == 1:
                await asyncio.Event().wait()
            yield 0, Result(id=samples[0].id, status=Status.OK, value=1.0)

    client = Hanging()
    bulk = Bulk(client, hedge_after_s=0.01)
    [result] = await bulk.score(samples(1))
    assert (result.value, client.sizes) == (1.0, [1, 1])
    await bulk.aclose()
    # Off unless asked for.
    client = Hanging()
    bulk = Bulk(client, timeout_s=0.5)
    [result] = await bulk.score(samples(1))
    assert (result.status, client.sizes) == (Status.TIMEOUT, [1])
    await bulk.aclose()


async def test_closing_cancels_who_waits() -> None:
    begun, release = threading.Event(), threading.Event()

    def hang(_: Sample) -> float:
        begun.set()
        return float(release.wait(PATIENCE_S))

    with StubService(hang) as stub:
        async with AsyncClient(stub.url) as client:
            # One sample under way, one that is not sent yet.
            bulk = Bulk(client, max_items=1, in_flight=1)
            waiting = [asyncio.create_task(bulk.score_one(Sample(response="1"))) for _ in range(2)]
            assert await asyncio.to_thread(begun.wait, PATIENCE_S)
            await bulk.aclose()
            for one in waiting:
                with pytest.raises(asyncio.CancelledError):
                    await one
        release.set()


async def test_a_stream_of_samples_may_be_endless() -> None:
    made: list[int] = []

    def endless() -> Any:
        number = 0
        while True:
            made.append(number)
            yield Sample(response=str(number))
            number += 1

    bulk = Bulk(Scripted(), max_items=4)
    results = score_each(bulk, endless(), window=8)
    values = [(await anext(results)).value for _ in range(20)]
    await results.aclose()
    await bulk.aclose()
    assert values == [float(number) for number in range(20)]
    assert len(made) <= 20 + 8


async def test_a_thousand_calls_at_once() -> None:
    # One sample each, as verl, slime and verifiers ask.
    with StubService(judge) as stub:
        async with AsyncClient(stub.url, retries=0) as client:
            bulk = Bulk(client)
            results = await asyncio.gather(*(bulk.score_one(sample) for sample in samples(1000)))
        assert [result.value for result in results] == [float(number) for number in range(1000)]
        assert sum(len(r.samples) for r in stub.requests if isinstance(r, ScoreRequest)) == 1000
        assert len(stub.requests) <= 32


def test_progress_is_told_of_every_result(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Result] = []
    with StubService(judge) as stub:
        stub.fail_next(Failure(status=503))
        results = score_many(
            [*samples(3), Sample(response="slow")], stub.url, progress=seen.append, retries=1
        )
        assert seen == results
        score_many(samples(5), stub.url, progress=True)
    assert "5/5" in capsys.readouterr().err


def test_the_blocking_form_works_in_threads_and_in_a_loop() -> None:
    with StubService(judge) as stub:

        async def inside() -> list[Result]:
            return score_many(samples(3), stub.url)

        assert [result.value for result in asyncio.run(inside())] == [0.0, 1.0, 2.0]
        background.stop()
        assert [result.value for result in score_many(samples(2), stub.url)] == [0.0, 1.0]


def test_a_summary_counts_by_status() -> None:
    results = [Result(status=Status.OK, value=value) for value in (1.0, 0.0)] + [failed(Status.TIMEOUT, "")]
    summary = Summary.of(results, seconds=2.0)
    assert (summary.count, summary.mean) == (3, 0.5)
    assert str(summary) == "3 samples: 2 ok, 1 timeout; mean reward 0.5000; 2.0 s, 2 samples/s"
    assert str(Summary.of([])) == "no rows to score"
