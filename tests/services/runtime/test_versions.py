"""Waiting for a version, and requests whose items all meet the same weights."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from types import ModuleType
from typing import Any

import httpx
import pytest

from guerdon import AsyncClient, errors
from guerdon.types import (
    ModelVersion,
    Result,
    Sample,
    ScoreRequest,
    Status,
    UpdateRequest,
    VersionsResponse,
    failed,
)
from guerdon_services.runtime.dispatch import Dispatcher
from guerdon_services.runtime.metrics import Metrics
from guerdon_services.runtime.scorer import (
    Batching,
    NotReady,
    ScoreJob,
    Scorer,
    ScorerOptions,
    ScorerSettings,
    Versioned,
)
from guerdon_services.runtime.settings import Address, RuntimeSettings

Job = ScoreJob[ScorerOptions]


class Follower(Scorer[ScorerSettings, ScorerOptions], Versioned):
    """Takes up `published` when it is told to; answers with the version it has."""

    name = "follower"
    version = "1"

    def __init__(self, *, fails: Callable[[Sequence[Job]], bool] = lambda batch: False) -> None:
        super().__init__(ScorerSettings())
        self.batching = Batching(max_items=8, max_tokens=1000, max_wait_ms=0, whole_requests=True)
        self.version_wait_s = 60.0
        self.published = 0
        self.loaded = 0
        self.unreadable = False
        self.moves = False
        self.fails = fails
        self.sizes: list[int] = []

    @property
    def model_version(self) -> int | None:
        return self.loaded

    def refresh(self) -> None:
        if self.unreadable:
            raise NotReady("the weights are half read")
        self.published += self.moves
        self.loaded = self.published

    def versions(self) -> VersionsResponse:
        kept = [ModelVersion(version=self.loaded, path="/x", created_unix_s=1.0)]
        return VersionsResponse(current=self.loaded, versions=kept)

    def tokens(self, job: Job) -> int:
        return len(job.sample.response or "")

    def score(self, batch: Sequence[Job]) -> list[Result]:
        if self.fails(batch):
            raise RuntimeError("this batch fails")
        self.sizes.append(len(batch))
        return [
            failed(Status.UNAVAILABLE, "too early")
            if (job.min_version or 0) > self.loaded
            else Result(status=Status.OK, value=float(self.loaded))
            for job in batch
        ]


@pytest.fixture
async def dispatch() -> AsyncGenerator[Callable[[Follower], Dispatcher]]:
    made: list[Dispatcher] = []

    def dispatch(follower: Follower) -> Dispatcher:
        made.append(Dispatcher(follower, RuntimeSettings(http=Address("127.0.0.1", 0)), Metrics()))
        made[-1].accept()
        return made[-1]

    yield dispatch
    for one in made:
        one.refuse("the test is over")
        one.lane.stop()


def request(count: int, min_version: int | None = None, text: str = "x") -> ScoreRequest:
    return ScoreRequest(samples=[Sample(response=text)] * count, min_version=min_version)


def assert_one_version(answers: Sequence[Sequence[Result]]) -> None:
    for results in answers:
        assert {one.status for one in results} == {Status.OK}
        assert len({one.model_version for one in results}) == 1, [one.model_version for one in results]


async def test_no_request_is_scored_by_two_versions(dispatch: Any) -> None:
    """A new version before every batch, requests of every size, larger than a batch too."""
    follower = Follower()
    dispatcher = dispatch(follower)
    follower.moves = True
    sizes = [random.Random(0).choice([1, 3, 5, 8, 9, 20]) for _ in range(60)]
    answers = await asyncio.gather(*(dispatcher.score(request(size)) for size in sizes))
    assert_one_version(answers)
    assert len({results[0].model_version for results in answers}) > 10
    assert max(follower.sizes) == 8


async def test_requests_are_kept_whole_by_tokens_too(dispatch: Any) -> None:
    follower = Follower()
    dispatcher = dispatch(follower)
    follower.moves = True
    calls = [dispatcher.score(request(2, text="y" * length)) for length in (300, 300, 700, 100, 400, 999)]
    assert_one_version(await asyncio.gather(*calls))


async def test_items_that_are_run_one_by_one_meet_the_same_weights(dispatch: Any) -> None:
    follower = Follower(fails=lambda batch: len(batch) > 1)
    dispatcher = dispatch(follower)
    follower.moves = True
    assert_one_version(await asyncio.gather(*(dispatcher.score(request(size)) for size in (3, 20, 4, 11))))


async def test_items_that_wait_for_a_version_come_back_together(dispatch: Any) -> None:
    follower = Follower()
    dispatcher = dispatch(follower)
    early = [asyncio.ensure_future(dispatcher.score(request(size, min_version=3))) for size in (5, 20, 3)]
    late = await asyncio.gather(*(dispatcher.score(request(size)) for size in (2, 9)))
    assert {one.value for results in late for one in results} == {0.0}
    follower.published = 2
    follower.moves = True
    answers = await asyncio.wait_for(asyncio.gather(*early), 60)
    assert_one_version(answers)
    assert all((results[0].model_version or 0) >= 3 for results in answers)


async def test_unreadable_weights_never_score(dispatch: Any) -> None:
    follower = Follower()
    dispatcher = dispatch(follower)
    follower.unreadable = True
    [result] = await dispatcher.score(request(1))
    assert (result.status, result.value, result.reason) == (
        Status.UNAVAILABLE,
        None,
        "the weights are half read",
    )
    follower.unreadable = False
    assert (await dispatcher.score(request(1)))[0].status is Status.OK


@pytest.fixture
def scheme(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("scheme", ["http", "grpc", "queue"], indirect=True)
async def test_a_client_waits_for_a_version(serve: Any, redis_url: str, scheme: str) -> None:
    follower = Follower()
    async with serve(follower, queue=redis_url) as served:
        urls = {"http": served.process.url, "grpc": f"grpc://{served.grpc}", "queue": redis_url}
        async with AsyncClient(urls[scheme], service="follower") as client:
            assert (await client.versions()).current == 0
            waits = [asyncio.ensure_future(client.wait_for_version(4)) for _ in range(20)]
            with pytest.raises(errors.Timeout):
                await client.wait_for_version(4, timeout_s=0.3)
            # Those that wait hold up nobody.
            assert [one.value for one in await client.score([Sample(response="x")] * 3)] == [0.0] * 3
            follower.published = 5
            assert {one.current for one in await asyncio.gather(*waits)} == {5}
            assert (await client.wait_for_version(2)).current == 5


async def test_the_answer_to_a_vain_wait_is_a_problem_document(serve: Any, scorers: ModuleType) -> None:
    update = UpdateRequest(request_id="u", samples=[Sample(outcome=1.0)], order="after")
    async with serve(scorers.Tally(scorers.EchoSettings())) as served:
        vain = await served.http.get("/v1/versions?wait_for=1&timeout_s=0.05")
        waiting = asyncio.ensure_future(served.http.get("/v1/versions?wait_for=1"))
        await served.http.post("/v1/update", content=update.model_dump_json())
        came = await waiting
        wrong = [
            await served.http.get(f"/v1/versions?{query}")
            for query in ("wait_for=soon", "wait_for=-1", "timeout_s=nan", "wait=1")
        ]
        document = (await served.http.get("/openapi.json")).json()
    assert (vain.status_code, vain.headers["content-type"]) == (504, "application/problem+json")
    assert vain.json()["detail"] == "version 1 did not come in 0.05 s, version 0 is served"
    assert (came.status_code, came.json()["current"]) == (200, 1)
    assert [one.status_code for one in wrong] == [422] * 4
    assert [one.json()["errors"][0]["field"] for one in wrong] == [
        "wait_for",
        "wait_for",
        "timeout_s",
        "wait",
    ]
    described = document["paths"]["/v1/versions"]["get"]
    assert [one["name"] for one in described["parameters"]] == ["wait_for", "timeout_s"]
    assert "504" in described["responses"]


async def test_a_service_that_stops_lets_the_waiting_go(serve: Any) -> None:
    async with serve(Follower()) as served:
        waiting = asyncio.ensure_future(served.http.get("/v1/versions?wait_for=9"))
        gone = asyncio.ensure_future(served.http.get("/v1/versions?wait_for=9", timeout=0.2))
        with pytest.raises(httpx.ReadTimeout):
            await gone
        served.process.dispatcher.refuse("the service is stopping")
        answer = await waiting
    assert (answer.status_code, answer.json()["detail"]) == (503, "the service is stopping")


async def test_a_service_without_weights_has_no_versions(serve: Any, scorers: ModuleType) -> None:
    async with serve(scorers.Echo(scorers.EchoSettings())) as served:
        assert (await served.http.get("/v1/versions?wait_for=1")).status_code == 404
