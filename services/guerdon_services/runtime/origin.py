"""Where work comes from: the door, the id and the span of a request, for logs and traces.

Every request runs in a task of its own, and its origin is a context variable of that task. What outlives the task's
code, or runs elsewhere, keeps the origin itself (`Submission`).
"""

import logging
import os
import re
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import structlog
from opentelemetry.trace import Span, SpanKind
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from guerdon import tracing

log = structlog.get_logger(__name__)
#: Asked first: a line that nobody wants should cost nothing.
_levels = logging.getLogger(__name__)

#: The header, and gRPC metadata, that names a request.
REQUEST_ID = "x-request-id"
#: A name of the client's own that is taken as it is; others are replaced.
_GIVEN_ID = re.compile(r"[!-~]{1,128}")
#: Headers that say where a request comes from.
_HEADERS = frozenset(name.encode() for name in (REQUEST_ID, *tracing.HEADERS))
#: What is asked every few seconds, and traced by nobody.
_PROBES = frozenset({"/healthz", "/readyz", "/metrics"})
_FAILED = 500

_current: ContextVar["Origin | None"] = ContextVar("origin", default=None)


@dataclass(frozen=True, slots=True)
class Origin:
    """One request at one door. Its span ends with `end`."""

    door: str
    request_id: str
    span: Span
    began: float

    def executed(self, exec_s: float, queue_s: float, batch_items: int) -> None:
        """Note in the trace that a batch with items of this request has just ended."""
        if self.span.is_recording():
            now = time.time_ns()
            attributes = {"guerdon.queue_ms": round(1000 * queue_s), "guerdon.batch_items": batch_items}
            tracing.add_child(self.span, "execute", now - round(1e9 * exec_s), now, attributes)

    def end(self, name: str, outcome: str, *, failed: bool = False) -> None:
        """The request is answered; `name` is what it asked for, in words that are ours."""
        if self.span.is_recording():
            self.span.update_name(name)
            self.span.set_attribute("guerdon.outcome", outcome)
            if failed:
                tracing.fail(self.span, outcome)
        self.span.end()
        if _levels.isEnabledFor(logging.DEBUG):
            ms = round(1000 * (time.monotonic() - self.began), 3)
            log.debug("request", name=name, outcome=outcome, ms=ms)


def current() -> Origin | None:
    """The origin of the request that this task answers; None outside of any."""
    return _current.get()


def begin(
    door: str,
    request_id: str,
    carrier: Mapping[str, str],
    attributes: Mapping[str, str | int] | None = None,
) -> Origin:
    """Begin to answer a request in this task; its span continues the trace in `carrier`."""
    kind = SpanKind.CONSUMER if door == "queue" else SpanKind.SERVER
    about = {"guerdon.door": door, "guerdon.request_id": request_id, **(attributes or {})}
    origin = Origin(door, request_id, tracing.start_span(door, kind, about, carrier), time.monotonic())
    _current.set(origin)
    return origin


def begin_call(door: str, headers: Mapping[str, str]) -> Origin:
    """Begin to answer a request whose headers may name it, and the trace it belongs to."""
    given = headers.get(REQUEST_ID, "")
    return begin(door, given if _GIVEN_ID.fullmatch(given) else os.urandom(16).hex(), headers)


def log_fields() -> dict[str, str]:
    """What each line of the log says about the request it belongs to."""
    origin = _current.get()
    if origin is None:
        return {}
    fields = {"door": origin.door, "request_id": origin.request_id}
    span = origin.span.get_span_context()
    return {**fields, "trace_id": f"{span.trace_id:032x}"} if span.is_valid else fields


class HttpOrigins:
    """ASGI middleware around everything: each request has an origin, and its answer says which id it had."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["path"] in _PROBES:
            await self._app(scope, receive, send)
            return
        headers = {
            name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _HEADERS
        }
        origin = begin_call("http", headers)
        status = _FAILED

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", origin.request_id.encode()),
                ]
            await send(message)

        try:
            await self._app(scope, receive, named)
        finally:
            # What strangers ask for must not become the name of a span.
            route: Any = scope.get("route")
            path = getattr(route, "path", "other")
            origin.end(f"{scope['method']} {path}", str(status), failed=status >= _FAILED)
