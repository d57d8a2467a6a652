"""Whole-request refusals, in the words of each door: RFC 9457 for HTTP, a status code for gRPC.

Refusals are the exceptions of `guerdon.errors`; this module adds the two that only a server needs and says what
each becomes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

import grpc
from pydantic import BaseModel
from starlette.responses import Response

from guerdon import errors

CONTENT_TYPE = "application/problem+json"


@dataclass(frozen=True, slots=True)
class FieldError:
    """One field that is wrong; `field` is its path, empty for the body itself."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class MalformedBody(errors.InvalidRequest):
    """The body cannot be read at all."""


class SlowBody(errors.InvalidRequest):
    """The body comes too slowly to wait for."""


class InvalidFields(errors.InvalidRequest):
    """Fields are wrong; the message names each."""

    def __init__(self, fields: Sequence[FieldError]) -> None:
        super().__init__("; ".join(str(field) for field in fields))
        self.fields = list(fields)


class ProblemField(BaseModel):
    """A wrong field in a problem document."""

    field: str
    message: str


class Problem(BaseModel):
    """An RFC 9457 problem document."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[ProblemField] = []


@dataclass(frozen=True, slots=True)
class _Words:
    outcome: str  # label of guerdon_requests_total
    http: HTTPStatus
    grpc: grpc.StatusCode


#: Most specific first. gRPC itself answers RESOURCE_EXHAUSTED, "larger than max", to an oversized message;
#: clients tell it from overload by these words.
_WORDS: list[tuple[type[errors.GuerdonError], _Words]] = [
    (MalformedBody, _Words("malformed", HTTPStatus.BAD_REQUEST, grpc.StatusCode.INVALID_ARGUMENT)),
    (SlowBody, _Words("slow", HTTPStatus.REQUEST_TIMEOUT, grpc.StatusCode.DEADLINE_EXCEEDED)),
    (
        errors.TooLarge,
        _Words("too_large", HTTPStatus.REQUEST_ENTITY_TOO_LARGE, grpc.StatusCode.RESOURCE_EXHAUSTED),
    ),
    (
        errors.InvalidRequest,
        _Words("invalid", HTTPStatus.UNPROCESSABLE_ENTITY, grpc.StatusCode.INVALID_ARGUMENT),
    ),
    (errors.Unauthorized, _Words("unauthorized", HTTPStatus.UNAUTHORIZED, grpc.StatusCode.UNAUTHENTICATED)),
    (errors.Timeout, _Words("timeout", HTTPStatus.GATEWAY_TIMEOUT, grpc.StatusCode.DEADLINE_EXCEEDED)),
    (
        errors.Overloaded,
        _Words("overloaded", HTTPStatus.TOO_MANY_REQUESTS, grpc.StatusCode.RESOURCE_EXHAUSTED),
    ),
    (
        errors.Unavailable,
        _Words("unavailable", HTTPStatus.SERVICE_UNAVAILABLE, grpc.StatusCode.UNAVAILABLE),
    ),
    (errors.GuerdonError, _Words("internal", HTTPStatus.INTERNAL_SERVER_ERROR, grpc.StatusCode.INTERNAL)),
]


def outcome(error: errors.GuerdonError) -> str:
    """The label that metrics give this refusal."""
    return _words(error).outcome


def grpc_code(error: errors.GuerdonError) -> grpc.StatusCode:
    """The gRPC status code of this refusal."""
    return _words(error).grpc


def retry_after_s(error: errors.GuerdonError) -> int | None:
    """Whole seconds after which the same request may succeed; None where retrying cannot help."""
    if isinstance(error, errors.Overloaded):
        return max(1, math.ceil(error.retry_after_s))
    return 1 if isinstance(error, errors.Unavailable) else None


def http_problem(error: errors.GuerdonError) -> tuple[int, dict[str, str], Problem]:
    """HTTP status, extra headers and problem document of this refusal."""
    status = _words(error).http
    fields = [ProblemField(field=one.field, message=one.message) for one in _fields(error)]
    problem = Problem(title=status.phrase, status=status, detail=str(error), errors=fields)
    return int(status), _headers(error), problem


def _headers(error: errors.GuerdonError) -> dict[str, str]:
    if isinstance(error, errors.Unauthorized):
        return {"WWW-Authenticate": "Bearer"}
    seconds = retry_after_s(error)
    return {} if seconds is None else {"Retry-After": str(seconds)}


def _fields(error: errors.GuerdonError) -> list[FieldError]:
    return error.fields if isinstance(error, InvalidFields) else []


def _words(error: errors.GuerdonError) -> _Words:
    return next(words for kind, words in _WORDS if isinstance(error, kind))


def raw_response(status: HTTPStatus, detail: str) -> bytes:
    """The bytes of a refusal where there is no request to answer, only a connection; it closes."""
    body = Problem(title=status.phrase, status=status, detail=detail).model_dump_json().encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {CONTENT_TYPE}\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


def problem_response(error: errors.GuerdonError) -> Response:
    """The HTTP response of this refusal."""
    status, headers, problem = http_problem(error)
    return Response(problem.model_dump_json(), status, headers, media_type=CONTENT_TYPE)
