"""The HTTP door, over real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any

import pytest

PROBLEM = "application/problem+json"


def body(*responses: str, **others: Any) -> dict[str, Any]:
    return {"samples": [{"id": f"s{i}", "response": one} for i, one in enumerate(responses)], **others}


async def test_scores_come_in_order_with_stamps(serve: Any, scorers: ModuleType) -> None:
    async with serve(scorers.Echo(scorers.EchoSettings())) as served:
        answer = await served.http.post("/v1/score", json=body("1", "0.5", "0"))
    assert answer.status_code == 200
    results = answer.json()["results"]
    assert [one["value"] for one in results] == [1.0, 0.5, 0.0]
    assert [one["id"] for one in results] == ["s0", "s1", "s2"]
    assert {one["scorer"] for one in results} == {"echo"}
    assert {one["scorer_version"] for one in results} == {"0.0.1"}
    assert all(one["exec_ms"] > 0 and one["queue_ms"] >= 0 for one in results)
    assert all(one["model_version"] is None for one in results)


async def test_options_reach_the_scorer(serve: Any, scorers: ModuleType) -> None:
    async with serve(scorers.Echo(scorers.EchoSettings())) as served:
        answer = await served.http.post("/v1/score", json=body("2", options={"scale": 3, "shift": 1.0}))
    assert answer.json()["results"][0]["value"] == 7.0


async def test_an_empty_batch_is_empty(serve: Any, scorers: ModuleType) -> None:
    async with serve(scorers.Echo(scorers.EchoSettings())) as served:
        answer = await served.http.post("/v1/score", json={"samples": []})
        streamed = await served.http.post(
            "/v1/score", json={"samples": []}, headers={"Accept": "application/x-ndjson"}
        )
    assert (answer.status_code, answer.json()) == (200, {"results": []})
    assert (streamed.status_code, streamed.text) == (200, "")


@pytest.mark.parametrize(
    ("content", "status", "field", "words"),
    [
        (b"{", 400, None, "Invalid JSON"),
        (b"", 400, None, "Invalid JSON"),
        (b"\xff\xfe", 400, None, "Invalid JSON"),
        (b"[]", 422, "", "object"),
        (b"{}", 422, "samples", "Field required"),
        (b'{"samples": 3}', 422, "samples", "array"),
        (b'{"samples": [], "optons": {}}', 422, "optons", "did you mean options?"),
        (b'{"samples": [], "min_version": "1"}', 422, "min_version", "integer"),
        (b'{"samples": [], "options": {"scal": 2}}', 422, "options.scal", "did you mean scale?"),
        (b'{"samples": [], "options": {"scale": "2"}}', 422, "options.scale", "number"),
        (b'{"samples": [], "options": {"scale": NaN}}', 422, "options.scale", "finite"),
        (b'{"samples": [], "options": {"shift": 1.5}}', 422, "options.shift", "integer"),
        (b'{"samples": [], "options": {"mode": "x"}}', 422, "options.mode", "plain"),
        (b'{"samples": [{"respnse": "1"}], "x": 1}', 422, "samples.0.respnse", "did you mean response?"),
    ],
)
async def test_a_wrong_request_is_a_problem_document(
    serve: Any, scorers: ModuleType, content: bytes, status: int, field: str | None, words: str
) -> None:
    async with serve(scorers.Echo(scorers.EchoSettings())) as served:
        answer = await served.http.post("/v1/score", content=content)
    assert answer.status_code == status
    assert answer.headers["content-type"] == PROBLEM
    problem = answer.json()
    assert problem["status"] == status
    assert words in problem["detail"]
    if field is not None:
        assert field in {one["field"] for one in problem["errors"]}


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        ('{"id": "x", "respnse": "1"}', "respnse: unknown field; did you mean response?"),
        ('{"id": "x", "response": 1}', "response: Input should be a valid string"),
        ('{"id": "x", "response": null, "outcome": NaN}', "outcome: Input should be a finite number"),
        ('{"id": "x", "outcome": 1e999}', "outcome: Input should be a finite number"),
        ('{"id": "x", "metadata": {"a": [1, Infinity]}}', "metadata.a: inf is not a finite number"),
        (
            '{"id": "x", "code": {"kind": "call", "tests": [{"args": [1], "expected": NaN}]}}',
            "code.tests.0.expected: nan is not a finite number",
        ),
        ('{"id": "x", "code": {"kind": "cal"}}', "code.kind: Input should be 'stdio'"),
        (
            '{"id": "x", "prompt": 3}',
            "prompt: Input should be a valid string, or Input should be a valid array",
        ),
        ('{"id": "x", "prompt": [{"role": "user"}]}', "prompt.0.content: Field required"),
        ('{"id": "x", "response_token_ids": [1, -1]}', "response_token_ids.1"),
        ('{"id": "x", "response_token_ids": [2147483648]}', "response_token_ids.0"),
    ],
)
async def test_a_bad_sample_leaves_its_neighbours_alone(
    serve: Any, scorers: ModuleType, sample: str, words: str
) -> None:
    content = f'{{"samples": [{{"id": "a", "response": "1"}}, {sample}, {{"id": "b", "response": "2"}}]}}'
    async with serve(scorers.Echo(scorers.EchoSettings())) as served:
        answer = await served.http.post("/v1/score", content=content)
    assert answer.status_code == 200
    first, bad, last = answer.json()["results"]
    assert (first["value"], last["value"]) == (1.0, 2.0)
    assert (bad["id"], bad["status"], bad["value"]) == ("x", "invalid_input", None)
    assert words in bad["reason"]
    assert bad["scorer"] == "echo"


async def test_lines_come_as_items_finish(serve: Any, scorers: ModuleType) -> None:
    service = scorers.Echo(scorers.EchoSettings(max_items=1, concurrency=2))
    async with (
        serve(service) as served,
        served.http.stream(
            "POST", "/v1/score", json=body("hold", "1", "2"), headers={"Accept": "application/x-ndjson"}
        ) as answer,
    ):
        assert answer.headers["content-type"] == "application/x-ndjson"
        lines = answer.aiter_lines()
        early = [json.loads(await anext(lines)) for _ in range(2)]
        service.gate.set()
        late = json.loads(await anext(lines))
        rest = [line async for line in lines]
    assert [one["index"] for one in early] == [1, 2]
    assert [one["result"]["value"] for one in early] == [1.0, 2.0]
    assert (late["index"], late["result"]["id"]) == (0, "s0")
    assert rest == []


async def test_metrics_and_info_say_what_happened(serve: Any, scorers: ModuleType) -> None:
    async with serve(scorers.Echo(scorers.EchoSettings())) as served:
        await served.http.post("/v1/score", json=body("1", "poison", "bad"))
        await served.http.post("/v1/score", content=b"{")
        text = (await served.http.get("/metrics")).text
        info = (await served.http.get("/v1/info")).json()
    for line in (
        'guerdon_requests_total{door="http",operation="score",outcome="ok"} 1.0',
        'guerdon_requests_total{door="http",operation="score",outcome="malformed"} 1.0',
        'guerdon_items_total{operation="score",status="ok"} 1.0',
        'guerdon_items_total{operation="score",status="internal_error"} 1.0',
        'guerdon_items_total{operation="score",status="invalid_input"} 1.0',
        'guerdon_pending_items{operation="score"} 0.0',
        'guerdon_inflight_batches{operation="score"} 0.0',
        'guerdon_queue_seconds_count{operation="score"} 3.0',
        "guerdon_ready 1.0",
    ):
        assert line in text
    assert (info["scorer"], info["scorer_version"], info["operations"]) == ("echo", "0.0.1", ["score"])
    assert set(json.loads(info["options_schema"])["properties"]) == {"scale", "shift", "mode"}
    assert (info["max_request_items"], info["max_body_bytes"]) == (10_000, 32 * 1024 * 1024)


async def test_a_service_has_only_its_own_routes(serve: Any, scorers: ModuleType) -> None:
    async with serve(scorers.Echo(scorers.EchoSettings())) as served:
        missing = await served.http.post("/v1/update", json={})
        wrong_method = await served.http.get("/v1/score")
    assert (missing.status_code, wrong_method.status_code) == (404, 405)
    assert missing.headers["content-type"] == wrong_method.headers["content-type"] == PROBLEM


async def test_routes_of_the_services_own_share_gate_and_dispatcher(serve: Any, scorers: ModuleType) -> None:
    service = scorers.Chatty(scorers.EchoSettings())
    async with serve(service, max_body_bytes=1000, token="s3cret") as served:
        served.http.headers["Authorization"] = "Bearer s3cret"
        answer = await served.http.post("/words", json={"words": ["1", "2", "poison"]})
        wrong = await served.http.post("/words", json={"wrds": []})
        large = await served.http.post("/words", json={"words": ["x" * 1000]})
        trickled = await served.http.post("/words", content=trickle(b" " * 100, 20))
        anonymous = await served.http.post("/words", json={"words": []}, headers={"Authorization": ""})
        document = (await served.http.get("/openapi.json")).json()
    assert answer.json() == [1.0, 2.0, None]
    assert [one.status_code for one in (wrong, large, trickled, anonymous)] == [422, 413, 413, 401]
    assert {one.headers["content-type"] for one in (wrong, large, trickled, anonymous)} == {PROBLEM}
    assert wrong.json()["errors"][0]["field"] == "body.words"
    assert "/words" in document["paths"]


async def test_a_websocket_does_not_pass_the_gate(serve: Any, scorers: ModuleType) -> None:
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    async with serve(scorers.Echo(scorers.EchoSettings()), token="s3cret") as served:
        answer = await served.http.get("/v1/info", headers={**upgrade, "Sec-WebSocket-Key": "a" * 22 + "=="})
    assert answer.status_code == 401


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("pieces", [1, 3])
async def test_a_client_that_offers_another_protocol_is_answered_in_this_one(
    serve: Any, scorers: ModuleType, chunked: bool, pieces: int
) -> None:
    content = json.dumps(body("1.5")).encode()
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(content)
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQ"
    head = b"POST /v1/score HTTP/1.1\r\nHost: here\r\n%s\r\n%s\r\n\r\n" % (framing, offer)
    sent = b"%x\r\n%s\r\n0\r\n\r\n" % (len(content), content) if chunked else content
    probe = b"GET /healthz HTTP/1.1\r\nHost: here\r\n%s\r\n\r\n" % offer
    async with serve(scorers.Echo(scorers.EchoSettings())) as served:
        address = served.process.http
        reader, writer = await asyncio.open_connection(address.host, address.port)

        async def answer() -> tuple[int, Any]:
            async with asyncio.timeout(60):
                lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
                [length] = [
                    int(line.partition(":")[2]) for line in lines if line.startswith("content-length")
                ]
                return int(lines[0].split()[1]), json.loads(await reader.readexactly(length))

        for _ in range(2):
            everything = head + sent
            size = len(everything) // pieces + 1
            for start in range(0, len(everything), size):
                writer.write(everything[start : start + size])
                await writer.drain()
                await asyncio.sleep(0.05)
            status, scored = await answer()
            assert (status, scored["results"][0]["value"]) == (200, 1.5)
            writer.write(probe)
            assert await answer() == (200, {"status": "alive"})
        writer.close()
        await writer.wait_closed()


async def trickle(chunk: bytes, times: int) -> AsyncIterator[bytes]:
    for _ in range(times):
        yield chunk


async def test_the_openapi_document_shows_the_real_models(serve: Any, scorers: ModuleType) -> None:
    async with serve(scorers.Echo(scorers.EchoSettings())) as served:
        document = (await served.http.get("/openapi.json")).json()
        page = await served.http.get("/docs")
    schemas = document["components"]["schemas"]
    request = document["paths"]["/v1/score"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert request == {"$ref": "#/components/schemas/ScoreRequest"}
    assert "response_token_ids" in schemas["Sample"]["properties"]
    assert schemas["ScoreRequest"]["properties"]["options"] == {"$ref": "#/components/schemas/EchoOptions"}
    assert "token_rewards" in schemas["Result"]["properties"]
    assert page.status_code == 200
    references = set[str]()
    collect(document, references)
    assert references <= {f"#/components/schemas/{name}" for name in schemas}


def collect(value: Any, references: set[str]) -> None:
    if isinstance(value, dict):
        references.update(one for key, one in value.items() if key == "$ref")
        for child in value.values():
            collect(child, references)
    if isinstance(value, list):
        for child in value:
            collect(child, references)


async def test_a_generator_answers_generate(serve: Any, scorers: ModuleType) -> None:
    request = {"samples": [{"id": "a", "prompt": "hi"}, {"id": "b"}, {"prompt": 3}], "sampling": {"n": 2}}
    async with serve(scorers.Parrot(scorers.EchoSettings())) as served:
        answer = (await served.http.post("/v1/generate", json=request)).json()
        wrong = await served.http.post("/v1/generate", json={**request, "sampling": {"temprature": 1}})
    first, second, third = answer["results"]
    assert [one["response"] for one in first["rollouts"]] == ["hi", "hi"]
    assert (first["scorer"], first["id"], first["prompt_token_ids"]) == ("parrot", "a", [5])
    assert (second["status"], second["reason"], second["rollouts"]) == (
        "invalid_input",
        "prompt: is needed",
        [],
    )
    assert third["status"] == "invalid_input"
    assert wrong.status_code == 422
    assert wrong.json()["errors"][0] == {
        "field": "sampling.temprature",
        "message": "unknown field; did you mean temperature?",
    }


async def test_updates_never_run_beside_scores(serve: Any, scorers: ModuleType) -> None:
    service = scorers.Tally(scorers.EchoSettings())
    update = {"request_id": "u", "order": "after", "samples": [{"id": "a", "outcome": 1.0}]}
    async with serve(service) as served:
        early = await served.http.get("/v1/versions")
        calls = [served.http.post("/v1/score", json=body("1", "2")) for _ in range(20)]
        calls += [served.http.post("/v1/update", json=update) for _ in range(5)]
        answers = await asyncio.gather(*calls)
        versions = (await served.http.get("/v1/versions")).json()
        bad = await served.http.post("/v1/update", json={**update, "samples": [{"outcome": 2.0}]})
        lacking = (await served.http.post("/v1/update", json={**update, "samples": [{}]})).json()
    assert {one.status_code for one in answers} == {200}
    assert service.most_running == 1
    assert (early.status_code, early.json()["detail"]) == (503, "nothing was learned yet")
    assert versions["current"] == 5
    updated = answers[-1].json()
    assert (updated["request_id"], updated["scorer"], updated["status"]) == ("u", "tally", "ok")
    assert updated["results"][0]["id"] == "a"
    assert updated["metrics"] == {"loss": 0.5}
    scored = answers[0].json()["results"][0]
    assert scored["model_version"] == scored["value"]
    assert bad.status_code == 422
    assert bad.json()["errors"][0]["field"] == "samples.0.outcome"
    assert (lacking["status"], lacking["reason"]) == ("invalid_input", "samples: each needs an outcome")


async def test_answers_of_a_service_that_stops_are_the_last_of_their_connections(
    serve: Any, scorers: ModuleType, until: Any
) -> None:
    service = scorers.Echo(scorers.EchoSettings(max_items=1))
    async with serve(service) as served:
        held = asyncio.create_task(served.http.post("/v1/score", json={"samples": [{"response": "hold"}]}))
        await until(service.held.is_set)
        before = await served.http.get("/readyz")
        stopping = asyncio.create_task(served.process.drain())
        await until(lambda: not served.process.health().ready)
        during = await served.http.get("/readyz")
        service.gate.set()
        answer = await held
        assert await stopping
    assert (before.status_code, before.headers.get("connection")) == (200, None)
    assert (during.status_code, during.headers["connection"]) == (503, "close")
    assert (answer.json()["results"][0]["status"], answer.headers["connection"]) == ("ok", "close")
