"""The gRPC door, over real sockets."""

import asyncio
from types import ModuleType
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from google.protobuf import struct_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from guerdon import codec
from guerdon.types import ScoreRequest
from guerdon.v1 import reward_pb2, reward_pb2_grpc, rollout_pb2, rollout_pb2_grpc, update_pb2, update_pb2_grpc

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def request(*responses: str, **others: Any) -> Any:
    samples = [{"id": f"s{index}", "response": one} for index, one in enumerate(responses)]
    return codec.to_proto(ScoreRequest.model_validate({"samples": samples, **others}))


async def test_scores_come_in_order_with_stamps(serve: Any, scorers: ModuleType) -> None:
    async with (
        serve(scorers.Echo(scorers.EchoSettings())) as served,
        grpc.aio.insecure_channel(served.grpc) as channel,
    ):
        stub = reward_pb2_grpc.RewardServiceStub(channel)
        answer = await stub.Score(request("1", "0.5", "poison", options={"scale": 2, "shift": 1}))
        info = await stub.Info(reward_pb2.InfoRequest())
    assert [one.id for one in answer.results] == ["s0", "s1", "s2"]
    assert [one.value for one in answer.results[:2]] == [3.0, 2.0]
    assert not answer.results[2].HasField("value")
    assert answer.results[2].status == reward_pb2.STATUS_INTERNAL_ERROR
    assert answer.results[0].exec_ms > 0
    assert (info.scorer, list(info.operations)) == ("echo", ["score"])


async def test_items_stream_as_they_finish(serve: Any, scorers: ModuleType) -> None:
    service = scorers.Echo(scorers.EchoSettings(max_items=1, concurrency=2))
    async with serve(service) as served, grpc.aio.insecure_channel(served.grpc) as channel:
        stream = reward_pb2_grpc.RewardServiceStub(channel).ScoreStream(request("hold", "1", "2"))
        early = [(await stream.read()).index for _ in range(2)]
        service.gate.set()
        rest = [(await stream.read()).index]
    assert (early, rest) == ([1, 2], [0])


def bad_options() -> Any:
    options = struct_pb2.Struct()
    options.update({"scale": float("nan")})
    return reward_pb2.ScoreRequest(options=options)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (request("1", options={"scal": 1}), "options.scal: unknown field; did you mean scale?"),
        (request("1", options={"shift": 0.5}), "options.shift"),
        (bad_options(), "options.scale: must be a finite number"),
        (reward_pb2.ScoreRequest(min_version=-1), "min_version"),
    ],
)
async def test_a_wrong_request_is_an_invalid_argument(
    serve: Any, scorers: ModuleType, wrong: Any, words: str
) -> None:
    async with (
        serve(scorers.Echo(scorers.EchoSettings())) as served,
        grpc.aio.insecure_channel(served.grpc) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reward_pb2_grpc.RewardServiceStub(channel).Score(wrong)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in (caught.value.details() or "")


async def test_bytes_that_are_no_message_are_an_invalid_argument(serve: Any, scorers: ModuleType) -> None:
    async with (
        serve(scorers.Echo(scorers.EchoSettings())) as served,
        grpc.aio.insecure_channel(served.grpc) as channel,
    ):
        call: Any = channel.unary_unary("/guerdon.v1.RewardService/Score")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"\xff\xff\xff")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_bad_sample_leaves_its_neighbours_alone(serve: Any, scorers: ModuleType) -> None:
    samples = [
        reward_pb2.Sample(id="a", response="1"),
        reward_pb2.Sample(id="b", metadata="{not json"),
        reward_pb2.Sample(id="c", prompt=reward_pb2.Prompt()),
        reward_pb2.Sample(id="d", outcome=2.0),
        reward_pb2.Sample(id="e", outcome=float("inf")),
        reward_pb2.Sample(id="f", response_token_ids=[-1]),
        reward_pb2.Sample(id="g", response="2"),
    ]
    async with (
        serve(scorers.Echo(scorers.EchoSettings())) as served,
        grpc.aio.insecure_channel(served.grpc) as channel,
    ):
        answer = await reward_pb2_grpc.RewardServiceStub(channel).Score(
            reward_pb2.ScoreRequest(samples=samples)
        )
    first, *bad, last = answer.results
    assert (first.value, last.value) == (1.0, 2.0)
    assert {one.status for one in bad} == {reward_pb2.STATUS_INVALID_INPUT}
    for one, field in zip(
        bad, ["metadata", "prompt", "outcome", "outcome", "response_token_ids.0"], strict=True
    ):
        assert one.reason.startswith(f"{field}:")
    assert [one.id for one in bad] == ["b", "c", "d", "e", "f"]


async def test_a_deadline_passes_and_what_waits_never_runs(
    serve: Any, scorers: ModuleType, until: Any
) -> None:
    service = scorers.Echo(scorers.EchoSettings(max_items=1))
    async with serve(service) as served, grpc.aio.insecure_channel(served.grpc) as channel:
        stub = reward_pb2_grpc.RewardServiceStub(channel)
        held = asyncio.ensure_future(stub.Score(request("hold")))
        await until(service.held.is_set)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Score(request("1", "2"), timeout=0.1)
        await until(lambda: served.process.dispatcher.waiting == 0)
        service.gate.set()
        await held
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert service.batches == [["hold"]]


