"""The HTTP door under too much of everything: full lines, large bodies, deadlines, clients that leave."""

import asyncio
from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any

import httpx
import pytest

PROBLEM = "application/problem+json"


def body(*responses: str, **others: Any) -> dict[str, Any]:
    return {"samples": [{"id": f"s{i}", "response": one} for i, one in enumerate(responses)], **others}


async def test_too_many_waiting_items_are_refused_whole(serve: Any, scorers: ModuleType, until: Any) -> None:
    service = scorers.Echo(scorers.EchoSettings(max_items=1))
    async with serve(service, max_pending=4, max_request_items=4) as served:
        held = asyncio.create_task(served.http.post("/v1/score", json=body("hold")))
        await until(service.held.is_set)
        waiting = asyncio.create_task(served.http.post("/v1/score", json=body("1", "2", "3")))
        await until(lambda: served.process.dispatcher.waiting == 3)
        refused = await served.http.post("/v1/score", json=body("4", "5"))
        admitted = asyncio.create_task(served.http.post("/v1/score", json=body("6")))
        await until(lambda: served.process.dispatcher.waiting == 4)
        service.gate.set()
        answers = [await one for one in (held, waiting, admitted)]
    assert refused.status_code == 429
    assert refused.headers["content-type"] == PROBLEM
    assert int(refused.headers["retry-after"]) >= 1
    assert [one.status_code for one in answers] == [200, 200, 200]
    assert not any("4" in batch or "5" in batch for batch in service.batches)


async def test_too_many_items_and_too_large_bodies(serve: Any, scorers: ModuleType) -> None:
    service = scorers.Echo(scorers.EchoSettings())
    async with serve(service, max_request_items=2, max_body_bytes=20_000) as served:
        many = await served.http.post("/v1/score", json=body("1", "2", "3"))
        large = await served.http.post("/v1/score", content=b" " * 20_001)
        chunked = await served.http.post("/v1/score", content=trickle(b" " * 1000, 40))
        fine = await served.http.post("/v1/score", json=body("1", "2"))
    assert [one.status_code for one in (many, large, chunked, fine)] == [413, 413, 413, 200]
    assert "samples" in many.json()["detail"]
    assert "body" in large.json()["detail"]
    assert {one.headers["content-type"] for one in (many, large, chunked)} == {PROBLEM}


async def test_fifty_megabytes_are_refused_and_ten_thousand_items_are_not(
    serve: Any, scorers: ModuleType
) -> None:
    async with serve(scorers.Echo(scorers.EchoSettings(max_items=1024))) as served:
        large = await served.http.post("/v1/score", content=b"x" * 50_000_000)
        many = await served.http.post("/v1/score", json=body(*["1"] * 10_000))
    assert large.status_code == 413
    assert len(many.json()["results"]) == 10_000
    assert {one["value"] for one in many.json()["results"]} == {1.0}


async def test_the_loop_answers_while_the_scorer_sleeps(serve: Any, scorers: ModuleType, until: Any) -> None:
    service = scorers.Echo(scorers.EchoSettings())
    async with serve(service) as served:
        held = asyncio.create_task(served.http.post("/v1/score", json=body("hold")))
        await until(service.held.is_set)
        healthy = await served.http.get("/healthz", timeout=5)
        assert not held.done()
        service.gate.set()
        answer = await held
    assert healthy.json() == {"status": "alive"}
    assert answer.json()["results"][0]["exec_ms"] > 0


async def test_a_deadline_costs_what_is_not_done(serve: Any, scorers: ModuleType, until: Any) -> None:
    service = scorers.Echo(scorers.EchoSettings(max_items=1))
    async with serve(service) as served:
        held = asyncio.create_task(served.http.post("/v1/score", json=body("hold")))
        await until(service.held.is_set)
        late = await served.http.post("/v1/score", json=body("1", "2"), headers={"Guerdon-Timeout-S": "0.05"})
        service.gate.set()
        await held
        wrong = await served.http.post("/v1/score", json=body("1"), headers={"Guerdon-Timeout-S": "soon"})
        early = await served.http.post(
            "/v1/score", json=body("hold2", "1"), headers={"Guerdon-Timeout-S": "30"}
        )
    assert [one["status"] for one in late.json()["results"]] == ["timeout", "timeout"]
    assert "before execution" in late.json()["results"][0]["reason"]
    assert late.json()["results"][0]["value"] is None
    assert service.batches[0] == ["hold"]
    assert ["1"] not in service.batches[1:2]
    assert wrong.status_code == 422
    assert [one["status"] for one in early.json()["results"]] == ["internal_error", "ok"]


async def test_a_client_that_leaves_frees_its_place(serve: Any, scorers: ModuleType, until: Any) -> None:
    service = scorers.Echo(scorers.EchoSettings(max_items=1))
    async with serve(service) as served:
        held = asyncio.create_task(served.http.post("/v1/score", json=body("hold")))
        await until(service.held.is_set)
        with pytest.raises(httpx.ReadTimeout):
            await served.http.post("/v1/score", json=body("1", "2"), timeout=0.2)
        await until(lambda: served.process.dispatcher.waiting == 0)
        service.gate.set()
        await held
        text = (await served.http.get("/metrics")).text
    assert service.batches == [["hold"]]
    assert 'guerdon_cancelled_items_total{operation="score"} 2.0' in text
    assert 'guerdon_requests_total{door="http",operation="score",outcome="cancelled"} 1.0' in text


async def test_a_client_that_leaves_while_it_sends_counts_as_cancelled(
    serve: Any, scorers: ModuleType, until: Any
) -> None:
    async with serve(scorers.Echo(scorers.EchoSettings())) as served:
        address = served.process.http
        _, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"POST /v1/score HTTP/1.1\r\nHost: here\r\nContent-Length: 1000\r\n\r\n{")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

        async def counted() -> bool:
            line = 'guerdon_requests_total{door="http",operation="score",outcome="cancelled"} 1.0'
            return line in (await served.http.get("/metrics")).text

        await until(counted)


async def test_a_streaming_client_that_leaves_frees_its_place(
    serve: Any, scorers: ModuleType, until: Any
) -> None:
    service = scorers.Echo(scorers.EchoSettings(max_items=1))
    async with serve(service) as served:
        async with served.http.stream(
            "POST", "/v1/score", json=body("1", "hold", "2", "3"), headers={"Accept": "application/x-ndjson"}
        ) as answer:
            await anext(answer.aiter_lines())
            await until(service.held.is_set)
        await until(lambda: served.process.dispatcher.waiting == 0)
        service.gate.set()
    assert service.batches == [["1"], ["hold"]]


async def trickle(chunk: bytes, times: int) -> AsyncIterator[bytes]:
    for _ in range(times):
        yield chunk
