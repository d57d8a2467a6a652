"""The gRPC door: the same messages, with health checking, reflection, deadlines and streams."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, cast

import grpc
import grpc.aio
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from guerdon import errors
from guerdon.types import Message
from guerdon_services.runtime import origin, problem
from guerdon_services.runtime.auth import TokenGuard
from guerdon_services.runtime.dispatch import Dispatcher
from guerdon_services.runtime.metrics import Metrics
from guerdon_services.runtime.native import Native, encoded, natives, read
from guerdon_services.runtime.protobuf import parse_versions
from guerdon_services.runtime.settings import Address

log = structlog.get_logger(__name__)

Context = Any  # grpc.aio.ServicerContext is generic in ways that say nothing here

#: The parts of grpc and its extensions that have no usable types.
_grpc: Any = grpc
_health: Any = health

#: Outcomes that a trace shows as errors, as it does HTTP's 5xx.
_OUR_FAULT = frozenset({"internal", "unavailable", "timeout"})

_OPEN_METHODS = "/grpc.health.v1.Health/"


class GrpcDoor:
    """One grpc.aio server with the services that the dispatcher's operations allow."""

    def __init__(
        self, dispatcher: Dispatcher, metrics: Metrics, guard: TokenGuard, *, max_message_bytes: int
    ) -> None:
        self._server = grpc.aio.server(
            interceptors=[_TokenInterceptor(guard, metrics)],
            options=[
                ("grpc.max_receive_message_length", max_message_bytes),
                ("grpc.max_send_message_length", -1),
                # Two servers on one port would share its calls without a word.
                ("grpc.so_reuseport", 0),
                # A client that vanished without a word frees its calls.
                ("grpc.keepalive_time_ms", 60_000),
                ("grpc.keepalive_timeout_ms", 20_000),
                ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            ],
        )
        services = _Handlers(dispatcher, metrics).services()
        self._health: Any = _health.aio.HealthServicer()
        self._names = ["", *services]
        cast(Any, health_pb2_grpc).add_HealthServicer_to_server(self._health, self._server)
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(name, handlers) for name, handlers in services.items()]
        )
        cast(Any, reflection).enable_server_reflection(
            [*services, health.SERVICE_NAME, reflection.SERVICE_NAME], self._server
        )

    async def start(self, address: Address, credentials: grpc.ServerCredentials | None = None) -> Address:
        """Listen; returns the address with the port that the system chose.

        Raises:
            OSError: the address cannot be had.
        """
        await self.set_serving(False)
        try:
            if credentials is None:
                port = self._server.add_insecure_port(str(address))
            else:
                port = self._server.add_secure_port(str(address), credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from error
        await self._server.start()
        return Address(address.host, port)

    async def set_serving(self, serving: bool) -> None:
        """Answer health checks with SERVING or NOT_SERVING; watchers hear of it."""
        statuses = health_pb2.HealthCheckResponse
        for name in self._names:
            await self._health.set(name, statuses.SERVING if serving else statuses.NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Accept no more calls, and cut off those that have not ended after `grace_s` seconds."""
        await self._server.stop(grace_s)


class _TokenInterceptor(grpc.aio.ServerInterceptor):
    """Asks every call but health checks for the bearer token."""

    def __init__(self, guard: TokenGuard, metrics: Metrics) -> None:
        self._guard = guard
        self._metrics = metrics

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        details = cast(Any, handler_call_details)
        if not details.method.startswith(_OPEN_METHODS):
            metadata = dict[str, str](details.invocation_metadata or ())
            try:
                self._guard.check(metadata.get("authorization"))
            except errors.Unauthorized as error:
                self._metrics.refused("grpc", details.method.rpartition("/")[2].lower(), "unauthorized")
                return _refusing(error)
        return await continuation(handler_call_details)


class _Handlers:
    """The methods of each service. Bodies stay bytes here: a malformed one is INVALID_ARGUMENT, not INTERNAL."""

    def __init__(self, dispatcher: Dispatcher, metrics: Metrics) -> None:
        self._dispatcher = dispatcher
        self._metrics = metrics

    def services(self) -> dict[str, dict[str, Any]]:
        """gRPC services and their methods, for the operations there are; every service says what it is."""
        services: dict[str, dict[str, Any]] = {
            "guerdon.v1.RewardService": {"Info": self._asked("info", self._info)}
        }
        for native in natives(self._dispatcher):
            service, method = _NAMES[native.name]
            methods = services.setdefault(service, {})
            methods[method] = self._unary(native)
            if native.line is not None:
                methods[f"{method}Stream"] = self._stream(native)
        if self._dispatcher.has_versions:
            methods = services.setdefault("guerdon.v1.UpdateService", {})
            methods["Versions"] = self._asked("versions", self._versions)
        return services

    async def _info(self, _: bytes) -> Message:
        return self._dispatcher.info()

    async def _versions(self, body: bytes) -> Message:
        return await self._dispatcher.versions(parse_versions(body))

    def _asked(self, name: str, answer: Callable[[bytes], Awaitable[Message]]) -> Any:
        async def handler(body: bytes, context: Context) -> bytes:
            async with self._answering(name, context):
                return encoded(await answer(body))

        return _grpc.unary_unary_rpc_method_handler(handler)

    def _unary(self, native: Native[Any, Any]) -> Any:
        async def handler(body: bytes, context: Context) -> bytes:
            async with self._answering(native.name, context):
                submission = await native.begin(await read(native.parse_proto, body))
                return native.written(self._dispatcher.service, await submission.all(), encoded)

        return _grpc.unary_unary_rpc_method_handler(handler)

    def _stream(self, native: Native[Any, Any]) -> Any:
        async def handler(body: bytes, context: Context) -> AsyncIterator[bytes]:
            async with self._answering(native.name, context):
                begin = native.begin_stream or native.begin
                submission = await begin(await read(native.parse_proto, body))
                async with aclosing(submission.chunks()) as chunks:
                    async for chunk in chunks:
                        for index, answer in chunk:
                            line = native.line_written(self._dispatcher.service, index, answer, encoded)
                            if line is not None:
                                yield line

        return _grpc.unary_stream_rpc_method_handler(handler)

    @asynccontextmanager
    async def _answering(self, name: str, context: Context) -> AsyncGenerator[None]:
        """Turns refusals into status codes. A deadline or a client that leaves cancels what runs inside."""
        metadata = dict[str, str](context.invocation_metadata() or ())
        came = origin.begin_call("grpc", metadata)
        context.set_trailing_metadata(((origin.REQUEST_ID, came.request_id),))
        outcome = "ok"
        try:
            yield
        except errors.GuerdonError as error:
            outcome = problem.outcome(error)
            await _abort(context, error)
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except Exception as error:
            outcome = "internal"
            log.exception("request failed", operation=name)
            await _abort(context, errors.InternalError(f"{type(error).__name__}: {error}"))
        finally:
            self._metrics.requests.labels("grpc", name, outcome).inc()
            came.end(f"grpc {name}", outcome, failed=outcome in _OUR_FAULT)


_NAMES = {
    "score": ("guerdon.v1.RewardService", "Score"),
    "generate": ("guerdon.v1.RolloutService", "Generate"),
    "update": ("guerdon.v1.UpdateService", "Update"),
}


async def _abort(context: Context, error: errors.GuerdonError) -> None:
    seconds = problem.retry_after_s(error)
    wait = () if seconds is None else (("retry-after", str(seconds)),)
    # What was set before would be lost otherwise.
    trailing = (*(context.trailing_metadata() or ()), *wait)
    await context.abort(problem.grpc_code(error), str(error), trailing)


def _refusing(error: errors.GuerdonError) -> Any:
    # A handler of streams begins at once: nobody without a token has his message read.
    async def handler(_: AsyncIterator[bytes], context: Context) -> bytes:
        await _abort(context, error)
        return b""

    return _grpc.stream_unary_rpc_method_handler(handler)
