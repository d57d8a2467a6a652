"""A service inside your test: real HTTP on a loopback port, answers of your choosing, failures on demand.

    with StubService(lambda sample: 1.0 if sample.response == "4" else 0.0) as service:
        with Client(service.url) as client:
            assert client.score([Sample(response="4")])[0].value == 1.0

        service.fail_next(Failure(status=503), Failure(delay_s=5.0))   # the next two requests
        ...
        assert len(service.requests) == 4

Needs nothing beyond `guerdon` itself. Options are not checked against a schema; everything else is as the real
services do it, down to problem documents that name the field.
"""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import parse_qsl, urlsplit

from pydantic import ValidationError

from guerdon.codec import describe
from guerdon.types import (
    GenerateRequest,
    GenerateResponse,
    GenerateResult,
    GenerateSample,
    IndexedGeneration,
    IndexedResult,
    Message,
    Result,
    RolloutPiece,
    Sample,
    Sampling,
    ScoreRequest,
    ScoreResponse,
    ServiceInfo,
    Status,
    UpdateRequest,
    UpdateResponse,
    VersionsRequest,
    VersionsResponse,
)

M = TypeVar("M", bound=Message)

Score = Callable[[Sample], Result | float]
Generate = Callable[[GenerateSample, Sampling], GenerateResult]
Update = Callable[[UpdateRequest], UpdateResponse]

_NDJSON = "application/x-ndjson"
_MAX_BODY_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Failure:
    """What happens to one request instead of, or before, its answer.

    Without `status`, `body` and `drop` the request is answered as usual, `delay_s` late.
    """

    #: HTTP status to refuse with.
    status: int | None = None
    #: Raw body to answer with; a problem document if not given.
    body: bytes | None = None
    #: Seconds to wait first.
    delay_s: float = 0.0
    #: Value of the Retry-After header.
    retry_after_s: float | None = None
    #: Close the connection without an answer.
    drop: bool = False
    #: Of a streamed answer: close the connection after this many items.
    drop_after_items: int | None = None


class StubService:
    """A service that answers with your functions; a context manager whose `url` a client can use.

    `score` turns a sample into a result, or just into a value; `generate` a prompt into its group; what they
    raise becomes status `internal_error` of that item, as with a real scorer. `update` answers an update; its
    exceptions are the whole request's, HTTP 500. `token` makes the service ask for
    that bearer token. The functions run in the server's threads, one per connection.
    """

    def __init__(
        self,
        score: Score | None = None,
        *,
        generate: Generate | None = None,
        update: Update | None = None,
        token: str | None = None,
        failures: Iterable[Failure] = (),
    ) -> None:
        self.score = score
        self.generate = generate
        self.update = update
        self.token = token
        #: Every request that reached the service and was well-formed, failed ones included.
        self.requests: list[Message] = []
        #: Updates applied so far.
        self.version = 0
        self._updates: dict[str, UpdateResponse] = {}
        self._updating = threading.Lock()
        self._failures = deque(failures)
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        """Where the service listens; only inside the `with` block."""
        assert self._server is not None, "the stub service runs inside its `with` block"
        return f"http://127.0.0.1:{self._server.server_port}"

    def fail_next(self, *failures: Failure) -> None:
        """Have the next requests fail, one per failure."""
        self._failures.extend(failures)

    def next_failure(self) -> Failure:
        """The failure that is due now; an empty one if none is."""
        return self._failures.popleft() if self._failures else Failure()

    def info(self) -> ServiceInfo:
        """What the service says of itself."""
        functions = {"score": self.score, "generate": self.generate, "update": self.update}
        return ServiceInfo(
            scorer="stub",
            scorer_version="1",
            operations=[name for name, function in functions.items() if function],
            options_schema="{}",
            max_request_items=100_000,
            max_body_bytes=_MAX_BODY_BYTES,
        )

    def score_one(self, sample: Sample) -> Result:
        """The result of one sample; an exception becomes its status."""
        assert self.score is not None
        begun = time.perf_counter()
        try:
            scored = self.score(sample)
            if not isinstance(scored, Result):
                scored = Result(status=Status.OK, value=float(scored))
        except Exception as error:  # the user's function may raise anything
            scored = Result(status=Status.INTERNAL_ERROR, reason=f"{type(error).__name__}: {error}")
        return scored.model_copy(update={"id": sample.id, "scorer": "stub", "exec_ms": _ms_since(begun)})

    def generate_one(self, sample: GenerateSample, sampling: Sampling) -> GenerateResult:
        """The group of one prompt; an exception becomes its status."""
        assert self.generate is not None
        begun = time.perf_counter()
        try:
            group = self.generate(sample, sampling)
        except Exception as error:  # the user's function may raise anything
            group = GenerateResult(status=Status.INTERNAL_ERROR, reason=f"{type(error).__name__}: {error}")
        return group.model_copy(update={"id": sample.id, "scorer": "stub", "exec_ms": _ms_since(begun)})

    def update_once(self, request: UpdateRequest) -> UpdateResponse:
        """The answer to an update, the same one however often the request comes."""
        assert self.update is not None
        with self._updating:
            if request.request_id not in self._updates:
                self._updates[request.request_id] = self.update(request)
                self.version += 1
            return self._updates[request.request_id]

    def __enter__(self) -> Self:
        service = self

        class Handler(_Handler):
            stub = service

        self._server = _Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()
        self._server = None


def _lines(groups: Iterator[GenerateResult], *, each_rollout: bool) -> Iterator[IndexedGeneration]:
    for index, group in enumerate(groups):
        for number, rollout in enumerate(group.rollouts if each_rollout else ()):
            yield IndexedGeneration(index=index, piece=RolloutPiece(number=number, rollout=rollout))
        yield IndexedGeneration(index=index, result=group)


