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
from guerdon.transports.base import MAX_MESSAGE_BYTES, Operation, Streamed
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
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
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
        body = codec.encode(request) if request else b""
        try:
            answer = await method(body, timeout=timeout_s, metadata=self._call_metadata())
        except grpc.aio.AioRpcError as error:
            raise _failure(error, operation, self._target) from error
        return _decode(response, answer)

    async def stream(
        self, operation: Streamed, request: Message, item: type[M], timeout_s: float, key: str | None = None
    ) -> AsyncGenerator[M, None]:
        """One server-streaming call; see `Transport.stream`."""
        method = cast(Any, self._open()).unary_stream(_STREAMING[operation])
        call = method(codec.encode(request), timeout=timeout_s, metadata=self._call_metadata())
        answers: AsyncIterator[bytes] = aiter(call)
        try:
            while (answer := await _next(answers, operation, self._target)) is not None:
                yield _decode(item, answer)
        finally:
            call.cancel()

    async def aclose(self) -> None:
        """Close the channel."""
        if self._channel is not None:
            await self._channel.close()

    def _call_metadata(self) -> tuple[tuple[str, str], ...]:
        return (*self._metadata, *tracing.carrier().items())

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


async def _next(answers: AsyncIterator[bytes], operation: Operation, target: str) -> bytes | None:
    """The next message of a stream, None at its end."""
    try:
        return await anext(answers, None)
    except grpc.aio.AioRpcError as error:
        raise _failure(error, operation, target) from error


def _failure(error: grpc.aio.AioRpcError, operation: Operation, target: str) -> GuerdonError:
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


def _decode(cls: type[M], body: bytes) -> M:
    try:
        return codec.decode(cls, body)
    except InvalidRequest as error:
        raise InternalError(f"the answer is no {cls.__name__}: {error}") from error
