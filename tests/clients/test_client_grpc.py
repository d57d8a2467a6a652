"""How gRPC failures become exceptions: real servers whose methods see and give raw bytes."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from guerdon import codec, errors
from guerdon.client import AsyncClient
from guerdon.types import IndexedResult, Result, Sample, ScoreResponse, Status
from tests.proxies import proxy

SAMPLES = [Sample(id=f"s{i}", response="4") for i in range(4)]
RIGHT = Result(status=Status.OK, value=1.0)


async def collect(stream: AsyncIterator[tuple[int, Result]], came: list[int]) -> None:
    async for index, _ in stream:
        came.append(index)


Handler = Callable[[bytes, Any], Awaitable[bytes]]
StreamHandler = Callable[[bytes, Any], AsyncIterator[bytes]]


@contextlib.asynccontextmanager
async def grpc_server(
    score: Handler | None = None, stream: StreamHandler | None = None, *, port: int = 0
) -> AsyncGenerator[str, None]:
    """A server whose methods see and give raw bytes."""
    methods: dict[str, Any] = {}
    if score:
        methods["Score"] = grpc.unary_unary_rpc_method_handler(score)  # type: ignore[arg-type]
    if stream:
        methods["ScoreStream"] = grpc.unary_stream_rpc_method_handler(stream)  # type: ignore[arg-type]
    server = grpc.aio.server()
    handler = grpc.method_handlers_generic_handler("guerdon.v1.RewardService", methods)
    server.add_generic_rpc_handlers((handler,))
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"grpc://127.0.0.1:{bound}"
    finally:
        await server.stop(0)


def aborting(code: grpc.StatusCode, details: str, *metadata: tuple[str, str]) -> Handler:
    async def score(body: bytes, context: Any) -> bytes:
        await context.abort(code, details, metadata)
        return b""

    return score


async def right(body: bytes, context: Any) -> bytes:
    return codec.encode(ScoreResponse(results=[RIGHT] * 4))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, errors.InvalidRequest),
        (grpc.StatusCode.UNAUTHENTICATED, errors.Unauthorized),
        (grpc.StatusCode.PERMISSION_DENIED, errors.Unauthorized),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.Overloaded),
        (grpc.StatusCode.UNAVAILABLE, errors.Unavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.Timeout),
        (grpc.StatusCode.INTERNAL, errors.InternalError),
        (grpc.StatusCode.UNKNOWN, errors.InternalError),
        (grpc.StatusCode.DATA_LOSS, errors.InternalError),
    ],
)
async def test_grpc_codes(code: grpc.StatusCode, kind: type[errors.GuerdonError]) -> None:
    async with (
        grpc_server(aborting(code, "options.beta: must be a number")) as url,
        AsyncClient(url, retries=0) as client,
    ):
        with pytest.raises(errors.GuerdonError, match=r"options\.beta: must be a number") as caught:
            await client.score(SAMPLES)
    assert type(caught.value) is kind


async def test_an_operation_that_the_service_lacks_is_named() -> None:
    async with grpc_server(right) as url, AsyncClient(url) as client:
        with pytest.raises(errors.InvalidRequest, match="has no operation 'versions'"):
            await client.versions()


async def test_grpc_overload_says_how_long_to_wait() -> None:
    overloaded = aborting(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy", ("retry-after", "70"))
    async with grpc_server(overloaded) as url, AsyncClient(url, timeout_s=60.0) as client:
        with pytest.raises(errors.Overloaded) as caught:
            await client.score(SAMPLES)
    assert caught.value.retry_after_s == 70.0


async def test_a_message_over_grpcs_limit_is_too_large() -> None:
    # This server keeps gRPC's own limit of 4 MiB.
    async with grpc_server(right) as url, AsyncClient(url, retries=0) as client:
        with pytest.raises(errors.TooLarge):
            await client.score([Sample(response="x" * 5_000_000)])


async def test_answers_past_grpcs_default_limit_arrive() -> None:
    long = Result(status=Status.OK, value=1.0, reason="x" * 8_000_000)

    async def score(body: bytes, context: Any) -> bytes:
        return codec.encode(ScoreResponse(results=[long]))

    async with grpc_server(score) as url, AsyncClient(url, retries=0) as client:
        assert await client.score([Sample()]) == [long]


async def test_token_and_deadline_reach_a_grpc_service() -> None:
    seen: dict[str, Any] = {}

    async def score(body: bytes, context: Any) -> bytes:
        seen.update(dict(context.invocation_metadata()), left=context.time_remaining())
        return await right(body, context)

    async with grpc_server(score) as url, AsyncClient(url, token="secret", timeout_s=33.0) as client:
        await client.score(SAMPLES)
    assert seen["authorization"] == "Bearer secret"
    # On the wire gRPC rounds a time limit up, here to tenths of a second.
    assert 0 < seen["left"] < 34.0


async def test_grpc_garbage_is_an_internal_error() -> None:
    async def garbage(body: bytes, context: Any) -> bytes:
        return b"\xff\xff\xff"

    async def dishonest(body: bytes, context: Any) -> AsyncIterator[bytes]:
        yield codec.encode(IndexedResult(index=1, result=RIGHT))
        yield b"\x12\x02\x10\x01"  # a result that is ok and has no value

    async with grpc_server(garbage, dishonest) as url, AsyncClient(url, retries=0) as client:
        with pytest.raises(errors.InternalError, match="the answer is no ScoreResponse"):
            await client.score(SAMPLES)
        came: list[int] = []
        with pytest.raises(errors.InternalError, match="result: "):
            await collect(client.score_stream(SAMPLES), came)
    assert came == [1]


async def test_a_grpc_stream_that_breaks_raises_after_what_came() -> None:
    async def breaking(body: bytes, context: Any) -> AsyncIterator[bytes]:
        yield codec.encode(IndexedResult(index=2, result=RIGHT))
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the service is stopping")

    async with grpc_server(stream=breaking) as url, AsyncClient(url) as client:
        came: list[int] = []
        with pytest.raises(errors.Unavailable, match="the service is stopping"):
            await collect(client.score_stream(SAMPLES), came)
    assert came == [2]


async def test_a_grpc_service_that_is_slow_to_greet_is_not_gone() -> None:
    async with (
        grpc_server(right) as url,
        proxy("127.0.0.1", int(url.rpartition(":")[2]), delay_s=0.5) as port,
        AsyncClient(f"grpc://localhost:{port}", retries=0) as client,
    ):
        assert len(await client.score(SAMPLES)) == 4


async def test_a_grpc_service_that_comes_back_is_found_again() -> None:
    async with grpc_server(right) as url:
        client = AsyncClient(url, retries=50)
        assert len(await client.score(SAMPLES)) == 4
    waiting = asyncio.create_task(client.score(SAMPLES))
    async with grpc_server(right, port=int(url.rpartition(":")[2])):
        assert len(await waiting) == 4
        await client.aclose()
