"""Every exception that Guerdon raises.

    GuerdonError
    ├── InvalidRequest      the request itself is wrong; retrying cannot help
    │   └── TooLarge        its body or its number of items is over the service's limit
    ├── Unauthorized        no bearer token, or a wrong one
    └── ServiceFailure      the service could not answer; no reward came of it
        ├── Timeout         the deadline passed first
        ├── Overloaded      the service refused work (HTTP 429, RESOURCE_EXHAUSTED, a full queue)
        ├── Unavailable     it could not be reached, or is starting or stopping
        └── InternalError   it failed in a way it did not expect

Per-item failures are no exceptions: they are results whose `status` says what happened.
"""

from typing import Self

from guerdon.types import Result, Status


class GuerdonError(Exception):
    """Base of all."""

    #: The status that an item has when this exception cost it its answer.
    status: Status = Status.INTERNAL_ERROR
    #: What the service's log calls the request; None where no service can have seen it.
    request_id: str | None = None

    def of_request(self, request_id: str | None) -> Self:
        """The same, with the name of the request that failed."""
        self.request_id = request_id
        return self

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text} (request {self.request_id})" if self.request_id else text


class InvalidRequest(GuerdonError):
    """The request is wrong; the message names the field."""

    status = Status.INVALID_INPUT


class TooLarge(InvalidRequest):
    """The body or the number of items is over the service's limit."""


class Unauthorized(GuerdonError):
    """The service wants a bearer token and got none, or a wrong one."""

    status = Status.INVALID_INPUT


class ServiceFailure(GuerdonError):
    """The service could not answer; the same request may succeed later."""


class Timeout(ServiceFailure):
    """The deadline passed before the answer came."""

    status = Status.TIMEOUT


class Overloaded(ServiceFailure):
    """The service refuses more work for the moment."""

    status = Status.OVERLOADED

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(ServiceFailure):
    """The service cannot be reached, or is starting or stopping."""

    status = Status.UNAVAILABLE


class InternalError(ServiceFailure):
    """The service failed in a way it did not expect."""

    status = Status.INTERNAL_ERROR


_KINDS: dict[Status, type[GuerdonError]] = {
    Status.INVALID_INPUT: InvalidRequest,
    Status.TIMEOUT: Timeout,
    Status.OVERLOADED: Overloaded,
    Status.UNAVAILABLE: Unavailable,
    Status.INTERNAL_ERROR: InternalError,
}


def error_of(status: Status, message: str) -> GuerdonError:
    """The exception that a status stands for, where there is no room for a status."""
    return _KINDS[status](message)


def value_of(result: Result) -> float:
    """The result's value, for those who know failure only as an exception.

    Raises:
        GuerdonError: it has none; the one of its status.
    """
    if result.value is None:
        raise error_of(result.status, f"no reward: {result.status}: {result.reason}")
    return result.value
