r"""Half a surrogate pair ("\ud800") is valid JSON and no text: the sample that holds one is told so, by name."""

import json
from types import ModuleType
from typing import Any

import pytest

from guerdon_services.runtime import surrogates


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("\ud800", ""),
        ({"a": [{}, {"b": "x\udc00"}]}, "a.1.b"),
        ({"a": {"k\ud800": 1}}, "a.k\\ud800"),
        ({"a": ["\U0001f600", 1, None, True]}, None),
    ],
)
def test_the_first_string_that_is_no_text_is_found(value: Any, path: str | None) -> None:
    assert surrogates.first(value) == path


async def test_a_sample_with_half_a_pair_leaves_its_neighbours_alone(serve: Any, scorers: ModuleType) -> None:
    samples = [
        {"id": "a", "response": "1"},
        {"id": "b", "response": "x\ud800 y"},
        {"id": "\udc00", "response": "1"},
        "\ud83d",
        {"id": "e", "response": "2", "outcome": "wrong"},
        {"id": "f", "response": "3", "prompt": "\U0001f600"},
    ]
    async with serve(scorers.Echo(scorers.EchoSettings())) as served:
        body = json.dumps({"samples": samples, "options": {"scale": 2}})
        answer = await served.http.post("/v1/score", content=body)
    assert answer.status_code == 200
    results = answer.json()["results"]
    assert [one["value"] for one in results] == [2.0, None, None, None, None, 6.0]
    assert [one["id"] for one in results] == ["a", "b", None, None, "e", "f"]
    assert {one["status"] for one in results if one["value"] is None} == {"invalid_input"}
    reasons = [one["reason"] for one in results]
    assert reasons[1] == "response: holds half of a surrogate pair, which is no text"
    assert (reasons[2].split(":")[0], reasons[3].split(":")[0], reasons[4].split(":")[0]) == (
        "id",
        "sample",
        "outcome",
    )


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"samples": [], "options": {"mode": "\ud800"}}, 422, "options.mode: holds half"),
        ({"samples": [], "\ud800": 1}, 422, "\\ud800: holds half"),
        ({"samples": "\ud800"}, 422, "samples: holds half"),
        ({"samples": [{"response": "\ud800"}], "opt": 1}, 422, "opt: unknown field"),
        ("\ud800", 400, "Invalid JSON"),
    ],
)
async def test_outside_the_samples_it_refuses_the_request(
    serve: Any, scorers: ModuleType, body: Any, status: int, words: str
) -> None:
    async with serve(scorers.Echo(scorers.EchoSettings())) as served:
        answer = await served.http.post("/v1/score", content=json.dumps(body))
    assert (answer.status_code, words in answer.json()["detail"]) == (status, True), answer.text


async def test_it_refuses_an_update_by_name(serve: Any, scorers: ModuleType) -> None:
    update = {"request_id": "u", "order": "before", "samples": [{"response": "\udfff", "outcome": 1.0}]}
    async with serve(scorers.Tally(scorers.EchoSettings())) as served:
        answer = await served.http.post("/v1/update", content=json.dumps(update))
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "samples.0.response"
