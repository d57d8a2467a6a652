"""SIGTERM under load: readiness flips first, what was begun is answered, the rest is refused cleanly."""

import asyncio
import itertools
import json
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from doors import Wires, door_service, need_descriptors, request, score_body

from guerdon import Sample
from guerdon.client import AsyncClient
from guerdon.types import Status
from guerdon.v1 import reward_pb2, reward_pb2_grpc
from tests.waiting import PATIENCE_S, until


class Books:
    """What became of every request of every client."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.answered: set[str] = set()
        self.ends: Counter[str] = Counter()
        self._numbers = itertools.count()

    def next(self, door: str) -> str:
        """The id of a new request."""
        id = f"{door}{next(self._numbers)}"
        self.sent.add(id)
        return id

    def right(self, id: str) -> None:
        """It was answered with its reward."""
        self.answered.add(id)


async def over_http(books: Books, wires: Wires, url: str) -> None:
    """One connection that asks until it is refused."""
    wire = await wires.open(url)
    while True:
        id = books.next("h")
        status, body = await wire.ask(request(score_body("sleep 0.01", id=id)))
        if status != 200:
            # 0: the connection was closed between two requests, before anything came back.
            assert status in (0, 503), body
            books.ends[f"http {status}"] += 1
            return
        [result] = json.loads(body)["results"]
        assert (result["id"], result["status"], result["value"]) == (id, "ok", 0.0), result
        books.right(id)


async def over_grpc(books: Books, stub: Any) -> None:
    """Calls, one after the other, until one is refused."""
    while True:
        id = books.next("g")
        sample = reward_pb2.Sample(id=id, response="sleep 0.01")
        try:
            answer = await stub.Score(reward_pb2.ScoreRequest(samples=[sample]))
        except grpc.aio.AioRpcError as error:
            books.ends[f"grpc {error.code().name}"] += 1
            return
        [result] = answer.results
        assert (result.id, result.status, result.value) == (id, reward_pb2.STATUS_OK, 0.0)
        books.right(id)


async def test_sigterm_under_load(
    tmp_path: Path, redis_url: str, full: bool, figures: Callable[..., None]
) -> None:
    clients, queued = (200, 3000) if full else (20, 200)
    need_descriptors(4096)
    options = {"queue": redis_url, "drain_s": PATIENCE_S}
    leaving = await asyncio.to_thread(door_service, tmp_path / "leaving", **options)
    staying = await asyncio.to_thread(door_service, tmp_path / "staying", **options)
    books = Books()
    try:
        async with (
            Wires() as wires,
            grpc.aio.insecure_channel(leaving.grpc) as channel,
            AsyncClient(redis_url, service="doors", timeout_s=PATIENCE_S) as client,
        ):
            ids = [f"q{number}" for number in range(queued)]
            everybody: list[Any] = [over_http(books, wires, leaving.http) for _ in range(clients)]
            everybody += [
                over_grpc(books, reward_pb2_grpc.RewardServiceStub(channel)) for _ in range(clients)
            ]
            samples = [Sample(id=id, response="sleep 0.005") for id in ids]
            load = [asyncio.create_task(one) for one in [*everybody, client.score(samples)]]
            await asyncio.to_thread(until, lambda: len(leaving.executed) > 3 * clients)
            leaving.process.send_signal(signal.SIGTERM)
            code = await asyncio.to_thread(leaving.process.wait, PATIENCE_S)
            *_, results = await asyncio.wait_for(asyncio.gather(*load), PATIENCE_S)
    finally:
        leaving.close()
        assert await asyncio.to_thread(staying.terminate) == 0
        staying.close()
    assert code == 0, leaving.text
    assert [(one.id, one.status) for one in results] == [(id, Status.OK) for id in ids]
    executed = Counter([*leaving.executed, *staying.executed])
    begun = {id for id in leaving.executed if not id.startswith("q")}
    assert begun == books.answered
    # gRPC's library cancels a call that comes in the moment in which the door closes; clients of ours try it again.
    assert set(books.ends) <= {"http 0", "http 503", "grpc UNAVAILABLE", "grpc CANCELLED"}
    assert sum(books.ends.values()) == 2 * clients
    twice = sum(times > 1 for times in executed.values())
    figures(
        answered=len(books.answered) + queued, refused=dict(books.ends), executed_twice=twice, exit_code=code
    )


async def test_readiness_flips_while_work_is_still_taken(tmp_path: Path) -> None:
    """A load balancer gets its time: not ready, alive, and still at work."""
    service = await asyncio.to_thread(door_service, tmp_path, drain_delay_s=600.0)
    try:
        async with Wires() as wires:
            wire = await wires.open(service.http)
            service.process.send_signal(signal.SIGTERM)
            status, body = 200, b""
            while status == 200:
                status, body = await wire.ask(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (status, json.loads(body)["status"]) == (503, "draining")
            # Each answer from now on is the last of its connection.
            assert (await wire.ask(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"))[0] == 0
            wire = await wires.open(service.http)
            assert (await wire.ask(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"))[0] == 200
            wire = await wires.open(service.http)
            status, body = await wire.ask(request(score_body("7")))
            assert (status, json.loads(body)["results"][0]["value"]) == (200, 7.0)
    finally:
        service.close()
