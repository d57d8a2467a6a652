"""The HTTP door."""

import asyncio
import math
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar, cast

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from guerdon import errors
from guerdon.types import Message, ServiceInfo, VersionsRequest, VersionsResponse
from guerdon_services import compat
from guerdon_services.runtime import metrics as exposition
from guerdon_services.runtime import openapi, problem
from guerdon_services.runtime.auth import TokenGuard
from guerdon_services.runtime.dispatch import Dispatcher
from guerdon_services.runtime.gate import Gate
from guerdon_services.runtime.health import Health
from guerdon_services.runtime.metrics import Metrics
from guerdon_services.runtime.native import Native, natives, read
from guerdon_services.runtime.problem import FieldError, InvalidFields, Problem, problem_response
from guerdon_services.runtime.scorer import AnyScorer, AnyService, Scorer
from guerdon_services.runtime.submission import Submission
from guerdon_services.runtime.validation import parse_versions

log = structlog.get_logger(__name__)

T = TypeVar("T")

TIMEOUT_HEADER = "Guerdon-Timeout-S"
NDJSON = "application/x-ndjson"

#: FastAPI's own spans (from 0.165 on) would say of one door what ours say of all.
_NO_TELEMETRY: Any = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
#: nginx's status for a client that left; nobody reads it.
CLIENT_CLOSED_REQUEST = 499


def build_app(
    dispatcher: Dispatcher,
    metrics: Metrics,
    guard: TokenGuard,
    health: Callable[[], Health],
    *,
    body_s: float,
) -> FastAPI:
    """The ASGI application of one service; only the routes that the service supports exist."""
    service = dispatcher.service
    app = FastAPI(
        title=f"guerdon {service.name}", version=service.version, redoc_url=None, telemetry=_NO_TELEMETRY
    )

    def refused(path: str, outcome: str) -> None:
        metrics.refused("http", path.removeprefix("/v1/"), outcome)

    app.add_middleware(
        Gate, guard=guard, max_body_bytes=dispatcher.max_body_bytes, refused=refused, body_s=body_s
    )
    _add_problems(app)
    _add_common(app, dispatcher, metrics, health)
    operations = natives(dispatcher)
    for native in operations:
        _add_native(app, native, metrics, service)
    if dispatcher.has_versions:
        _add_versions(app, dispatcher, metrics)
    own = service.routes(dispatcher)
    if own is not None:
        app.include_router(own)
    for router in compat.routers(dispatcher):
        app.include_router(router)
    options = cast(AnyScorer, service).options_type if isinstance(service, Scorer) else None
    models = [model for native in operations for model in (native.request, native.line) if model is not None]
    openapi.install(app, models, options)
    return app


def _add_native(app: FastAPI, native: Native[Any, Any], metrics: Metrics, service: AnyService) -> None:
    async def endpoint(request: Request) -> Response:
        outcome = "internal"
        try:
            response = await _answer(request, native, service)
            outcome = "ok" if response is not None else "cancelled"
            return response or Response(status_code=CLIENT_CLOSED_REQUEST)
        except ClientDisconnect:
            outcome = "cancelled"
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        except errors.GuerdonError as error:
            outcome = problem.outcome(error)
            raise
        finally:
            metrics.requests.labels("http", native.name, outcome).inc()

    app.add_api_route(
        f"/v1/{native.name}",
        endpoint,
        methods=["POST"],
        name=native.name,
        response_model=None,
        responses=openapi.answers(native.response, native.line),
        openapi_extra=openapi.body(native.request),
    )


async def _answer(request: Request, native: Native[Any, Any], service: AnyService) -> Response | None:
    """The answer, or None when the client left before it came."""
    timeout_s = _timeout_s(request)
    body = await request.body()
    parsed = await read(native.parse_json, body)
    if native.line is not None and NDJSON in request.headers.get("accept", ""):
        begin = native.begin_stream or native.begin
        return _Lines(await begin(parsed, timeout_s), native, service)
    submission = await native.begin(parsed, timeout_s)
    watcher = asyncio.create_task(cancel_when_gone(request.receive, submission))
    try:
        results = await submission.all()
    finally:
        watcher.cancel()
    if submission.cancelled:
        return None
    return Response(native.written(service, results, _json), media_type="application/json")


def _json(answer: Message) -> str:
    return answer.model_dump_json()


class _Lines(Response):
    """A streamed answer: a line for each item as it finishes."""

    def __init__(self, submission: Submission[Any], native: Native[Any, Any], service: AnyService) -> None:
        super().__init__(media_type=NDJSON)
        del self.headers["content-length"]
        self._submission = submission
        self._native = native
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the lines; items that have not started are dropped when the client leaves."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        watcher = asyncio.create_task(cancel_when_gone(receive, self._submission))
        try:
            async for chunk in self._submission.chunks():
                lines = [
                    self._native.line_written(self._service, index, answer, _json) for index, answer in chunk
                ]
                text = "\n".join([*(line for line in lines if line is not None), ""])
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        finally:
            watcher.cancel()
            self._submission.cancel()
        await send({"type": "http.response.body", "body": b""})


