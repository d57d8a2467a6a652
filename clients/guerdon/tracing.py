"""OpenTelemetry traces: a span for each call of a client, and what carries it through a door to the service.

Spans are made with OpenTelemetry's API, and cost next to nothing until something exports them: the SDK that an
application sets up for itself, or `export_spans`, which `guerdon serve` and `guerdon score` call.
"""

import logging
import os
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

log = logging.getLogger("guerdon.tracing")

#: The headers of W3C Trace Context.
HEADERS = ("traceparent", "tracestate")
#: The environment says with these where spans go; either will do.
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

_tracer = trace.get_tracer("guerdon")
_w3c = TraceContextTextMapPropagator()


def start_span(
    name: str, kind: SpanKind, attributes: Mapping[str, str | int], carrier: Mapping[str, str] | None = None
) -> Span:
    """A span that somebody has to end; its parent is in `carrier` where there is one, else the current span."""
    parent = None if carrier is None else _w3c.extract(carrier, Context())
    return _tracer.start_span(name, parent, kind, dict(attributes))


def add_child(parent: Span, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, int]) -> None:
    """Record a span that is over, between two Unix times in nanoseconds."""
    context = trace.set_span_in_context(parent, Context())
    child = _tracer.start_span(name, context, attributes=dict(attributes), start_time=start_ns)
    child.end(end_ns)


def fail(span: Span, reason: str) -> None:
    """Mark a span as failed."""
    span.set_status(StatusCode.ERROR, reason)


@contextmanager
def call_span(operation: str, url: str, items: int) -> Generator[Span]:
    """The span of one call, its retries included; `current` makes it the one that a transport carries on.

    It ends with the block, and is not current in it: a generator may yield inside.
    """
    span = start_span(
        f"guerdon.{operation}", SpanKind.CLIENT, {"server.address": url, "guerdon.items": items}
    )
    try:
        yield span
    except Exception as error:
        span.record_exception(error)
        fail(span, str(error))
        raise
    finally:
        span.end()


def current(span: Span) -> AbstractContextManager[Span]:
    """A context in which `span` is the current one; it must not yield to another task's code."""
    return trace.use_span(span, record_exception=False, set_status_on_exception=False)


def carrier() -> dict[str, str]:
    """The current span as headers; empty where nothing is traced."""
    headers: dict[str, str] = {}
    _w3c.inject(headers)
    return headers


def export_spans(service: str) -> None:
    """Send this process's spans to the OTLP collector that the environment names, if it names one.

    OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER and their like mean what OpenTelemetry says.
    """
    if not any(os.environ.get(name) for name in ENDPOINTS):
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        log.warning("no traces are sent: %s; pip install 'guerdon[tracing]'", error)
        return
    # The environment's own name for the service wins.
    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: service}
    provider = TracerProvider(resource=Resource.create(named))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
