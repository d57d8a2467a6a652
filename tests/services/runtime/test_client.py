"""The project's own client against real doors: the same results and the same errors whichever way."""

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from types import ModuleType
from typing import Any

import pytest

from guerdon import errors
from guerdon.client import AsyncClient
from guerdon.transports import http as http_transport
from guerdon.types import GenerateSample, Result, Sample, Sampling, Status, UpdateRequest


@pytest.fixture
async def connect(redis_url: str) -> AsyncGenerator[Any]:
    """Clients of a served process, one per door."""
    async with AsyncExitStack() as stack:

        async def clients(served: Any, service: str, **options: Any) -> list[AsyncClient]:
            urls = [served.process.url, f"grpc://{served.grpc}"]
            made = [AsyncClient(url, retries=1, **options) for url in urls]
            made.append(AsyncClient(redis_url, service=service, retries=1, **options))
            return [await stack.enter_async_context(client) for client in made]

        yield clients


def timeless(results: list[Result]) -> list[Result]:
    return [result.model_copy(update={"queue_ms": 0.0, "exec_ms": 0.0}) for result in results]


async def test_results_are_the_same_through_every_door(
    serve: Any, scorers: ModuleType, redis_url: str, connect: Any
) -> None:
    words = ["1.5", "poison", "unscorable", "bad", "2"]
    samples = [Sample(id=str(index), response=word) for index, word in enumerate(words)]
    async with serve(scorers.Echo(scorers.EchoSettings()), queue=redis_url) as served:
        answers: list[list[Result]] = []
        for client in await connect(served, "echo"):
            answers.append(timeless(await client.score(samples, options={"scale": 2, "shift": 1})))
            stream = client.score_stream(samples, options={"scale": 2, "shift": 1})
            streamed = {index: one async for index, one in stream}
            assert timeless([streamed[index] for index in range(len(words))]) == answers[-1]
            assert (await client.info()).operations == ["score"]
            assert await client.score([]) == []
            assert 0 < await client.ping() < 30
    assert answers[0] == answers[1] == answers[2]
    assert [one.value for one in answers[0]] == [4.0, None, None, None, 5.0]


async def test_learners_and_generators_answer_through_every_door(
    serve: Any, scorers: ModuleType, redis_url: str, connect: Any
) -> None:
    async with serve(scorers.Tally(scorers.EchoSettings()), queue=redis_url) as served:
        for number, client in enumerate(await connect(served, "tally"), start=1):
            update = UpdateRequest(
                request_id=f"u{number}", samples=[Sample(id="a", outcome=1.0)], order="after"
            )
            updated = await client.update(update)
            assert (updated.version_after, updated.results[0].id, updated.metrics) == (
                number,
                "a",
                {"loss": 0.5},
            )
            assert (await client.versions()).current == number
            [scored] = await client.score([Sample(response="x")])
            assert scored.model_version == number
    async with serve(scorers.Parrot(scorers.EchoSettings()), queue=redis_url) as served:
        for client in await connect(served, "parrot"):
            [group] = await client.generate([GenerateSample(prompt="hi")], Sampling(n=2))
            assert [one.response for one in group.rollouts] == ["hi", "hi"]