def _ms_since(begun: float) -> float:
    return (time.perf_counter() - begun) * 1000


class _Server(ThreadingHTTPServer):
    #: Connections that wait to be accepted; the default of 5 makes a burst of clients wait for a second.
    request_queue_size = 128
    # Answers that a client no longer waits for must not hold up the test.
    daemon_threads = True
    block_on_close = False


class _Refusal(Exception):
    """Becomes a problem document."""

    def __init__(self, status: int, detail: str, fields: Sequence[dict[str, str]] = ()) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.fields = fields


class _Handler(BaseHTTPRequestHandler):
    stub: StubService
    protocol_version = "HTTP/1.1"
    # Headers and body are two writes; without this the second waits 40 ms for the client's acknowledgement.
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._respond(None)

    def do_POST(self) -> None:
        self._respond(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def log_message(self, format: str, *args: Any) -> None:
        """Tests have their own output."""

    def _respond(self, body: bytes | None) -> None:
        failure = self.stub.next_failure()
        try:
            if self.stub.token and self.headers.get("Authorization") != f"Bearer {self.stub.token}":
                raise _Refusal(401, "a bearer token is required")
            request = None if body is None else self._request(body)
            time.sleep(failure.delay_s)
            if failure.drop:
                self.close_connection = True
            elif failure.body is not None:
                self._send(failure.status or 200, failure.body, "application/json")
            elif failure.status is not None:
                raise _Refusal(failure.status, "the test asked for this failure")
            elif request is None:
                self._send(200, self._get(), "application/json")
            else:
                self._post(request, failure)
        except _Refusal as refusal:
            self._problem(refusal, failure.retry_after_s)
        except ConnectionError:
            # The client no longer waits for this answer.
            self.close_connection = True

    def _request(self, body: bytes) -> Message:
        kinds: dict[str, type[Message]] = {
            "score": ScoreRequest,
            "generate": GenerateRequest,
            "update": UpdateRequest,
        }
        operation = self.path.removeprefix("/v1/")
        if operation not in self.stub.info().operations:
            raise _Refusal(404, f"{self.path} does not exist here")
        try:
            request = kinds[operation].model_validate_json(body)
        except ValidationError as error:
            malformed = error.errors()[0]["type"] == "json_invalid"
            raise _Refusal(400 if malformed else 422, describe(error), _fields(error)) from error
        self.stub.requests.append(request)
        return request

    def _get(self) -> bytes:
        parts = urlsplit(self.path)
        match parts.path:
            case "/v1/info":
                return self.stub.info().model_dump_json().encode()
            case "/v1/versions" if self.stub.update:
                return self._versions(dict(parse_qsl(parts.query)))
            case "/healthz" | "/readyz":
                return b'{"status": "ok"}'
            case path:
                raise _Refusal(404, f"{path} does not exist here")

    def _versions(self, query: Mapping[str, str]) -> bytes:
        try:
            asked = VersionsRequest.model_validate_strings(query)
        except ValidationError as error:
            raise _Refusal(422, describe(error), _fields(error)) from error
        ends = time.monotonic() + (30.0 if asked.timeout_s is None else asked.timeout_s)
        while self.stub.version < (asked.wait_for or 0):
            if time.monotonic() > ends:
                raise _Refusal(
                    504, f"version {asked.wait_for} did not come, the current one is {self.stub.version}"
                )
            time.sleep(0.01)
        return VersionsResponse(current=self.stub.version).model_dump_json().encode()

    def _post(self, request: Message, failure: Failure) -> None:
        match request:
            case ScoreRequest():
                results = (self.stub.score_one(sample) for sample in request.samples)
                lines = (IndexedResult(index=index, result=result) for index, result in enumerate(results))
                self._items(
                    lines, lambda items: ScoreResponse(results=[one.result for one in items]), failure
                )
            case GenerateRequest():
                groups = (self.stub.generate_one(sample, request.sampling) for sample in request.samples)
                self._items(
                    _lines(groups, each_rollout=bool(request.each_rollout)),
                    lambda items: GenerateResponse(results=[one.result for one in items if one.result]),
                    failure,
                )
            case _:
                assert isinstance(request, UpdateRequest)
                self._send(200, self._update(request).model_dump_json().encode(), "application/json")

    def _update(self, request: UpdateRequest) -> UpdateResponse:
        try:
            return self.stub.update_once(request)
        except Exception as error:  # the user's function may raise anything
            raise _Refusal(500, f"{type(error).__name__}: {error}") from error

    def _items(self, items: Iterator[M], whole: Callable[[Iterator[M]], Message], failure: Failure) -> None:
        if _NDJSON not in self.headers.get("Accept", ""):
            self._send(200, whole(items).model_dump_json().encode(), "application/json")
            return
        self.send_response(200)
        self.send_header("Content-Type", _NDJSON)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for count, item in enumerate(items):
            if count == failure.drop_after_items:
                self.close_connection = True
                return
            self._chunk(item.model_dump_json().encode() + b"\n")
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _problem(self, refusal: _Refusal, retry_after_s: float | None) -> None:
        problem = {
            "type": "about:blank",
            "title": HTTPStatus(refusal.status).phrase,
            "status": refusal.status,
            "detail": refusal.detail,
            "errors": refusal.fields,
        }
        headers = {} if retry_after_s is None else {"Retry-After": f"{retry_after_s:g}"}
        self._send(refusal.status, json.dumps(problem).encode(), "application/problem+json", headers)

    def _send(
        self, status: int, body: bytes, content_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _fields(error: ValidationError) -> list[dict[str, str]]:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    return [{"field": ".".join(map(str, one["loc"])), "message": one["msg"]} for one in problems]
