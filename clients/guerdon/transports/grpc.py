"""protobuf over gRPC, unary or server-streaming."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, TypeVar, cast

import grpc
import grpc.aio

from guerdon import codec, tracing
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
from guerdon.transports.base import MAX_MESSAGE_BYTES, REQUEST_ID, Operation, Streamed, new_request_id
from guerdon.types import Message

M = TypeVar("M", bound=Message)

_UNARY: dict[Operation, str] = {
    "score": "/guerdon.v1.RewardService/Score",
    "generate": "/guerdon.v1.RolloutService/Generate",
    "update": "/guerdon.v1.UpdateService/Update",
    "versions": "/guerdon.v1.UpdateService/Versions",
    "info": "/guerdon.v1.RewardService/Info",
}
_STREAMING: dict[Streamed, str] = {
    "score": "/guerdon.v1.RewardService/ScoreStream",
    "generate": "/guerdon.v1.RolloutService/GenerateStream",
}
#: gRPC's words, and the services', for a message over a limit; the status code is that of an overload.
_OVERSIZED = "larger than max"
_OPTIONS = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # The defaults wait up to two minutes before they notice that a restarted service is back.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # In spite of its name how long a connection may take to be made: a service that is busy, or far away, is not gone.
    ("grpc.min_reconnect_backoff_ms", 10_000),
]


class GrpcTransport:
    """A service's gRPC door."""

    def __init__(self, target: str, *, secure: bool = False, token: str | None = None) -> None:
        self._target = target
        self._secure = secure
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._channel: grpc.aio.Channel | None = None
        #: Unary methods that were called before.
        self._methods: dict[Operation, Any] = {}

    async def call(
        self,
        operation: Operation,
        request: Message | None,
        response: type[M],
        timeout_s: float,
        key: str | None = None,
    ) -> M:
        """One unary call whose deadline the service sees; see `Transport.call`."""
        method = self._methods.get(operation) or self._method(operation)
        body, request_id = codec.encode(request) if request else b"", new_request_id()
        try:
            answer = await method(body, timeout=timeout_s, metadata=self._call_metadata(request_id))
        except grpc.aio.AioRpcError as error:
            raise _failure(error, operation, self._target, request_id) from error
        return _decode(response, answer, request_id)

    async def stream(
        self, operation: Streamed, request: Message, item: type[M], timeout_s: float, key: str | None = None
    ) -> AsyncGenerator[M, None]:
        """One server-streaming call; see `Transport.stream`."""
        method, request_id = cast(Any, self._open()).unary_stream(_STREAMING[operation]), new_request_id()
        call = method(codec.encode(request), timeout=timeout_s, metadata=self._call_metadata(request_id))
        answers: AsyncIterator[bytes] = aiter(call)
        try:
            while (answer := await _next(answers, operation, self._target, request_id)) is not None:
                yield _decode(item, answer, request_id)
        finally:
            call.cancel()

    async def aclose(self) -> None:
        """Close the channel."""
        if self._channel is not None:
            await self._channel.close()

    def _call_metadata(self, request_id: str) -> tuple[tuple[str, str], ...]:
        return (*self._metadata, (REQUEST_ID, request_id), *tracing.carrier().items())

    def _method(self, operation: Operation) -> Any:
        method = self._methods[operation] = cast(Any, self._open()).unary_unary(_UNARY[operation])
        return method

    def _open(self) -> grpc.aio.Channel:
        # A channel belongs to the event loop that is running when it is made.
        if self._channel is None:
            if self._secure:
                credentials = grpc.ssl_channel_credentials()
                self._channel = grpc.aio.secure_channel(self._target, credentials, _OPTIONS)
            else:
                self._channel = grpc.aio.insecure_channel(self._target, _OPTIONS)
        return self._channel


async def _next(
    answers: AsyncIterator[bytes], operation: Operation, target: str, request_id: str
) -> bytes | None:
    """The next message of a stream, None at its end."""
    try:
        return await anext(answers, None)
    except grpc.aio.AioRpcError as error:
        raise _failure(error, operation, target, request_id) from error


def _failure(error: grpc.aio.AioRpcError, operation: Operation, target: str, request_id: str) -> GuerdonError:
    """What it was, with the request's name; without it where the service says none, for it may be out of reach."""
    said = REQUEST_ID in dict(error.trailing_metadata() or ())
    seen = said or error.code() is not grpc.StatusCode.UNAVAILABLE
    return _kind(error, operation, target).of_request(request_id if seen else None)


def _kind(error: grpc.aio.AioRpcError, operation: Operation, target: str) -> GuerdonError:
    details = error.details() or error.code().name
    match error.code():
        case grpc.StatusCode.INVALID_ARGUMENT:
            return InvalidRequest(details)
        case grpc.StatusCode.UNIMPLEMENTED:
            return InvalidRequest(f"grpc://{target} has no operation {operation!r}")
        case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
            return Unauthorized(details)
        case grpc.StatusCode.RESOURCE_EXHAUSTED if _OVERSIZED in details:
            return TooLarge(details)
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return Overloaded(details, retry_after_s=_retry_after(error))
        # A call of ours that is cancelled elsewhere came in the moment in which a service closed its door.
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
            return Unavailable(f"grpc://{target}: {details}")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return Timeout(f"grpc://{target}: {details}")
        case _:
            return InternalError(details)


def _retry_after(error: grpc.aio.AioRpcError) -> float:
    """Seconds from the trailing metadata `retry-after`, as the HTTP header of that name."""
    metadata = dict(error.trailing_metadata() or ())
    try:
        return max(0.0, float(metadata.get("retry-after", "")))
    except ValueError:
        return 1.0


def _decode(cls: type[M], body: bytes, request_id: str) -> M:
    try:
        return codec.decode(cls, body)
    except InvalidRequest as error:
        raise InternalError(f"the answer is no {cls.__name__}: {error}").of_request(request_id) from error
