"""guerdon.testing: the stub answers as a real service does, and fails on demand."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from guerdon.blocking import Client
from guerdon.testing import Failure, StubService
from guerdon.types import (
    GenerateResult,
    GenerateSample,
    Result,
    Sample,
    Sampling,
    ScoreRequest,
    Status,
    UpdateRequest,
    UpdateResponse,
)
from tests.waiting import PATIENCE_S


@pytest.fixture
def stub() -> Iterator[StubService]:
    with StubService(lambda sample: float(sample.response == "4")) as service:
        yield service


def post(url: str, body: bytes, **headers: str) -> tuple[int, str, bytes]:
    """Status, content type and body, without any client of ours."""
    request = urllib.request.Request(url, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read()


def get(url: str) -> int:
    """The status that a GET is answered with."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_a_float_is_a_value_and_a_result_is_kept(stub: StubService) -> None:
    with Client(stub.url) as client:
        [result] = client.score([Sample(id="a", response="4")])
        assert (result.id, result.status, result.value, result.scorer) == ("a", Status.OK, 1.0, "stub")
        assert result.exec_ms > 0
        stub.score = lambda sample: Result(status=Status.TIMEOUT, reason="too hard")
        [result] = client.score([Sample(id="b")])
        assert (result.id, result.status, result.value, result.reason) == (
            "b",
            Status.TIMEOUT,
            None,
            "too hard",
        )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "text"])
def test_what_is_no_value_is_an_internal_error(stub: StubService, value: float) -> None:
    stub.score = lambda sample: value
    with Client(stub.url) as client:
        [result] = client.score([Sample()])
    assert result.status is Status.INTERNAL_ERROR
    assert result.value is None


def test_requests_are_kept(stub: StubService) -> None:
    with Client(stub.url) as client:
        client.score([Sample(response="4")], options={"extraction": "lenient"})
    assert stub.requests == [ScoreRequest(samples=[Sample(response="4")], options={"extraction": "lenient"})]


@pytest.mark.parametrize(
    ("body", "status", "fields"),
    [
        (b"{", 400, [""]),
        (b"", 400, [""]),
        (b"[]", 422, [""]),
        (b'{"samples": [{"respons": "4"}]}', 422, ["samples.0.respons"]),
        (b'{"samples": [{"outcome": "1"}], "min_version": -1}', 422, ["samples.0.outcome", "min_version"]),
        (b'{"samples": [{"outcome": NaN}]}', 422, ["samples.0.outcome"]),
    ],
)
def test_a_wrong_request_gets_a_problem_document(
    stub: StubService, body: bytes, status: int, fields: list[str]
) -> None:
    code, content_type, content = post(f"{stub.url}/v1/score", body)
    problem = json.loads(content)
    assert (code, content_type) == (status, "application/problem+json")
    assert problem["status"] == status
    assert [error["field"] for error in problem["errors"]] == fields
    assert all(field in problem["detail"] for field in fields)
    assert stub.requests == []


def test_a_stream_is_one_line_per_item(stub: StubService) -> None:
    body = b'{"samples": [{"response": "4"}, {"response": "5"}]}'
    code, content_type, content = post(f"{stub.url}/v1/score", body, Accept="application/x-ndjson")
    assert (code, content_type) == (200, "application/x-ndjson")
    lines = [json.loads(line) for line in content.splitlines()]
    assert [(line["index"], line["result"]["value"]) for line in lines] == [(0, 1.0), (1, 0.0)]


def test_unknown_paths_and_operations_do_not_exist(stub: StubService) -> None:
    assert post(f"{stub.url}/v1/generate", b"{}")[0] == 404
    assert post(f"{stub.url}/v1/update", b"{}")[0] == 404
    assert post(f"{stub.url}/nowhere", b"{}")[0] == 404
    assert [get(stub.url + path) for path in ("/healthz", "/readyz", "/v1/info")] == [200, 200, 200]
    assert [get(stub.url + path) for path in ("/v1/versions", "/v1/score")] == [404, 404]


def test_failures_happen_once_each_and_in_order(stub: StubService) -> None:
    body = b'{"samples": []}'
    stub.fail_next(Failure(status=503), Failure(status=429, retry_after_s=2.5), Failure(body=b"?"))
    statuses = [post(f"{stub.url}/v1/score", body) for _ in range(4)]
    assert [status for status, _, _ in statuses] == [503, 429, 200, 200]
    assert statuses[2][2] == b"?"
    assert len(stub.requests) == 4


def test_what_a_function_raises_stays_with_its_item() -> None:
    def generate(sample: GenerateSample, sampling: Sampling) -> GenerateResult:
        raise LookupError("no such prompt")

    def update(request: UpdateRequest) -> UpdateResponse:
        raise ArithmeticError("diverged")

    with StubService(generate=generate, update=update) as service, Client(service.url, retries=0) as client:
        [group] = client.generate([GenerateSample(id="p", prompt="a")], Sampling())
        assert (group.id, group.status) == ("p", Status.INTERNAL_ERROR)
        assert group.reason == "LookupError: no such prompt"
        body = UpdateRequest(request_id="u", samples=[], order="before").model_dump_json().encode()
        code, _, content = post(f"{service.url}/v1/update", body)
        assert code == 500
        assert json.loads(content)["detail"] == "ArithmeticError: diverged"
        assert client.versions().current == 0
        assert client.info().operations == ["generate", "update"]


def test_the_url_is_known_only_while_the_service_runs() -> None:
    service = StubService(lambda sample: 1.0)
    with pytest.raises(AssertionError, match="runs inside its `with` block"):
        _ = service.url
    with service:
        url = service.url
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{url}/healthz", timeout=PATIENCE_S)
