"""The queue door, over a real Redis, and the agreement of all doors."""

import asyncio
import socket
import time
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import grpc.aio
import pytest

from guerdon import codec
from guerdon.queue import Producer, Reply, stats
from guerdon.types import (
    GenerateRequest,
    GenerateResult,
    Result,
    ScoreRequest,
    ServiceInfo,
    Status,
    UpdateRequest,
    UpdateResponse,
    VersionsResponse,
)
from guerdon.v1 import reward_pb2, reward_pb2_grpc


def score(response: str, **others: Any) -> bytes:
    return codec.encode(
        ScoreRequest.model_validate({"samples": [{"id": "a", "response": response}], **others})
    )


async def ask(producer: Producer, op: str, body: bytes, **others: Any) -> Reply:
    future = await producer.submit(op, body, **others)
    return await asyncio.wait_for(future, 30)


async def test_entries_are_answered_each_as_it_finishes(
    serve: Any, scorers: ModuleType, redis_url: str
) -> None:
    service = scorers.Echo(scorers.EchoSettings(max_items=1, concurrency=2))
    async with serve(service, queue=redis_url) as served:
        producer = Producer(redis_url, "echo")
        held = await producer.submit("score", score("hold"))
        fast = await ask(producer, "score", score("2", options={"scale": 2}))
        assert not held.done()
        service.gate.set()
        slow = await asyncio.wait_for(held, 30)
        health = (await served.http.get("/readyz")).json()
        await producer.close()
    assert fast.status is Status.OK
    result = codec.decode(Result, fast.body)
    assert (result.id, result.value, result.scorer) == ("a", 4.0, "echo")
    assert codec.decode(Result, slow.body).value == 0.0
    assert health == {"status": "ready", "queue": "connected"}


async def test_every_operation_travels_by_queue(serve: Any, scorers: ModuleType, redis_url: str) -> None:
    update = UpdateRequest.model_validate(
        {"request_id": "u", "order": "after", "samples": [{"outcome": 1.0}]}
    )
    generate = GenerateRequest.model_validate({"samples": [{"prompt": "hi"}], "sampling": {"n": 2}})
    async with serve(scorers.Tally(scorers.EchoSettings()), queue=redis_url, queue_name="t"):
        producer = Producer(redis_url, "t")
        early = await ask(producer, "versions", b"")
        updated = await ask(producer, "update", codec.encode(update))
        versions = await ask(producer, "versions", b"")
        info = await ask(producer, "info", b"")
        lacking = await ask(producer, "generate", codec.encode(generate))
        await producer.close()
    async with serve(scorers.Parrot(scorers.EchoSettings()), queue=redis_url, queue_name="p"):
        producer = Producer(redis_url, "p")
        generated = await ask(producer, "generate", codec.encode(generate))
        await producer.close()
    assert (early.status, early.reason) == (Status.UNAVAILABLE, "nothing was learned yet")
    assert codec.decode(UpdateResponse, updated.body).version_after == 1
    assert codec.decode(VersionsResponse, versions.body).current == 1
    assert codec.decode(ServiceInfo, info.body).operations == ["score", "update"]
    assert (lacking.status, lacking.body) == (Status.INVALID_INPUT, b"")
    assert "generate" in lacking.reason
    assert len(codec.decode(GenerateResult, generated.body).rollouts) == 2


async def test_a_wrong_entry_gets_an_answer_that_says_so(
    serve: Any, scorers: ModuleType, redis_url: str
) -> None:
    two = codec.encode(ScoreRequest.model_validate({"samples": [{"response": "1"}, {"response": "2"}]}))
    nameless = reward_pb2.ScoreRequest(samples=[reward_pb2.Sample(id="a", metadata="{")]).SerializeToString()
    async with serve(scorers.Echo(scorers.EchoSettings()), queue=redis_url) as served:
        producer = Producer(redis_url, "echo")
        bodies = [b"\xff\xff", two, score("1", options={"scal": 2}), nameless, score("poison")]
        replies = [await ask(producer, "score", body) for body in bodies]
        text = (await served.http.get("/metrics")).text
        await producer.close()
    assert {reply.status for reply in replies} == {Status.OK}
    results = [codec.decode(Result, reply.body) for reply in replies]
    assert [one.status for one in results] == [Status.INVALID_INPUT] * 4 + [Status.INTERNAL_ERROR]
    for one, words in zip(
        results, ["protobuf", "exactly one", "did you mean", "metadata", "poison"], strict=True
    ):
        assert words in one.reason
    assert 'guerdon_worker_entries_total{status="invalid_input"} 4.0' in text