async def test_a_cancelled_stream_frees_its_place(serve: Any, scorers: ModuleType, until: Any) -> None:
    service = scorers.Echo(scorers.EchoSettings(max_items=1))
    async with serve(service) as served, grpc.aio.insecure_channel(served.grpc) as channel:
        stream = reward_pb2_grpc.RewardServiceStub(channel).ScoreStream(request("1", "hold", "2"))
        await stream.read()
        await until(service.held.is_set)
        stream.cancel()
        await until(lambda: served.process.dispatcher.waiting == 0)
        service.gate.set()
    assert service.batches == [["1"], ["hold"]]


async def test_overload_and_size_are_resource_exhausted(serve: Any, scorers: ModuleType, until: Any) -> None:
    service = scorers.Echo(scorers.EchoSettings(max_items=1))
    async with (
        serve(service, max_pending=2, max_request_items=2, max_body_bytes=4000) as served,
        grpc.aio.insecure_channel(served.grpc) as channel,
    ):
        stub = reward_pb2_grpc.RewardServiceStub(channel)
        held = asyncio.ensure_future(stub.Score(request("hold")))
        await until(service.held.is_set)
        waiting = asyncio.ensure_future(stub.Score(request("1", "2")))
        await until(lambda: served.process.dispatcher.waiting == 2)
        with pytest.raises(grpc.aio.AioRpcError) as full:
            await stub.Score(request("3"))
        with pytest.raises(grpc.aio.AioRpcError) as many:
            await stub.Score(request("3", "4", "5"))
        with pytest.raises(grpc.aio.AioRpcError) as large:
            await stub.Score(request("x" * 5000))
        service.gate.set()
        await held
        await waiting
    assert full.value.code() is many.value.code() is large.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert float(dict(full.value.trailing_metadata() or ())["retry-after"]) >= 1
    assert "larger than max" not in (full.value.details() or "")
    assert "larger than max" in (many.value.details() or "")
    assert "larger than max" in (large.value.details() or "")


async def test_health_and_reflection_name_the_services(serve: Any, scorers: ModuleType) -> None:
    async with (
        serve(scorers.Echo(scorers.EchoSettings())) as served,
        grpc.aio.insecure_channel(served.grpc) as channel,
    ):
        health: Any = health_pb2_grpc.HealthStub(channel)
        for name in ("", "guerdon.v1.RewardService"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == SERVING
        reflection: Any = reflection_pb2_grpc.ServerReflectionStub(cast(Any, channel))
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        listed = [one async for one in reflection.ServerReflectionInfo(iter([asked]))]
    names = {one.name for one in listed[0].list_services_response.service}
    assert "guerdon.v1.RewardService" in names
    assert "guerdon.v1.UpdateService" not in names


async def test_health_watchers_hear_of_draining(serve: Any, scorers: ModuleType, until: Any) -> None:
    service = scorers.Echo(scorers.EchoSettings(max_items=1))
    async with serve(service) as served, grpc.aio.insecure_channel(served.grpc) as channel:
        watch = cast(Any, health_pb2_grpc.HealthStub(channel)).Watch(
            health_pb2.HealthCheckRequest(service="")
        )
        first = (await watch.read()).status
        stub = reward_pb2_grpc.RewardServiceStub(channel)
        held = asyncio.ensure_future(stub.Score(request("hold")))
        await until(service.held.is_set)
        draining = asyncio.ensure_future(served.process.drain())
        second = (await watch.read()).status
        ready = await served.http.get("/readyz")
        alive = await served.http.get("/healthz")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Score(request("1"))
        over_http = await served.http.post("/v1/score", json={"samples": []})
        service.gate.set()
        assert (await held).results[0].value == 0.0
        assert await draining
    assert (first, second) == (SERVING, NOT_SERVING)
    assert (ready.status_code, ready.json()["status"]) == (503, "draining")
    assert alive.status_code == 200
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert over_http.status_code == 503


async def test_generation_and_updates(serve: Any, scorers: ModuleType) -> None:
    async with (
        serve(scorers.Parrot(scorers.EchoSettings())) as served,
        grpc.aio.insecure_channel(served.grpc) as channel,
    ):
        prompt = rollout_pb2.GenerateSample(id="a", prompt=reward_pb2.Prompt(text="hi"))
        generate = rollout_pb2.GenerateRequest(samples=[prompt], sampling=rollout_pb2.Sampling(n=2))
        stub = rollout_pb2_grpc.RolloutServiceStub(channel)
        answer = await stub.Generate(generate)
        streamed = [one async for one in stub.GenerateStream(generate)]
        info = await reward_pb2_grpc.RewardServiceStub(channel).Info(reward_pb2.InfoRequest())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reward_pb2_grpc.RewardServiceStub(channel).Score(request("1"))
    assert [one.response for one in answer.results[0].rollouts] == ["hi", "hi"]
    assert len(streamed[0].result.rollouts) == 2
    assert list(info.operations) == ["generate"]
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    async with (
        serve(scorers.Tally(scorers.EchoSettings())) as served,
        grpc.aio.insecure_channel(served.grpc) as channel,
    ):
        update = update_pb2.UpdateRequest(
            request_id="u", order="before", samples=[reward_pb2.Sample(id="a", outcome=1.0)]
        )
        updates = update_pb2_grpc.UpdateServiceStub(channel)
        updated = await updates.Update(update)
        versions = await updates.Versions(update_pb2.VersionsRequest())
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await updates.Update(update_pb2.UpdateRequest(request_id="u", order="sideways"))
    assert (updated.request_id, updated.version_after, updated.results[0].id) == ("u", 1, "a")
    assert versions.current == 1
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
