"""What a service does wrong costs the items it concerns, and never becomes a reward."""

from types import ModuleType
from typing import Any


def body(*responses: str) -> dict[str, Any]:
    return {"samples": [{"id": f"s{i}", "response": one} for i, one in enumerate(responses)]}


async def test_one_poison_item_costs_only_itself(serve: Any, scorers: ModuleType) -> None:
    async with serve(scorers.Echo(scorers.EchoSettings())) as served:
        answer = await served.http.post(
            "/v1/score", json=body("1", "poison", "unscorable", "bad", "exit", "not a number", "2")
        )
    results = answer.json()["results"]
    assert [one["status"] for one in results] == [
        "ok",
        "internal_error",
        "invalid_input",
        "invalid_input",
        "internal_error",
        "internal_error",
        "ok",
    ]
    assert results[1]["reason"] == "RuntimeError: this sample is poison"
    assert results[2]["reason"] == "response: cannot be scored"
    assert "SystemExit" in results[4]["reason"]
    assert [one["value"] for one in results] == [1.0, None, None, None, None, None, 2.0]


async def test_a_failure_that_cannot_be_said_is_a_failure_all_the_same(
    serve: Any, scorers: ModuleType
) -> None:
    async with serve(scorers.Echo(scorers.EchoSettings(max_items=1))) as served:
        answer = await served.http.post("/v1/score", json=body("1", "unsayable", "2"))
    results = answer.json()["results"]
    assert [one["status"] for one in results] == ["ok", "internal_error", "ok"]
    assert [one["value"] for one in results] == [1.0, None, 2.0]


async def test_tokens_that_are_no_number_cost_their_item(serve: Any, scorers: ModuleType) -> None:
    async with serve(scorers.Miscounting(scorers.EchoSettings())) as served:
        answer = await served.http.post("/v1/score", json=body("1", "none", "half", "exit", "2"))
        again = await served.http.post("/v1/score", json=body("3"))
    results = answer.json()["results"]
    assert [one["value"] for one in results] == [1.0, None, None, None, 2.0]
    assert {one["status"] for one in results[1:4]} == {"internal_error"}
    assert again.json()["results"][0]["value"] == 3.0


async def test_a_failure_with_a_value_does_not_leave_the_service(serve: Any, scorers: ModuleType) -> None:
    async with serve(scorers.Echo(scorers.EchoSettings())) as served:
        answer = await served.http.post("/v1/score", json=body("1", "copied", "constructed"))
    first, copied, constructed = answer.json()["results"]
    assert (first["status"], first["value"]) == ("ok", 1.0)
    assert (copied["id"], copied["status"], copied["value"]) == ("s1", "internal_error", None)
    assert copied["reason"] == "the service gave the value 1.0 with status timeout"
    assert (constructed["status"], constructed["value"]) == ("internal_error", None)


async def test_a_service_that_is_not_ready_makes_items_unavailable(serve: Any, scorers: ModuleType) -> None:
    async with serve(scorers.Echo(scorers.EchoSettings())) as served:
        answer = await served.http.post("/v1/score", json=body("not_ready"))
        short = await served.http.post("/v1/score", json=body("1", "short"))
    assert answer.json()["results"][0]["status"] == "unavailable"
    first, second = short.json()["results"]
    assert (first["status"], second["status"]) == ("ok", "internal_error")
    assert second["reason"] == "the service returned 0 results for 1 items"
