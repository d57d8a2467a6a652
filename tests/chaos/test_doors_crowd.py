"""Many clients at once, and clients that dawdle, leave, or send too much."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from door_service import LARGE
from doors import (
    Service,
    Wire,
    Wires,
    door_service,
    need_descriptors,
    request,
    score_body,
)

from guerdon import codec
from guerdon.types import ScoreRequest
from guerdon.v1 import reward_pb2, reward_pb2_grpc
from tests.waiting import until

#: Seconds that a service waits for its slow clients here: enough for those that are held up by the machine.
SHORT_PATIENCE_S = 5.0
Figures = Callable[..., None]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service with room for everybody."""
    need_descriptors(4096)
    made = door_service(tmp_path, max_pending=100_000)
    yield made
    made.close()


@pytest.fixture
async def wires() -> AsyncIterator[Wires]:
    """Opens raw connections."""
    async with Wires() as made:
        yield made


def message(*responses: str) -> reward_pb2.ScoreRequest:
    samples = [{"response": one} for one in responses]
    proto = codec.to_proto(ScoreRequest.model_validate({"samples": samples}))
    assert isinstance(proto, reward_pb2.ScoreRequest)
    return proto


async def warm(service: Service, wires: Wires) -> None:
    """One request at each door, so that what is made once is there."""
    wire = await wires.open(service.http)
    assert (await wire.ask(request(score_body("1"))))[0] == 200
    async with grpc.aio.insecure_channel(service.grpc) as channel:
        await reward_pb2_grpc.RewardServiceStub(channel).Score(message("1"))
    wire.leave()
    await asyncio.sleep(0.2)
    service.remember()


async def test_a_crowd_of_connections_and_streams(
    service: Service, wires: Wires, full: bool, figures: Figures
) -> None:
    count, rounds = (1000, 5) if full else (100, 2)
    await warm(service, wires)
    crowd = [await wires.open(service.http) for _ in range(count)]

    async def over_http(number: int) -> int:
        right = 0
        for turn in range(rounds):
            status, body = await crowd[number].ask(request(score_body(str(number), str(turn))))
            assert status == 200, body
            right += [one["value"] for one in json.loads(body)["results"]] == [number, turn]
        return right

    async def over_grpc(stub: Any, number: int) -> int:
        right = 0
        for turn in range(rounds):
            answers = {
                one.index: one.result.value async for one in stub.ScoreStream(message(str(number), str(turn)))
            }
            right += answers == {0: number, 1: turn}
        return right

    channels = [
        grpc.aio.insecure_channel(service.grpc, [("grpc.use_local_subchannel_pool", 1)]) for _ in range(10)
    ]
    stubs = [reward_pb2_grpc.RewardServiceStub(channel) for channel in channels]
    streams = [over_grpc(stubs[number % len(stubs)], number) for number in range(count)]
    right = sum(await asyncio.gather(*map(over_http, range(count)), *streams))
    for wire in crowd:
        wire.leave()
    for channel in channels:
        await channel.close()
    assert right == 2 * count * rounds
    await asyncio.to_thread(until, lambda: service.forgot_its_clients)
    figures(
        connections=count, streams=count, requests=2 * count * rounds, grown_mb=round(service.grown_mb, 1)
    )
    assert service.terminate() == 0


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Service]:
    """A service that waits less for its clients than others do."""
    need_descriptors(4096)
    made = door_service(tmp_path, client_patience_s=SHORT_PATIENCE_S)
    yield made
    made.close()


async def test_slow_clients_hold_up_nobody(
    impatient: Service, wires: Wires, full: bool, figures: Figures
) -> None:
    service, count, reading = impatient, 250 if full else 12, 50 if full else 4
    await warm(service, wires)

    async def begin(data: bytes) -> Wire:
        wire = await wires.open(service.http)
        wire.writer.write(data)
        return wire

    for _ in range(reading):
        # Answers that are larger than what sockets hold.
        reader = await begin(request(score_body(*["large"] * 8)))
        reader.writer.transport.pause_reading()  # pyright: ignore[reportAttributeAccessIssue]
    heads = [await begin(b"POST /v1/score HTTP/1.1\r\nHost: x\r\nX-Slow") for _ in range(count)]
    bodies = [await begin(request(b"x" * 500)[:-400]) for _ in range(count)]
    silent = [await begin(b"") for _ in range(count)]
    healthy = await begin(b"")
    for number in range(20):
        status, body = await healthy.ask(request(score_body(str(number))))
        assert (status, json.loads(body)["results"][0]["value"]) == (200, number)
    assert [status for status, _ in await asyncio.gather(*(one.answer() for one in heads))] == [408] * count
    answers = await asyncio.gather(*(one.answer() for one in bodies))
    assert {(status, b"only 100 bytes came in time" in body) for status, body in answers} == {(408, True)}
    assert set(await asyncio.gather(*(one.ended() for one in silent))) == {b""}
    slow = 'guerdon_requests_total{door="http",operation="%s",outcome="slow"}'
    for operation in ("other", "score"):
        name = slow % operation
        await asyncio.to_thread(until, lambda name=name: service.counter(name) == count)
    wires.leave()
    await asyncio.to_thread(until, lambda: service.forgot_its_clients)
    figures(slow_heads=count, slow_bodies=count, silent=count, slow_readers=reading, unread=8 * LARGE)
    assert service.terminate() == 0


