"""What the log says, and of which request."""

import asyncio
import json
import signal
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc.aio
import httpx
import pytest

from guerdon import codec
from guerdon.queue import Producer
from guerdon.types import ScoreRequest


def sample(response: str, id: str = "a") -> dict[str, Any]:
    return {"samples": [{"id": id, "response": response}]}


def encoded(response: str, id: str = "a") -> bytes:
    return codec.encode(ScoreRequest.model_validate(sample(response, id)))


def events(log: Path, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == name]


async def score_grpc(target: str, body: bytes, request_id: str) -> dict[str, str]:
    """The trailing metadata of a call."""
    async with grpc.aio.insecure_channel(target) as channel:
        call: Any = channel.unary_unary("/guerdon.v1.RewardService/Score")(
            body, metadata=(("x-request-id", request_id),)
        )
        await call
        return dict(await call.trailing_metadata())


async def test_failures_and_slow_batches_name_their_requests_and_samples(spawn: Any, redis_url: str) -> None:
    child = spawn("Echo", "max_items=1", log_format="json", log_level="debug", slow_s=0.05, queue=redis_url)
    child.wait_ready()
    async with httpx.AsyncClient(base_url=child.http, trust_env=False, timeout=200) as http:
        answer = await http.post("/v1/score", json=sample("poison", "h"), headers={"X-Request-Id": "step-1"})
        assert answer.headers["x-request-id"] == "step-1"
    assert (await score_grpc(child.grpc, encoded("poison", "g"), "step-2"))["x-request-id"] == "step-2"
    producer = Producer(redis_url, "echo")
    await (await producer.submit("score", encoded("sleep0.2", "q"), request_id="run 7, step 3"))
    await producer.close()
    child.process.send_signal(signal.SIGTERM)
    assert child.wait() == 0
    failed = events(child.log, "item failed")
    assert [one["samples"] for one in failed] == [
        [{"request_id": "step-1", "id": "h"}],
        [{"request_id": "step-2", "id": "g"}],
    ]
    assert all("RuntimeError: this sample is poison" in one["exception"] for one in failed)
    assert all("request_id" not in one for one in failed), "a batch belongs to nobody in particular"
    # On a busy machine the others may have been slow as well.
    slow = events(child.log, "slow batch")[-1]
    assert slow["samples"] == [{"request_id": "run 7, step 3", "id": "q"}]
    assert slow["exec_ms"] >= 200
    assert (slow["operation"], slow["items"], slow["level"]) == ("score", 1, "warning")
    asked = {one["request_id"]: one for one in events(child.log, "request")}
    assert (asked["step-1"]["door"], asked["step-1"]["name"], asked["step-1"]["outcome"]) == (
        "http",
        "POST /v1/score",
        "200",
    )
    assert (asked["step-2"]["name"], asked["step-2"]["outcome"]) == ("grpc score", "ok")
    assert (asked["run 7, step 3"]["name"], asked["run 7, step 3"]["outcome"]) == ("queue score", "ok")


@pytest.mark.parametrize("given", ["", "two words", "x" * 129, "\u00e9"])
async def test_a_name_that_is_none_is_replaced(serve: Any, scorers: ModuleType, given: str) -> None:
    async with serve(scorers.Echo(scorers.EchoSettings())) as served:
        headers = {"X-Request-Id": given.encode("latin-1")}
        answers = [await served.http.get("/v1/info", headers=headers) for _ in range(2)]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert all(len(id) == 32 for id in ids)
    assert ids[0] != ids[1]


async def test_refusals_say_which_request_they_were(serve: Any, scorers: ModuleType) -> None:
    async with serve(scorers.Echo(scorers.EchoSettings()), token="s3cret") as served:
        answer = await served.http.post("/v1/score", content=b"{", headers={"X-Request-Id": "r1"})
        assert (answer.status_code, answer.headers["x-request-id"]) == (401, "r1")
        assert (await served.http.get("/healthz")).headers.get("x-request-id") is None


async def test_a_batch_of_several_requests_names_each(spawn: Any) -> None:
    child = spawn("Echo", "max_items=2", "max_wait_ms=60000", log_format="json", slow_s=0.05)
    child.wait_ready()
    async with httpx.AsyncClient(base_url=child.http, trust_env=False, timeout=200) as http:
        await asyncio.gather(
            *(
                http.post("/v1/score", json=sample("sleep0.1", id), headers={"X-Request-Id": f"r-{id}"})
                for id in ("a", "b")
            )
        )
    [slow] = events(child.log, "slow batch")
    assert sorted(one["id"] for one in slow["samples"]) == ["a", "b"]
    assert all(one["request_id"] == f"r-{one['id']}" for one in slow["samples"])