async def test_a_field_of_a_newer_client_is_never_passed_over(
    serve: Any, scorers: ModuleType, redis_url: str
) -> None:
    # Field 1999, a number, in the request or in its sample: scored without it, the reward might mean something else.
    unknown = b"\xf8\x7c\x01"
    sample = reward_pb2.Sample(id="a", response="1").SerializeToString() + unknown
    nested = reward_pb2.ScoreRequest(samples=[reward_pb2.Sample.FromString(sample)]).SerializeToString()
    async with serve(scorers.Echo(scorers.EchoSettings()), queue=redis_url):
        producer = Producer(redis_url, "echo")
        replies = [await ask(producer, "score", body) for body in (score("1") + unknown, nested)]
        await producer.close()
    results = [codec.decode(Result, reply.body) for reply in replies]
    assert [(one.status, one.value) for one in results] == [(Status.INVALID_INPUT, None)] * 2
    assert results[0].reason.startswith("field 1999 is not known to this release")
    assert results[1].reason.startswith("samples.0.field 1999 is not known to this release")


async def test_an_answer_that_cannot_be_written_is_not_the_callers_fault(
    serve: Any, scorers: ModuleType, redis_url: str
) -> None:
    async with serve(scorers.Echo(scorers.EchoSettings()), queue=redis_url):
        producer = Producer(redis_url, "echo")
        reply = await ask(producer, "score", score("unwritable"))
        await producer.close()
    assert (reply.status, reply.body) == (Status.INTERNAL_ERROR, b"")
    assert "results" not in reply.reason
    assert "float32" in reply.reason


async def test_an_expired_entry_is_not_run(
    serve: Any, scorers: ModuleType, redis_url: str, until: Any
) -> None:
    service = scorers.Echo(scorers.EchoSettings(max_items=1))
    async with serve(service, queue=redis_url):
        producer = Producer(redis_url, "echo")
        held = await producer.submit("score", score("hold"))
        await until(service.held.is_set)
        late = await producer.submit("score", score("1"), deadline_s=0.2)
        reply = await asyncio.wait_for(late, 30)

        async def answered() -> bool:
            # The client's own clock may be a little ahead of the worker's.
            seen = await stats(redis_url, "echo")
            return seen.queued + seen.pending == 1

        await until(answered)
        service.gate.set()
        await asyncio.wait_for(held, 30)
        await producer.close()
    assert reply.status is Status.TIMEOUT or codec.decode(Result, reply.body).status is Status.TIMEOUT
    assert service.batches == [["hold"]]


