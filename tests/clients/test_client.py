"""AsyncClient and Client: the same behaviour through every door, over real sockets."""

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import Any

import grpc.aio
import pytest

from guerdon import codec
from guerdon.client import AsyncClient
from guerdon.errors import InvalidRequest, Timeout, Unavailable
from guerdon.queue import Consumer, Reply
from guerdon.testing import StubService
from guerdon.types import (
    ChatMessage,
    GenerateRequest,
    GenerateResponse,
    GenerateResult,
    GenerateSample,
    IndexedGeneration,
    IndexedResult,
    Message,
    Result,
    Rollout,
    RolloutPiece,
    Sample,
    Sampling,
    ScoreRequest,
    ScoreResponse,
    Status,
    UpdateRequest,
    UpdateResponse,
    VersionsResponse,
)
from guerdon.v1 import reward_pb2_grpc, rollout_pb2_grpc, update_pb2_grpc
from tests.waiting import PATIENCE_S

SAMPLES = [Sample(id=f"s{i}", response=text) for i, text in enumerate(["4", "5", "boom", "4"])]


#: What "held" waits for.
released = threading.Event()


def judge(sample: Sample) -> Result | float:
    """Right answers are "4"; "slow" takes a while, and "held" as long as a test wants; some samples make it fail."""
    if sample.response == "boom":
        raise RuntimeError("judge broke")
    if sample.response == "slow":
        time.sleep(0.5)
    if sample.response == "held":
        released.wait(PATIENCE_S)
    if sample.response is None:
        return Result(status=Status.INVALID_INPUT, reason="response: missing")
    return 1.0 if sample.response == "4" else 0.0


def continue_(sample: GenerateSample, sampling: Sampling) -> GenerateResult:
    rollout = Rollout(
        response=f"{sample.prompt}!",
        token_ids=[1, 2],
        logprobs=[-0.5, -0.25],
        finish_reason="stop",
        model_version=7,
    )
    return GenerateResult(status=Status.OK, rollouts=[rollout] * sampling.n)


def learn(request: UpdateRequest) -> UpdateResponse:
    return UpdateResponse(request_id=request.request_id, status=Status.OK, version_before=0, version_after=1)


class Rewards(reward_pb2_grpc.RewardServiceServicer):
    """The stub's functions behind gRPC."""

    def __init__(self, stub: StubService) -> None:
        self.stub = stub

    async def Score(self, request: Any, context: Any) -> Any:
        parsed = codec.from_proto(request)
        assert isinstance(parsed, ScoreRequest)
        self.stub.requests.append(parsed)
        results = [await asyncio.to_thread(self.stub.score_one, sample) for sample in parsed.samples]
        return codec.to_proto(ScoreResponse(results=results))

    async def ScoreStream(self, request: Any, context: Any) -> AsyncIterator[Any]:
        parsed = codec.from_proto(request)
        assert isinstance(parsed, ScoreRequest)
        for index in reversed(range(len(parsed.samples))):
            result = await asyncio.to_thread(self.stub.score_one, parsed.samples[index])
            yield codec.to_proto(IndexedResult(index=index, result=result))

    async def Info(self, request: Any, context: Any) -> Any:
        return codec.to_proto(self.stub.info())


class Rollouts(rollout_pb2_grpc.RolloutServiceServicer):
    def __init__(self, stub: StubService) -> None:
        self.stub = stub

    async def Generate(self, request: Any, context: Any) -> Any:
        parsed = codec.from_proto(request)
        assert isinstance(parsed, GenerateRequest)
        results = [self.stub.generate_one(sample, parsed.sampling) for sample in parsed.samples]
        return codec.to_proto(GenerateResponse(results=results))

    async def GenerateStream(self, request: Any, context: Any) -> AsyncIterator[Any]:
        parsed = codec.from_proto(request)
        assert isinstance(parsed, GenerateRequest)
        for index, sample in enumerate(parsed.samples):
            result = self.stub.generate_one(sample, parsed.sampling)
            for number, rollout in enumerate(result.rollouts if parsed.each_rollout else ()):
                piece = RolloutPiece(number=number, rollout=rollout)
                yield codec.to_proto(IndexedGeneration(index=index, piece=piece))
            yield codec.to_proto(IndexedGeneration(index=index, result=result))


class Updates(update_pb2_grpc.UpdateServiceServicer):
    def __init__(self, stub: StubService) -> None:
        self.stub = stub

    async def Update(self, request: Any, context: Any) -> Any:
        parsed = codec.from_proto(request)
        assert isinstance(parsed, UpdateRequest)
        return codec.to_proto(self.stub.update_once(parsed))

    async def Versions(self, request: Any, context: Any) -> Any:
        return codec.to_proto(VersionsResponse(current=self.stub.version))


