"""How HTTP failures become exceptions, and which failures are tried again."""

import time
from collections.abc import AsyncIterator, Iterator

import pytest

from guerdon import errors
from guerdon.blocking import Client
from guerdon.client import AsyncClient
from guerdon.testing import Failure, StubService
from guerdon.types import IndexedResult, Result, Sample, ScoreResponse, Status, UpdateRequest, UpdateResponse

SAMPLES = [Sample(id=f"s{i}", response="4") for i in range(4)]

#: HTTP status, and what it becomes.
HTTP = [
    (400, errors.InvalidRequest),
    (401, errors.Unauthorized),
    (403, errors.Unauthorized),
    (408, errors.Timeout),
    (413, errors.TooLarge),
    (422, errors.InvalidRequest),
    (429, errors.Overloaded),
    (500, errors.InternalError),
    (502, errors.Unavailable),
    (503, errors.Unavailable),
    (504, errors.Timeout),
    (302, errors.InternalError),
]


async def collect(stream: AsyncIterator[tuple[int, Result]], came: list[int]) -> None:
    async for index, _ in stream:
        came.append(index)


@pytest.fixture
def stub() -> Iterator[StubService]:
    with StubService(lambda sample: 1.0) as service:
        yield service


@pytest.mark.parametrize(("status", "kind"), HTTP)
async def test_http_statuses(stub: StubService, status: int, kind: type[errors.GuerdonError]) -> None:
    stub.fail_next(Failure(status=status), Failure(status=status))
    async with AsyncClient(stub.url, retries=0) as client:
        with pytest.raises(errors.GuerdonError, match="the test asked for this failure") as caught:
            await client.score(SAMPLES)
        assert type(caught.value) is kind
        with pytest.raises(kind):
            await anext(client.score_stream(SAMPLES))


async def test_an_operation_that_the_service_lacks_is_named(stub: StubService) -> None:
    async with AsyncClient(stub.url) as client:
        with pytest.raises(errors.InvalidRequest, match="has no operation 'versions'"):
            await client.versions()


async def test_a_problem_names_its_fields(stub: StubService) -> None:
    problem = b"""{"title": "Unprocessable", "status": 422, "detail": "2 fields are wrong",
        "errors": [{"field": "options.beta", "message": "must be a number"},
                   {"field": "samples.1", "message": "unknown field 'respons'"}], "instance": "/x"}"""
    stub.fail_next(Failure(status=422, body=problem))
    async with AsyncClient(stub.url) as client:
        with pytest.raises(errors.InvalidRequest) as caught:
            await client.score(SAMPLES)
    expected = "2 fields are wrong; options.beta: must be a number; samples.1: unknown field 'respons'"
    assert str(caught.value) == expected


async def test_an_error_page_that_is_no_problem_document_is_quoted(stub: StubService) -> None:
    stub.fail_next(Failure(status=502, body=b"<html>bad gateway</html>"))
    async with AsyncClient(stub.url, retries=0) as client:
        with pytest.raises(errors.Unavailable, match="HTTP 502: <html>bad gateway"):
            await client.score(SAMPLES)


async def test_a_problem_in_a_stream_line_keeps_its_kind(stub: StubService) -> None:
    line = b'{"problem": {"title": "Gone", "status": 503, "detail": "the service is stopping"}}\n'
    stub.fail_next(Failure(body=line))
    async with AsyncClient(stub.url, retries=0) as client:
        with pytest.raises(errors.Unavailable, match="the service is stopping"):
            await anext(client.score_stream(SAMPLES))


async def test_a_slow_service_times_out(stub: StubService) -> None:
    stub.fail_next(Failure(delay_s=30.0), Failure(delay_s=30.0))
    async with AsyncClient(stub.url, timeout_s=0.2) as client:
        begun = time.monotonic()
        with pytest.raises(errors.Timeout, match=r"did not answer within 0\.\d+ s"):
            await client.score(SAMPLES)
        with pytest.raises(errors.Timeout):
            await anext(client.score_stream(SAMPLES))
        assert time.monotonic() - begun < 20.0


async def test_a_dropped_connection_is_unavailable(stub: StubService) -> None:
    stub.fail_next(Failure(drop=True), Failure(drop=True))
    async with AsyncClient(stub.url, retries=0) as client:
        with pytest.raises(errors.Unavailable):
            await client.score(SAMPLES)
        with pytest.raises(errors.Unavailable):
            await anext(client.score_stream(SAMPLES))


async def test_the_token_reaches_the_service_and_no_message() -> None:
    with StubService(lambda sample: 1.0, token="secret") as service:
        async with AsyncClient(service.url, token="secret") as client:
            assert (await client.score(SAMPLES))[0].value == 1.0
        async with AsyncClient(service.url, token="sesame") as client:
            with pytest.raises(errors.Unauthorized, match="a bearer token is required") as caught:
                await client.info()
        assert "sesame" not in str(caught.value)


async def test_credentials_in_a_url_stay_out_of_messages() -> None:
    async with AsyncClient("http://user:hunter2@127.0.0.1:1", retries=0) as client:
        with pytest.raises(errors.Unavailable, match=r"http://127\.0\.0\.1:1") as caught:
            await client.info()
    assert "hunter2" not in str(caught.value)