async def cancel_when_gone(receive: Receive, submission: Submission[Any]) -> None:
    """Cancel a submission as soon as its client has left; for a task beside the one that answers."""
    with suppress(asyncio.CancelledError):
        while (await receive())["type"] != "http.disconnect":
            pass
        submission.cancel()


def _timeout_s(request: Request) -> float | None:
    text = request.headers.get(TIMEOUT_HEADER)
    if text is None:
        return None
    try:
        timeout_s = float(text)
    except ValueError:
        timeout_s = math.nan
    if not math.isfinite(timeout_s) or timeout_s < 0:
        raise InvalidFields([FieldError(TIMEOUT_HEADER, f"must be a number of seconds, not {text!r}")])
    return timeout_s


def _add_versions(app: FastAPI, dispatcher: Dispatcher, metrics: Metrics) -> None:
    async def versions(request: Request) -> Response:
        """The current version of the weights and those that can still be read.

        With `wait_for`, once that version or a newer one is served; 504 when it did not come in `timeout_s`
        seconds.
        """
        outcome = "cancelled"
        try:
            asked = parse_versions(request.query_params)
            response = await unless_gone(request, dispatcher.versions(asked))
            if response is None:
                return Response(status_code=CLIENT_CLOSED_REQUEST)
            outcome = "ok"
            return Response(response.model_dump_json(), media_type="application/json")
        except errors.GuerdonError as error:
            outcome = problem.outcome(error)
            raise
        finally:
            metrics.requests.labels("http", "versions", outcome).inc()

    app.add_api_route(
        "/v1/versions",
        versions,
        response_model=None,
        responses=openapi.waited(VersionsResponse),
        openapi_extra=openapi.query(VersionsRequest),
    )


async def unless_gone(request: Request, answer: Coroutine[Any, Any, T]) -> T | None:
    """The answer, or None when the client left before it came."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(answer), asyncio.create_task(gone())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else None
    finally:
        for task in tasks:
            task.cancel()


def _add_common(app: FastAPI, dispatcher: Dispatcher, metrics: Metrics, health: Callable[[], Health]) -> None:
    async def healthz() -> JSONResponse:
        """200 while the process lives; 503 once a batch hangs, when only a new process helps."""
        stuck = health().stuck
        return (
            JSONResponse({"status": "stuck", "reason": stuck}, 503)
            if stuck
            else JSONResponse({"status": "alive"})
        )

    async def readyz() -> JSONResponse:
        """200 while new work is admitted; 503 while starting and from the first moment of draining."""
        now = health()
        return JSONResponse(now.as_dict(), 200 if now.ready else 503)

    async def metrics_() -> Response:
        """Prometheus metrics."""
        return Response(metrics.exposition(), media_type=exposition.CONTENT_TYPE)

    async def info() -> Response:
        """What the service is and what it accepts."""
        return Response(dispatcher.info().model_dump_json(), media_type="application/json")

    text = openapi.page(exposition.CONTENT_TYPE)
    app.add_api_route("/healthz", healthz, response_model=None, responses=openapi.probe())
    app.add_api_route("/readyz", readyz, response_model=None, responses=openapi.probe())
    app.add_api_route("/metrics", metrics_, name="metrics", response_class=PlainTextResponse, responses=text)
    app.add_api_route("/v1/info", info, response_model=None, responses={200: {"model": ServiceInfo}})


def _add_problems(app: FastAPI) -> None:
    async def refused(_: Request, error: Exception) -> Response:
        if isinstance(error, ClientDisconnect):
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        # A refusal raised while a framework read the body comes wrapped.
        cause = error if isinstance(error, errors.GuerdonError) else error.__cause__
        if isinstance(cause, errors.GuerdonError):
            return problem_response(cause)
        if isinstance(error, RequestValidationError):
            fields = [FieldError(".".join(map(str, one["loc"])), one["msg"]) for one in error.errors()]
            return problem_response(InvalidFields(fields))
        if isinstance(error, HTTPException):
            document = Problem(title=str(error.detail), status=error.status_code, detail=str(error.detail))
            return Response(
                document.model_dump_json(), error.status_code, error.headers, media_type=problem.CONTENT_TYPE
            )
        log.error("request failed", exc_info=error)
        return problem_response(errors.InternalError(f"{type(error).__name__}: {error}"))

    for kind in (errors.GuerdonError, ClientDisconnect, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, refused)
