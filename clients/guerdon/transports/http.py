"""JSON over HTTP, whole or streamed as one JSON object per line."""

import ipaddress
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, contextmanager
from typing import TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from guerdon import tracing
from guerdon._urls import without_credentials
from guerdon.codec import describe
from guerdon.errors import (
    GuerdonError,
    InternalError,
    InvalidRequest,
    Overloaded,
    Timeout,
    TooLarge,
    Unauthorized,
    Unavailable,
)
from guerdon.transports.base import REQUEST_ID, Deadline, Operation, Streamed, new_request_id
from guerdon.transports.http_pools import Pools
from guerdon.types import Message, VersionsRequest

M = TypeVar("M", bound=Message)

NDJSON = "application/x-ndjson"

#: Tells the service when to give up on what is unfinished, in seconds; a service may ignore it.
TIMEOUT_HEADER = "Guerdon-Timeout-S"
#: The service gets this share of the time, so that what it did finish still gets back before the deadline.
_SERVICE_SHARE = 0.95

_OK = 200
_NO_SUCH_OPERATION = (404, 405)

#: Characters of an unreadable body that an error message quotes.
_QUOTED = 200


class ProblemField(BaseModel):
    """One field that is wrong."""

    field: str = ""
    message: str = ""


class Problem(BaseModel):
    """An RFC 9457 problem document, as a whole body or as a line of a stream."""

    title: str = ""
    status: int = 500
    detail: str = ""
    errors: list[ProblemField] = []

    def __str__(self) -> str:
        text = self.detail or self.title or f"HTTP {self.status}"
        fields = [f"{error.field}: {error.message}" for error in self.errors]
        # A detail that already names the fields is not repeated.
        return "; ".join([text, *(field for field in fields if field not in text)])


class _ProblemLine(BaseModel):
    problem: Problem


class HttpTransport:
    """A service's HTTP door."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._shown = without_credentials(url)
        with _mapped(self._shown):
            httpx.URL(url)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._pools = Pools(headers=headers, timeout=None, mounts=_mounts(url))

    async def call(
        self,
        operation: Operation,
        request: Message | None,
        response: type[M],
        timeout_s: float,
        key: str | None = None,
    ) -> M:
        """POST the request, or GET where it is only a question; see `Transport.call`."""
        prepared = self._request(operation, request, timeout_s, accept="application/json")
        request_id = prepared.headers[REQUEST_ID]
        async with Deadline(timeout_s, self._shown, request_id).enforced():
            with _mapped(self._shown, request_id), self._pools.room() as client:
                answer = await client.send(prepared)
        if answer.status_code != _OK:
            raise self._failure(operation, answer)
        return _parse(response, answer)

    async def stream(
        self, operation: Streamed, request: Message, item: type[M], timeout_s: float, key: str | None = None
    ) -> AsyncGenerator[M, None]:
        """POST the request and read one JSON object per line; see `Transport.stream`."""
        prepared = self._request(operation, request, timeout_s, accept=NDJSON)
        request_id = prepared.headers[REQUEST_ID]
        deadline = Deadline(timeout_s, self._shown, request_id)
        with self._pools.room() as client:
            async with deadline.enforced():
                with _mapped(self._shown, request_id):
                    answer = await client.send(prepared, stream=True)
            try:
                if answer.status_code != _OK:
                    async with deadline.enforced():
                        with _mapped(self._shown, request_id):
                            await answer.aread()
                    raise self._failure(operation, answer)
                async with aclosing(self._lines(answer, deadline)) as lines:
                    async for line in lines:
                        yield _parse_line(item, line, answer)
            finally:
                await answer.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._pools.aclose()

    async def _lines(self, answer: httpx.Response, deadline: Deadline) -> AsyncGenerator[bytes, None]:
        # httpx's own line reader also splits at characters that JSON strings may hold (U+2028 and others).
        chunks = answer.aiter_bytes()
        rest = b""
        while True:
            async with deadline.enforced():
                with _mapped(self._shown, answer.request.headers[REQUEST_ID]):
                    chunk = await anext(chunks, None)
            if chunk is None:
                break
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if line.strip():
                    yield line
        if rest.strip():
            yield rest

    def _request(
        self, operation: Operation, request: Message | None, timeout_s: float, *, accept: str
    ) -> httpx.Request:
        url = f"{self._url}/v1/{operation}"
        headers = {"Accept": accept, REQUEST_ID: new_request_id()} | tracing.carrier()
        if request is None or isinstance(request, VersionsRequest):
            asked = request.model_dump(exclude_none=True) if request else {}
            return self._pools.first.build_request("GET", url, headers=headers, params=asked)
        headers[TIMEOUT_HEADER] = f"{_SERVICE_SHARE * timeout_s:.3f}"
        try:
            # What was not given stays away, but `expected: null` that was given arrives.
            body = request.model_dump_json(exclude_unset=True)
        except PydanticSerializationError as error:
            raise InvalidRequest(f"body: {error}") from error
        headers["Content-Type"] = "application/json"
        return self._pools.first.build_request("POST", url, content=body.encode(), headers=headers)

    def _failure(self, operation: Operation, answer: httpx.Response) -> GuerdonError:
        if answer.status_code in _NO_SUCH_OPERATION:
            return InvalidRequest(f"{self._shown} has no operation {operation!r}").of_request(_name(answer))
        try:
            problem = Problem.model_validate_json(answer.content)
        except ValidationError:
            # Whatever stands between us and the service may answer without a problem document.
            quoted = answer.text[:_QUOTED].strip()
            problem = Problem(title=answer.reason_phrase, detail=f"HTTP {answer.status_code}: {quoted}")
        error = _error(answer.status_code, problem, answer.headers.get("Retry-After", ""))
        return error.of_request(_name(answer))


def _mounts(url: str) -> dict[str, httpx.AsyncBaseTransport | None]:
    """No proxy of the environment for this machine's own loopback, which it could not reach."""
    host = urlsplit(url).hostname or ""
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    bracketed = f"[{host}]" if ":" in host else host
    return {f"all://{bracketed}": None} if loopback else {}


