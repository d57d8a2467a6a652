"""Items that ask for weights still to come wait in line, and hold up nobody."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest

from guerdon.types import Result, Sample, ScoreRequest, Status, failed
from guerdon_services.runtime.dispatch import Dispatcher
from guerdon_services.runtime.metrics import Metrics
from guerdon_services.runtime.scorer import Batching, ScoreJob, Scorer, ScorerOptions, ScorerSettings
from guerdon_services.runtime.settings import Address, RuntimeSettings


class Follower(Scorer[ScorerSettings, ScorerOptions]):
    """Has the weights of `now`; answers with their version."""

    name = "follower"
    version = "1"

    def __init__(self, *, wait_s: float) -> None:
        super().__init__(ScorerSettings())
        self.batching = Batching(max_items=8, max_wait_ms=0)
        self.version_wait_s = wait_s
        self.now = 0
        self.looks = 0

    @property
    def model_version(self) -> int | None:
        return self.now

    def score(self, batch: Sequence[ScoreJob[ScorerOptions]]) -> list[Result]:
        self.looks += 1
        return [
            failed(Status.UNAVAILABLE, f"version {job.min_version} is not here")
            if (job.min_version or 0) > self.now
            else Result(status=Status.OK, value=float(self.now))
            for job in batch
        ]


@pytest.fixture
async def made() -> AsyncGenerator[list[Dispatcher]]:
    dispatchers: list[Dispatcher] = []
    yield dispatchers
    for dispatcher in dispatchers:
        dispatcher.lane.stop()


def serve(made: list[Dispatcher], follower: Follower) -> Dispatcher:
    dispatcher = Dispatcher(follower, RuntimeSettings(http=Address("127.0.0.1", 0)), Metrics())
    made.append(dispatcher)
    dispatcher.accept()
    return dispatcher


def request(min_version: int | None = None) -> ScoreRequest:
    return ScoreRequest(samples=[Sample(response="x")], min_version=min_version)


async def test_an_early_item_is_answered_when_its_version_comes_and_others_before(
    made: list[Dispatcher],
) -> None:
    follower = Follower(wait_s=60)
    dispatcher = serve(made, follower)
    early = asyncio.ensure_future(dispatcher.score(request(min_version=3)))
    for _ in range(20):
        assert (await dispatcher.score(request()))[0].value == 0.0
    assert not early.done()
    assert dispatcher.waiting == 1
    follower.now = 3
    answer = (await asyncio.wait_for(early, 30))[0]
    assert (answer.status, answer.value, answer.model_version) == (Status.OK, 3.0, 3)
    assert dispatcher.waiting == 0
    await dispatcher.lane.idle()


async def test_an_item_whose_version_does_not_come_is_unavailable(made: list[Dispatcher]) -> None:
    follower = Follower(wait_s=0.12)
    answer = (await serve(made, follower).score(request(min_version=3)))[0]
    assert (answer.status, answer.value) == (Status.UNAVAILABLE, None)
    assert answer.reason == "version 3 is not here"
    assert answer.queue_ms >= 120
    assert follower.looks >= 2


async def test_without_a_wait_the_first_answer_stands(made: list[Dispatcher]) -> None:
    follower = Follower(wait_s=0)
    answer = (await serve(made, follower).score(request(min_version=3)))[0]
    assert (answer.status, follower.looks) == (Status.UNAVAILABLE, 1)


async def test_deadlines_and_cancelled_callers_end_the_wait(made: list[Dispatcher]) -> None:
    dispatcher = serve(made, Follower(wait_s=60))
    late = (await dispatcher.score(request(min_version=3), timeout_s=0.1))[0]
    assert late.status is Status.TIMEOUT
    gone = asyncio.ensure_future(dispatcher.score(request(min_version=3)))
    await asyncio.sleep(0.1)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert dispatcher.waiting == 0
    await asyncio.wait_for(dispatcher.lane.idle(), 30)