async def test_loopback_is_reached_past_a_proxy(stub: StubService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    async with AsyncClient(stub.url, retries=0) as client:
        assert (await client.score(SAMPLES))[0].value == 1.0


# Answers that must not pass ------------------------------------------------------------------------------


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
        with pytest.raises(errors.InternalError, match=message):
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
        with pytest.raises(errors.InternalError, match=message):
            await collect(client.score_stream(SAMPLES), came)
    assert came == before


# Retries -------------------------------------------------------------------------------------------------


async def test_a_failing_service_is_tried_again(stub: StubService) -> None:
    stub.fail_next(Failure(status=503), Failure(drop=True), Failure(body=b"garbage"))
    async with AsyncClient(stub.url, retries=3) as client:
        assert [result.value for result in await client.score(SAMPLES)] == [1.0] * 4
    assert len(stub.requests) == 4


async def test_the_last_failure_is_raised(stub: StubService) -> None:
    stub.fail_next(Failure(status=503), Failure(status=500), Failure(status=200, body=b"x"))
    async with AsyncClient(stub.url, retries=1) as client:
        with pytest.raises(errors.InternalError, match="the test asked"):
            await client.score(SAMPLES)
    assert len(stub.requests) == 2


@pytest.mark.parametrize("status", [400, 401, 413, 422])
async def test_the_callers_own_mistakes_are_not_tried_again(stub: StubService, status: int) -> None:
    stub.fail_next(Failure(status=status))
    async with AsyncClient(stub.url) as client:
        with pytest.raises(errors.GuerdonError, match="the test asked"):
            await client.score(SAMPLES)
    assert len(stub.requests) == 1


async def test_no_retries_means_one_attempt(stub: StubService) -> None:
    stub.fail_next(Failure(status=503))
    async with AsyncClient(stub.url, retries=0) as client:
        with pytest.raises(errors.Unavailable):
            await client.score(SAMPLES)
    assert len(stub.requests) == 1


async def test_an_overloaded_service_says_how_long_to_wait(stub: StubService) -> None:
    stub.fail_next(Failure(status=429, retry_after_s=0.7))
    async with AsyncClient(stub.url) as client:
        begun = time.monotonic()
        assert (await client.score(SAMPLES))[0].value == 1.0
        assert time.monotonic() - begun >= 0.7
    assert len(stub.requests) == 2


async def test_a_wait_past_the_deadline_is_not_begun(stub: StubService) -> None:
    stub.fail_next(Failure(status=429, retry_after_s=300.0))
    async with AsyncClient(stub.url, timeout_s=250.0) as client:
        begun = time.monotonic()
        with pytest.raises(errors.Overloaded) as caught:
            await client.score(SAMPLES)
        assert time.monotonic() - begun < 200.0
    assert caught.value.retry_after_s == 300.0
    assert len(stub.requests) == 1


async def test_retries_end_with_the_time(stub: StubService) -> None:
    stub.fail_next(*[Failure(status=503)] * 200)
    async with AsyncClient(stub.url, timeout_s=1.5, retries=10_000) as client:
        begun = time.monotonic()
        # The last attempt may itself be cut off by the deadline.
        with pytest.raises((errors.Unavailable, errors.Timeout)):
            await client.score(SAMPLES)
        assert time.monotonic() - begun < 20.0
    assert 1 <= len(stub.requests) < 200


async def test_an_exception_knows_the_attempt_before(stub: StubService) -> None:
    stub.fail_next(Failure(status=503), Failure(delay_s=30.0))
    async with AsyncClient(stub.url, timeout_s=8.0, retries=1) as client:
        with pytest.raises(errors.Timeout) as caught:
            await client.score(SAMPLES)
    assert caught.value.__notes__ == ["the attempt before: Unavailable: the test asked for this failure"]


async def test_an_update_is_repeated_under_its_id() -> None:
    applied: list[str] = []

    def learn(request: UpdateRequest) -> UpdateResponse:
        applied.append(request.request_id)
        return UpdateResponse(request_id=request.request_id, status=Status.OK, version_after=1)

    request = UpdateRequest(request_id="u1", samples=SAMPLES, order="before")
    with StubService(update=learn, failures=[Failure(drop=True)]) as service:
        async with AsyncClient(service.url) as client:
            assert (await client.update(request)).version_after == 1
            assert (await client.update(request)).version_after == 1
        assert service.requests == [request] * 3
    assert applied == ["u1"]


async def test_a_stream_begins_again_only_before_its_first_item(stub: StubService) -> None:
    stub.fail_next(Failure(status=503), Failure(drop_after_items=0))
    async with AsyncClient(stub.url) as client:
        assert [index async for index, _ in client.score_stream(SAMPLES)] == [0, 1, 2, 3]
        assert len(stub.requests) == 3
        stub.fail_next(Failure(drop_after_items=2))
        came: list[int] = []
        with pytest.raises(errors.Unavailable):
            await collect(client.score_stream(SAMPLES), came)
    assert came == [0, 1]
    assert len(stub.requests) == 4


async def test_a_service_that_comes_back_is_found_again() -> None:
    with StubService(lambda sample: 1.0) as service:
        url = service.url
        with Client(url, retries=0) as client:
            client.score(SAMPLES)
            service.fail_next(Failure(drop=True))
            with pytest.raises(errors.Unavailable):
                client.score(SAMPLES)
            assert client.score(SAMPLES)[0].value == 1.0