def _name(answer: httpx.Response) -> str | None:
    """What the service calls the request that it has answered."""
    return answer.headers.get(REQUEST_ID)


@contextmanager
def _mapped(url: str, request_id: str | None = None) -> Generator[None, None, None]:
    try:
        yield
    except httpx.TimeoutException as error:
        raise Timeout(f"{url} did not answer in time").of_request(request_id) from error
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise InvalidRequest(f"url: {error}") from error
    except httpx.ConnectError as error:
        raise Unavailable(f"{url} cannot be reached: {error}") from error
    except httpx.TransportError as error:
        message = f"{url} broke the connection: {error or type(error).__name__}"
        raise Unavailable(message).of_request(request_id) from error
    except httpx.RequestError as error:
        raise InternalError(f"{url} answered what HTTP cannot read: {error}").of_request(
            request_id
        ) from error


def _error(status: int, problem: Problem, retry_after: str = "") -> GuerdonError:
    message = str(problem)
    match status:
        case 401 | 403:
            return Unauthorized(message)
        case 408 | 504:
            return Timeout(message)
        case 413:
            return TooLarge(message)
        case 429:
            return Overloaded(message, retry_after_s=_seconds(retry_after))
        case 502 | 503:
            return Unavailable(message)
        case _ if 400 <= status < 500:
            return InvalidRequest(message)
        case _:
            return InternalError(message)


def _seconds(retry_after: str) -> float:
    # The header may also hold a date, which services of ours never send.
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        return 1.0


def _parse(cls: type[M], answer: httpx.Response) -> M:
    try:
        return cls.model_validate_json(answer.content)
    except ValidationError as error:
        message = f"the answer is no {cls.__name__}: {describe(error)}"
        raise InternalError(message).of_request(_name(answer)) from error


def _parse_line(cls: type[M], line: bytes, answer: httpx.Response) -> M:
    try:
        return cls.model_validate_json(line)
    except ValidationError as error:
        try:
            problem = _ProblemLine.model_validate_json(line).problem
        except ValidationError:
            message = f"a line is no {cls.__name__}: {describe(error)}"
            raise InternalError(message).of_request(_name(answer)) from error
        raise _error(problem.status, problem).of_request(_name(answer)) from None
