"""AsyncClient and Client: the same behaviour through every door, over real sockets."""

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc.aio
import pytest

from guerdon import codec
from guerdon.client import AsyncClient, Client
from guerdon.errors import InternalError, InvalidRequest, Timeout, Unavailable
from guerdon.queue import Consumer, Reply
from guerdon.testing import Failure, StubService
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

HANG = 20.0
SAMPLES = [Sample(id=f"s{i}", response=text) for i, text in enumerate(["4", "5", "boom", "4"])]


def judge(sample: Sample) -> Result | float:
    """Right answers are "4"; "slow" takes longer than any test waits; some samples make it fail."""
    if sample.response == "boom":
        raise RuntimeError("judge broke")
    if sample.response == "slow":
        time.sleep(0.5)
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


async def collect(stream: AsyncIterator[tuple[int, Result]], came: list[int]) -> None:
    async for index, _ in stream:
        came.append(index)


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


async def test_updates_versions_and_info(connect: Connect, stub: StubService) -> None:
    client = connect()
    request = UpdateRequest(request_id="u1", samples=[Sample(response="4", outcome=1.0)], order="after")
    assert (await client.update(request)).version_after == 1
    assert await client.update(request) == learn(request)
    assert await client.versions() == VersionsResponse(current=1)
    assert await client.info() == stub.info()
    assert 0 < await client.ping() < HANG


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
    client, slow = connect(retries=0), [Sample(response="slow")]
    begun = time.monotonic()
    try:
        results = await client.score(slow, timeout_s=0.2)
    except Timeout:
        results = []
    # A queue answers per item, the others for the whole request.
    assert [result.status for result in results] in ([], [Status.TIMEOUT])
    assert time.monotonic() - begun < 0.5
    with contextlib.suppress(Timeout):
        assert [one.status async for _, one in client.score_stream(slow, timeout_s=0.2)] == [Status.TIMEOUT]


async def test_a_cancelled_call_leaves_the_client_usable(connect: Connect) -> None:
    client = connect()
    call = asyncio.create_task(client.score([Sample(response="slow")]))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await client.score(SAMPLES))[0].value == 1.0


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "grpc://127.0.0.1:1", "redis://127.0.0.1:1/0"])
async def test_a_service_that_cannot_be_reached(url: str) -> None:
    async with AsyncClient(url, service="stub", retries=0, timeout_s=1.0) as client:
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
        ("redis://127.0.0.1:6379/0", "service: "),
    ],
)
def test_an_unusable_url_is_refused_at_once(url: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        AsyncClient(url)


# The blocking client ------------------------------------------------------------------------------------


def test_the_blocking_client_does_what_the_other_does(stub: StubService) -> None:
    with Client(stub.url) as client:
        assert [result.value for result in client.score(SAMPLES)] == [1.0, 0.0, None, 1.0]
        assert {index for index, _ in client.score_stream(SAMPLES)} == {0, 1, 2, 3}
        prompts, sampling = [GenerateSample(prompt="a")], Sampling(n=2)
        assert client.generate(prompts, sampling)[0].rollouts[1].response == "a!"
        assert [index for index, _ in client.generate_stream(prompts, sampling)] == [0]
        request = UpdateRequest(request_id="u", samples=[], order="before")
        assert client.update(request) == learn(request)
        assert client.versions().current == 1
        assert client.info() == stub.info()
        assert client.ping() > 0


def test_a_blocking_stream_may_be_left_early(stub: StubService) -> None:
    with Client(stub.url) as client:
        for _ in client.score_stream(SAMPLES):
            break
        assert len(client.score(SAMPLES)) == 4


def test_a_blocking_stream_raises_what_broke_it(stub: StubService) -> None:
    stub.fail_next(Failure(drop_after_items=2))
    came: list[int] = []
    with Client(stub.url) as client:
        with pytest.raises(Unavailable):
            came.extend(index for index, _ in client.score_stream(SAMPLES))
        assert came == [0, 1]
        assert [index for index, _ in client.score_stream(SAMPLES)] == [0, 1, 2, 3]


def test_threads_share_a_blocking_client(stub: StubService) -> None:
    barrier = threading.Barrier(4)

    def score(number: int) -> list[float | None]:
        barrier.wait(HANG)
        return [result.value for result in client.score([Sample(response=str(number))])]

    with Client(stub.url) as client, ThreadPoolExecutor(4) as threads:
        assert list(threads.map(score, range(3, 7))) == [[0.0], [1.0], [0.0], [0.0]]


def test_a_blocking_client_that_nobody_closed_does_not_keep_the_process(stub: StubService) -> None:
    program = (
        "from guerdon import Client, Sample\n"
        f"client = Client({stub.url!r})\n"
        "print(client.score([Sample(response='4')])[0].value)\n"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == "1.0\n"


async def test_the_blocking_client_works_inside_a_running_loop(stub: StubService) -> None:
    # Notebooks and some trainers call reward functions from one.
    with Client(stub.url) as client:
        assert client.score(SAMPLES)[0].value == 1.0


# Answers that must not pass -----------------------------------------------------------------------------


def lying(results: list[Result]) -> Failure:
    return Failure(body=ScoreResponse(results=results).model_dump_json().encode())


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (lying([Result(status=Status.OK, value=1.0)]), "4 samples were answered by 1 results"),
        (
            lying([Result(id=f"s{i}", status=Status.OK, value=1.0) for i in (1, 0, 2, 3)]),
            "sample 0 has id 's0'",
        ),
        (Failure(body=b"<html>hello</html>"), "the answer is no ScoreResponse"),
        (Failure(body=b'{"results": [{"status": "ok"}]}'), "results.0"),
        (Failure(body=b'{"results": [{"status": "timeout", "value": 0.0}]}'), "results.0"),
        (Failure(body=b'{"results": [{"status": "ok", "value": NaN}]}'), "results.0.value"),
        (Failure(body=b""), "the answer is no ScoreResponse"),
    ],
)
async def test_an_answer_that_makes_no_sense_is_an_internal_error(
    stub: StubService, failure: Failure, message: str
) -> None:
    stub.fail_next(failure)
    async with AsyncClient(stub.url, retries=0) as client:
        with pytest.raises(InternalError, match=message):
            await client.score(SAMPLES)


def line(index: int, id: str = "s0") -> bytes:
    item = IndexedResult(index=index, result=Result(id=id, status=Status.OK, value=1.0))
    return item.model_dump_json().encode() + b"\n"


@pytest.mark.parametrize(
    ("body", "message", "before"),
    [
        (line(0), "without 3 results", [0]),
        (line(0) + line(0), "sample 0, which was not awaited", [0]),
        (line(9), "sample 9, which was not awaited", []),
        (line(-1), "sample -1, which was not awaited", []),
        (line(1), "sample 1 has id 's1'", []),
        (line(0) + b"garbage\n", "a line is no IndexedResult", [0]),
        (line(0) + line(1, "s1")[:-20], "a line is no IndexedResult", [0]),
        (b"", "without 4 results", []),
        (
            line(0) + b'{"problem": {"title": "broke", "status": 500, "detail": "it broke"}}\n',
            "it broke",
            [0],
        ),
    ],
)
async def test_a_stream_that_makes_no_sense_ends_in_an_internal_error(
    stub: StubService, body: bytes, message: str, before: list[int]
) -> None:
    stub.fail_next(Failure(body=body))
    came: list[int] = []
    async with AsyncClient(stub.url, retries=0) as client:
        with pytest.raises(InternalError, match=message):
            await collect(client.score_stream(SAMPLES), came)
    assert came == before