async def test_clients_that_leave_free_their_places(
    service: Service, wires: Wires, full: bool, figures: Figures
) -> None:
    count = 500 if full else 20
    await warm(service, wires)
    done = len(service.executed)
    patient = await wires.open(service.http)
    patient.writer.write(request(score_body("gate", id="patient")))
    # Nothing else runs while the gate is shut.
    await asyncio.to_thread(until, lambda: service.counter("guerdon_inflight_batches") == 1)
    crowd = [await wires.open(service.http) for _ in range(count)]
    for wire in crowd:
        wire.writer.write(request(score_body("1", "2", id="impatient")))
    channel = grpc.aio.insecure_channel(service.grpc)
    stub = reward_pb2_grpc.RewardServiceStub(channel)
    calls: list[Any] = [stub.Score(message("1", "2")) for _ in range(count)]
    calls += [stub.ScoreStream(message("1", "2")) for _ in range(count)]
    await asyncio.to_thread(until, lambda: service.counter("guerdon_pending_items") == 6 * count)
    for wire in crowd:
        wire.leave()
    for call in calls:
        call.cancel()
    await asyncio.to_thread(until, lambda: service.counter("guerdon_pending_items") == 0)
    await asyncio.to_thread(until, lambda: service.counter("guerdon_cancelled_items_total") == 6 * count)
    for door, times in (("http", 1), ("grpc", 2)):
        name = f'guerdon_requests_total{{door="{door}",operation="score",outcome="cancelled"}}'
        await asyncio.to_thread(until, lambda name=name, times=times: service.counter(name) == times * count)
    service.open_gate()
    status, _ = await patient.answer()
    assert status == 200
    assert service.executed[done:] == ["patient"]
    patient.leave()
    await channel.close()
    await asyncio.to_thread(until, lambda: service.forgot_its_clients)
    figures(left_http=count, left_grpc=2 * count, executed_for_nobody=0)
    assert service.terminate() == 0


HEADS = {
    "one header": [b"POST /v1/score HTTP/1.1\r\nX: ", b"y" * 1_000_000],
    "many headers": [b"POST /v1/score HTTP/1.1\r\n", b"X: y\r\n" * 200_000],
    "a long path": [b"GET /", b"y" * 1_000_000],
    "trailers": [
        b"POST /v1/score HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
        b"X: y\r\n" * 200_000,
    ],
    "an extension of a chunk": [
        b"POST /v1/score HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;",
        b"x" * 1_000_000,
    ],
}


@pytest.mark.parametrize("pieces", HEADS.values(), ids=HEADS.keys())
async def test_a_head_has_a_size(crowded: Service, wires: Wires, pieces: list[bytes]) -> None:
    wire = await wires.open(crowded.http)
    for piece in pieces:
        wire.writer.write(piece)
    assert (await wire.answer())[0] in (431, 0)
    wire.leave()
    await healthy(crowded, wires)


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for all that is too large."""
    made = door_service(tmp_path_factory.mktemp("crowded"), max_body_bytes=1_000_000)
    yield made
    assert made.terminate() == 0


async def healthy(service: Service, wires: Wires) -> None:
    wire = await wires.open(service.http)
    assert (await wire.ask(request(score_body("7"))))[0] == 200
    wire.leave()


async def test_a_body_has_a_size(crowded: Service, wires: Wires) -> None:
    declared = await wires.open(crowded.http)
    status, body = await declared.ask(
        b"POST /v1/score HTTP/1.1\r\nHost: x\r\nContent-Length: 1000001\r\n\r\n"
    )
    assert (status, b"larger than max" in body) == (413, True)
    undeclared = await wires.open(crowded.http)
    undeclared.writer.write(b"POST /v1/score HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(20):
        undeclared.writer.write(b"186A0\r\n" + b"x" * 100_000 + b"\r\n")
    assert (await undeclared.answer())[0] == 413
    for wire in (declared, undeclared):
        wire.leave()
    too_large = 'guerdon_requests_total{door="http",operation="score",outcome="too_large"}'
    await asyncio.to_thread(until, lambda: crowded.counter(too_large) >= 2)
    await healthy(crowded, wires)


async def test_a_message_and_its_metadata_have_a_size(crowded: Service) -> None:
    async with grpc.aio.insecure_channel(crowded.grpc) as channel:
        stub = reward_pb2_grpc.RewardServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as body:
            await stub.Score(message("x" * 1_000_001))
        with pytest.raises(grpc.aio.AioRpcError) as metadata:
            await stub.Score(message("1"), metadata=(("x-long", "y" * 100_000),))
        assert (await stub.Score(message("7"))).results[0].value == 7
    assert body.value.code() is metadata.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in (body.value.details() or "")