async def test_refusals_are_the_same_errors_over_http_and_grpc(
    serve: Any,
    scorers: ModuleType,
    redis_url: str,
    connect: Any,
    until: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Of a long deadline the service gets a moment: its answer has all the time there is to arrive.
    monkeypatch.setattr(http_transport, "_SERVICE_SHARE", 0.01)
    service = scorers.Echo(scorers.EchoSettings(max_items=1))
    sample = Sample(response="1")
    async with serve(service, queue=redis_url, max_request_items=3, max_pending=3) as served:
        http, grpc, queue = await connect(served, "echo")
        for client in (http, grpc):
            with pytest.raises(errors.InvalidRequest, match=r"options\.scal.*did you mean scale"):
                await client.score([sample], options={"scal": 1})
            with pytest.raises(errors.TooLarge, match="samples"):
                await client.score([sample] * 4)
            with pytest.raises(errors.InvalidRequest):
                await client.versions()
        [refused] = await queue.score([sample], options={"scal": 1})
        assert refused.status == "invalid_input"
        assert "did you mean scale" in refused.reason
        hold = {"samples": [{"response": "hold"}] * 3}
        held = asyncio.ensure_future(served.http.post("/v1/score", json=hold))
        await until(service.held.is_set)
        # HTTP brings what was done in time and a status for the rest; gRPC's own deadline ends the call.
        [late] = await http.score([sample], timeout_s=50)
        assert late.status == "timeout"
        with pytest.raises(errors.Timeout):
            await grpc.score([sample], timeout_s=0.2)
        await until(lambda: served.process.dispatcher.waiting == 2)
        more = asyncio.ensure_future(served.http.post("/v1/score", json={"samples": [{"response": "1"}]}))
        await until(lambda: served.process.dispatcher.waiting == 3)
        for client in (http, grpc):
            with pytest.raises(errors.Overloaded) as full:
                await client.score([sample])
            assert full.value.retry_after_s >= 1
        service.gate.set()
        assert (await held).status_code == (await more).status_code == 200


async def test_a_wrong_token_is_unauthorized(serve: Any, scorers: ModuleType) -> None:
    async with serve(scorers.Echo(scorers.EchoSettings()), token="s3cret") as served:
        for url in (served.process.url, f"grpc://{served.grpc}"):
            async with AsyncClient(url, token="wrong") as wrong, AsyncClient(url, token="s3cret") as right:
                with pytest.raises(errors.Unauthorized):
                    await wrong.score([Sample(response="1")])
                assert (await right.score([Sample(response="1")]))[0].value == 1.0


@pytest.mark.parametrize("timeout_s", [math.inf, 1e300])
async def test_a_timeout_may_be_as_long_as_one_likes(
    serve: Any, scorers: ModuleType, redis_url: str, connect: Any, timeout_s: float
) -> None:
    async with serve(scorers.Echo(scorers.EchoSettings()), queue=redis_url) as served:
        for client in await connect(served, "echo", timeout_s=timeout_s):
            [result] = await client.score([Sample(response="2")])
            assert result.value == 2.0


@pytest.mark.parametrize(
    ("timeout_s", "kind"),
    [(math.nan, errors.InvalidRequest), (0.0, errors.Timeout), (-1.0, errors.Timeout)],
)
async def test_a_timeout_that_is_none_is_the_same_error_at_every_door(
    serve: Any, scorers: ModuleType, redis_url: str, connect: Any, timeout_s: float, kind: type[Exception]
) -> None:
    async with serve(scorers.Echo(scorers.EchoSettings()), queue=redis_url) as served:
        *direct, queue = await connect(served, "echo")
        for client in direct:
            with pytest.raises(kind):
                await client.score([Sample(response="2")], timeout_s=timeout_s)
        # A queue has no refusal but that of an item.
        if kind is errors.Timeout:
            [result] = await queue.score([Sample(response="2")], timeout_s=timeout_s)
            assert (result.status, result.value) == (Status.TIMEOUT, None)
        else:
            with pytest.raises(kind):
                await queue.score([Sample(response="2")], timeout_s=timeout_s)


async def test_what_was_not_done_under_a_key_is_done_when_it_is_asked_for_again(
    serve: Any, scorers: ModuleType, redis_url: str, connect: Any
) -> None:
    service = scorers.Echo(scorers.EchoSettings(max_items=1))
    async with serve(service, queue=redis_url) as served:
        *_, client = await connect(served, "echo")
        samples = [Sample(id="a", response="not_ready"), Sample(id="b", response="1.5")]
        first = await client.score(samples, key="step 1")
        assert [(one.status, one.value) for one in first] == [(Status.UNAVAILABLE, None), (Status.OK, 1.5)]
        asked = sum(map(len, service.batches))
        again = await client.score(samples, key="step 1")
        assert [one.status for one in again] == [Status.UNAVAILABLE, Status.OK]
        assert sum(map(len, service.batches)) == asked + 1


@pytest.mark.parametrize("word", ["typed", "statusless", "half", "mute", "constructed", "exit", "short"])
async def test_a_result_that_cannot_be_said_costs_no_neighbour_at_any_door(
    serve: Any, scorers: ModuleType, redis_url: str, connect: Any, word: str
) -> None:
    samples = [Sample(id=str(index), response=one) for index, one in enumerate(["1.5", word, "2"])]
    async with serve(scorers.Echo(scorers.EchoSettings()), queue=redis_url) as served:
        for client in await connect(served, "echo"):
            streamed = {index: one async for index, one in client.score_stream(samples)}
            for results in (await client.score(samples), [streamed[index] for index in range(3)]):
                assert [one.value for one in results] == [1.5, None, 2.0]
                assert [one.id for one in results] == ["0", "1", "2"]
                assert results[1].status is Status.INTERNAL_ERROR


async def test_an_error_says_what_the_service_calls_the_request(
    serve: Any, scorers: ModuleType, redis_url: str, connect: Any
) -> None:
    seen: list[str] = []
    service = scorers.Tally(scorers.EchoSettings())
    async with serve(service, queue=redis_url) as served:
        for client in await connect(served, "tally"):
            with pytest.raises(errors.Unavailable, match="nothing was learned yet") as caught:
                await client.versions()
            assert caught.value.request_id
            assert str(caught.value).endswith(f"(request {caught.value.request_id})")
            seen.append(caught.value.request_id)
        for url in (served.process.url, f"grpc://{served.grpc}", redis_url):
            async with AsyncClient(url, service="tally", retries=0) as client:
                with pytest.raises(errors.Timeout) as late:
                    await client.wait_for_version(9, timeout_s=0.2)
            assert late.value.request_id
            seen.append(late.value.request_id)
    assert len(set(seen)) == 6, "each attempt has a name of its own"


@pytest.mark.parametrize("scheme", ["http", "grpc"])
async def test_what_no_service_has_seen_has_no_name(scheme: str) -> None:
    async with AsyncClient(f"{scheme}://127.0.0.1:1", retries=0) as client:
        with pytest.raises(errors.Unavailable) as caught:
            await client.info()
    assert caught.value.request_id is None
    assert "(request" not in str(caught.value)