@contextlib.asynccontextmanager
async def grpc_door(stub: StubService) -> AsyncGenerator[str, None]:
    server = grpc.aio.server()
    reward_pb2_grpc.add_RewardServiceServicer_to_server(Rewards(stub), server)
    rollout_pb2_grpc.add_RolloutServiceServicer_to_server(Rollouts(stub), server)
    update_pb2_grpc.add_UpdateServiceServicer_to_server(Updates(stub), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        await server.stop(0)


@contextlib.asynccontextmanager
async def queue_door(stub: StubService, url: str) -> AsyncGenerator[str, None]:
    """A worker of the service "stub"."""
    consumer = Consumer(url, "stub")
    await consumer.start()
    stopping = asyncio.Event()

    def answer(op: str, body: bytes) -> Message:
        match op:
            case "score":
                request = codec.decode(ScoreRequest, body)
                stub.requests.append(request)
                return stub.score_one(request.samples[0])
            case "generate":
                generate = codec.decode(GenerateRequest, body)
                return stub.generate_one(generate.samples[0], generate.sampling)
            case "update":
                return stub.update_once(codec.decode(UpdateRequest, body))
            case "versions":
                return VersionsResponse(current=stub.version)
            case _:
                return stub.info()

    async def work() -> None:
        while not stopping.is_set():
            for entry in await consumer.take(8):
                message = await asyncio.to_thread(answer, entry.op, entry.body)
                reply = Reply(entry.request_id, Status.OK, "", codec.encode(message))
                await consumer.complete(entry, reply)

    worker = asyncio.create_task(work())
    try:
        yield url
    finally:
        stopping.set()
        await worker
        await consumer.close()


Connect = Callable[..., AsyncClient]


@pytest.fixture
def stub() -> Iterator[StubService]:
    with StubService(judge, generate=continue_, update=learn) as service:
        yield service


@pytest.fixture(params=["http", "grpc", "queue"])
async def connect(request: pytest.FixtureRequest, stub: StubService) -> AsyncGenerator[Connect, None]:
    """Makes clients of one service, through each door in turn."""
    clients: list[AsyncClient] = []

    def client(**settings: Any) -> AsyncClient:
        clients.append(AsyncClient(url, service="stub", **settings))
        return clients[-1]

    async with contextlib.AsyncExitStack() as stack:
        match request.param:
            case "http":
                url = stub.url
            case "grpc":
                url = await stack.enter_async_context(grpc_door(stub))
            case _:
                redis_url = request.getfixturevalue("redis_url")
                url = await stack.enter_async_context(queue_door(stub, redis_url))
        yield client
        for one in clients:
            await one.aclose()


async def test_results_come_in_order_and_a_failure_is_no_reward(connect: Connect) -> None:
    results = await connect().score(SAMPLES)
    assert [result.id for result in results] == ["s0", "s1", "s2", "s3"]
    assert [result.value for result in results] == [1.0, 0.0, None, 1.0]
    assert results[2].status is Status.INTERNAL_ERROR
    assert "judge broke" in results[2].reason


async def test_every_door_carries_the_whole_request(connect: Connect, stub: StubService) -> None:
    sample = Sample(
        id="a",
        prompt=[ChatMessage(role="user", content="h\u2028i \N{SNOWMAN}\n\x00")],
        response="4",
        response_token_ids=[0, 2**31 - 1],
        references=["4", ""],
        outcome=1.0,
        group="g",
        metadata={"n": 2**70, "null": None},
    )
    options = {"extraction": "last_box", "n": 3, "beta": 0.5, "deep": {"list": [1, None, True]}}
    await connect().score([sample], options=options, min_version=4)
    assert stub.requests == [ScoreRequest(samples=[sample], options=options, min_version=4)]


async def test_a_stream_yields_each_item_once(connect: Connect) -> None:
    streamed = {index: result async for index, result in connect().score_stream(SAMPLES)}
    assert sorted(streamed) == [0, 1, 2, 3]
    assert [streamed[index].value for index in range(4)] == [1.0, 0.0, None, 1.0]


async def test_a_stream_may_be_left_early(connect: Connect) -> None:
    client = connect()
    stream = client.score_stream(SAMPLES)
    await anext(stream)
    await stream.aclose()
    assert len(await client.score(SAMPLES)) == 4


async def test_no_samples_give_no_results(connect: Connect) -> None:
    client = connect()
    assert await client.score([]) == []
    assert [item async for item in client.score_stream([])] == []


async def test_generation(connect: Connect) -> None:
    client, sampling = connect(), Sampling(n=3, temperature=0.7)
    prompts = [GenerateSample(id="p", prompt="a"), GenerateSample(prompt="b")]
    groups = await client.generate(prompts, sampling)
    assert [[rollout.response for rollout in group.rollouts] for group in groups] == [["a!"] * 3, ["b!"] * 3]
    assert groups[0].rollouts[0].logprobs == [-0.5, -0.25]
    streamed = {index: group async for index, group in client.generate_stream(prompts, sampling)}
    assert {index: group.rollouts for index, group in streamed.items()} == {
        index: group.rollouts for index, group in enumerate(groups)
    }


async def test_each_rollout_of_a_streamed_group(connect: Connect, request: pytest.FixtureRequest) -> None:
    client, sampling = connect(), Sampling(n=3)
    prompts = [GenerateSample(id="p", prompt="a"), GenerateSample(prompt="b")]
    items = [one async for one in client.generate_stream(prompts, sampling, each_rollout=True)]
    groups = {index: item for index, item in items if isinstance(item, GenerateResult)}
    assert [groups[index].rollouts[2].response for index in (0, 1)] == ["a!", "b!"]
    pieces = [(index, item) for index, item in items if isinstance(item, RolloutPiece)]
    if request.node.callspec.params["connect"] == "queue":
        assert pieces == []  # an entry of a queue has one answer
        return
    assert [(index, piece.number) for index, piece in pieces] == list(itertools.product((0, 1), (0, 1, 2)))
    for index, piece in pieces:
        assert piece.rollout == groups[index].rollouts[piece.number]
        assert items.index((index, piece)) < items.index((index, groups[index]))


async def test_updates_versions_and_info(connect: Connect, stub: StubService) -> None:
    client = connect()
    request = UpdateRequest(request_id="u1", samples=[Sample(response="4", outcome=1.0)], order="after")
    assert (await client.update(request)).version_after == 1
    assert await client.update(request) == learn(request)
    assert await client.versions() == VersionsResponse(current=1)
    assert await client.info() == stub.info()
    assert 0 < await client.ping() < PATIENCE_S


async def test_a_sample_of_the_wrong_kind_is_named(connect: Connect) -> None:
    client = connect()
    with pytest.raises(InvalidRequest, match=r"samples\.1"):
        await client.score([Sample(), "text"])  # type: ignore[list-item]
    with pytest.raises(InvalidRequest, match="min_version"):
        await client.score([Sample()], min_version=-1)
    with pytest.raises(InvalidRequest, match=r"response|body"):
        await client.score([Sample(response="\ud800")])


async def test_many_calls_at_once_keep_their_answers(connect: Connect) -> None:
    client = connect()

    async def one(number: int) -> None:
        samples = [Sample(id=f"{number}-{i}", response="4" if (number + i) % 3 else "5") for i in range(5)]
        values = [result.value for result in await client.score(samples)]
        assert values == [float((number + i) % 3 != 0) for i in range(5)]

    await asyncio.gather(*(one(number) for number in range(20)))


async def test_the_deadline_of_a_call_is_kept(connect: Connect) -> None:
    client, held = connect(retries=0), [Sample(response="held")]
    await client.ping()  # what the first call opens takes its time
    released.clear()
    try:
        # A queue answers per item, the others for the whole request.
        with contextlib.suppress(Timeout):
            assert [one.status for one in await client.score(held, timeout_s=0.5)] == [Status.TIMEOUT]
        with contextlib.suppress(Timeout):
            streamed = client.score_stream(held, timeout_s=0.5)
            assert [one.status async for _, one in streamed] == [Status.TIMEOUT]
    finally:
        released.set()


async def test_a_cancelled_call_leaves_the_client_usable(connect: Connect) -> None:
    client = connect()
    call = asyncio.create_task(client.score([Sample(response="slow")]))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await client.score(SAMPLES))[0].value == 1.0


@pytest.mark.parametrize(
    ("url", "timeout_s"),
    # A Redis that is away is waited for.
    [("http://127.0.0.1:1", 60.0), ("grpc://127.0.0.1:1", 60.0), ("redis://127.0.0.1:1/0", 3.0)],
)
async def test_a_service_that_cannot_be_reached(url: str, timeout_s: float) -> None:
    async with AsyncClient(url, service="stub", retries=0, timeout_s=timeout_s) as client:
        with pytest.raises(Unavailable):
            await client.score(SAMPLES)
        with pytest.raises(Unavailable):
            await anext(client.score_stream(SAMPLES))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("127.0.0.1:8101", "url: "),
        ("ftp://host", "scheme 'ftp'"),
        ("http://", "no host"),
        ("http://host:port", "url: Port"),
        ("http://[::1", "url: "),
        ("http://ho\x00st", "url: "),
        ("redis://127.0.0.1:6379/0", "service: "),
    ],
)
def test_an_unusable_url_is_refused_at_once(url: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        AsyncClient(url)