async def test_a_deadline_is_kept_by_the_clock_that_set_it(
    serve: Any, scorers: ModuleType, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(scorers.Echo(scorers.EchoSettings()), queue=redis_url):
        producer = Producer(redis_url, "echo")
        right = time.time
        monkeypatch.setattr(time, "time", lambda: right() + 3600)
        reply = await ask(producer, "score", score("2"), deadline_s=60)
        monkeypatch.undo()
        await producer.close()
    assert codec.decode(Result, reply.body).value == 2.0


async def test_draining_finishes_what_started_and_hands_back_the_rest(
    serve: Any, scorers: ModuleType, redis_url: str, until: Any
) -> None:
    first = scorers.Echo(scorers.EchoSettings(max_items=1))
    producer = Producer(redis_url, "echo")
    async with serve(first, queue=redis_url) as served:
        started = await producer.submit("score", score("hold"))
        await until(first.held.is_set)
        waiting = [await producer.submit("score", score(str(number))) for number in range(5)]
        await until(lambda: served.process.dispatcher.waiting > 0)
        draining = asyncio.ensure_future(served.process.drain())
        await until(lambda: served.process.dispatcher.waiting == 0)
        first.gate.set()
        assert await draining
        assert codec.decode(Result, (await asyncio.wait_for(started, 30)).body).value == 0.0
    assert first.batches == [["hold"]]
    assert (await stats(redis_url, "echo")).queued + (await stats(redis_url, "echo")).pending == 5
    async with serve(scorers.Echo(scorers.EchoSettings()), queue=redis_url):
        replies = await asyncio.wait_for(asyncio.gather(*waiting), 30)
    await producer.close()
    assert [codec.decode(Result, reply.body).value for reply in replies] == [0.0, 1.0, 2.0, 3.0, 4.0]


async def test_work_left_when_draining_ends_comes_again(
    serve: Any, scorers: ModuleType, redis_url: str, until: Any
) -> None:
    first = scorers.Echo(scorers.EchoSettings(max_items=1))
    producer = Producer(redis_url, "echo")
    async with serve(first, queue=redis_url, drain_s=0.1) as served:
        started = await producer.submit("score", score("hold"))
        await until(first.held.is_set)
        over_http = asyncio.ensure_future(
            served.http.post("/v1/score", json={"samples": [{"response": "1"}]})
        )
        await until(lambda: served.process.dispatcher.waiting == 1)
        assert not await served.process.drain()
        answer = (await over_http).json()
        first.gate.set()
    assert not started.done()
    second = scorers.Echo(scorers.EchoSettings())
    second.gate.set()
    async with serve(second, queue=redis_url):
        reply = await asyncio.wait_for(started, 30)
    await producer.close()
    assert codec.decode(Result, reply.body).value == 0.0
    assert answer["results"][0]["status"] == "unavailable"


async def test_a_service_is_ready_without_redis(serve: Any, scorers: ModuleType) -> None:
    began = time.monotonic()
    async with serve(scorers.Echo(scorers.EchoSettings()), queue="redis://127.0.0.1:1/0") as served:
        health = await served.http.get("/readyz")
        answer = await served.http.post("/v1/score", json={"samples": [{"response": "1"}]})
    assert (health.status_code, health.json()) == (200, {"status": "ready", "queue": "connecting"})
    assert answer.json()["results"][0]["value"] == 1.0
    assert time.monotonic() - began < 30


async def test_the_worker_joins_when_redis_comes(
    serve: Any, scorers: ModuleType, redis_url: str, until: Any
) -> None:
    real = urlsplit(redis_url)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    late_url = redis_url.replace(f":{real.port}", f":{port}")
    async with serve(scorers.Echo(scorers.EchoSettings()), queue=late_url) as served:
        assert served.process.health().queue == "connecting"
        connections: list[asyncio.StreamWriter] = []

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(65536):
                writer.write(data)
            writer.close()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there_reader, there_writer = await asyncio.open_connection(real.hostname, real.port)
            connections.extend([writer, there_writer])
            await asyncio.gather(forward(reader, there_writer), forward(there_reader, writer))

        proxy = await asyncio.start_server(accept, "127.0.0.1", port)
        await until(lambda: served.process.health().queue == "connected")
        producer = Producer(redis_url, "echo")
        reply = await ask(producer, "score", score("2"))
        await producer.close()
        await served.process.drain()
    proxy.close()
    for connection in connections:
        connection.close()
    assert codec.decode(Result, reply.body).value == 2.0


async def test_all_doors_give_the_same_results(serve: Any, scorers: ModuleType, redis_url: str) -> None:
    samples: list[dict[str, Any]] = [
        {"id": "a", "response": "1.5"},
        {"response": "poison", "group": "g"},
        {"id": "c", "response": "unscorable"},
        {"id": "d", "response": "2", "metadata": {"x": [1, 1.0, None]}},
        {"id": "e", "response": "not_ready"},
    ]
    whole = ScoreRequest.model_validate({"samples": samples, "options": {"scale": 2.5, "shift": 3}})
    async with (
        serve(scorers.Echo(scorers.EchoSettings(max_items=1)), queue=redis_url) as served,
        grpc.aio.insecure_channel(served.grpc) as channel,
    ):
        over_http = (await served.http.post("/v1/score", json=whole.model_dump(exclude_unset=True))).json()
        over_grpc: Any = await reward_pb2_grpc.RewardServiceStub(channel).Score(codec.to_proto(whole))
        producer = Producer(redis_url, "echo")
        singles = [whole.model_copy(update={"samples": [sample]}) for sample in whole.samples]
        replies = [await ask(producer, "score", codec.encode(single)) for single in singles]
        await producer.close()

    def timeless(result: Result) -> Result:
        return result.model_copy(update={"queue_ms": 0.0, "exec_ms": 0.0})

    by_door = [
        [
            timeless(Result.model_validate({**one, "status": Status(one["status"])}))
            for one in over_http["results"]
        ],
        [timeless(Result.model_validate(codec.to_dict(one))) for one in over_grpc.results],
        [timeless(codec.decode(Result, reply.body)) for reply in replies],
    ]
    assert by_door[0] == by_door[1] == by_door[2]
    assert [one.value for one in by_door[0]] == [6.75, None, None, 8.0, None]
