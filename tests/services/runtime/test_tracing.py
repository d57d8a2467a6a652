"""Traces: one tree of spans from the client's call through each door to the batch, here and over OTLP."""

import asyncio
import signal
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from queue import Queue
from types import ModuleType
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from guerdon import AsyncClient, InvalidRequest, Sample, tracing
from guerdon.queue import Producer

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = {"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-01"}
DOORS = {"http": "POST /v1/score", "grpc": "grpc score", "queue": "queue score"}


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """What this process's spans come to, clients' and services' alike."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "_tracer", provider.get_tracer("guerdon"))
    return exporter


def urls(served: Any, redis_url: str) -> dict[str, str]:
    return {"http": served.process.url, "grpc": f"grpc://{served.grpc}", "queue": redis_url}


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    spans = exporter.get_finished_spans()
    assert len({span.name for span in spans}) == len(spans), [span.name for span in spans]
    return {span.name: span for span in spans}


def own_id(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def trace_id(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id


def parent_id(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("door", DOORS)
async def test_one_trace_from_the_call_through_each_door_to_the_batch(
    serve: Any,
    scorers: ModuleType,
    redis_url: str,
    exporter: InMemorySpanExporter,
    until: Any,
    door: str,
    streamed: bool,
) -> None:
    async with serve(scorers.Echo(scorers.EchoSettings()), queue=redis_url) as served:
        async with AsyncClient(urls(served, redis_url)[door], service="echo") as client:
            if streamed:
                results = [result async for _, result in client.score_stream([Sample(id="a", response="2")])]
            else:
                results = await client.score([Sample(id="a", response="2")])
        await until(lambda: len(exporter.get_finished_spans()) == 3)
    assert [result.value for result in results] == [2.0]
    spans = by_name(exporter)
    call, request, batch = spans["guerdon.score"], spans[DOORS[door]], spans["execute"]
    assert (parent_id(call), parent_id(request), parent_id(batch)) == (
        None,
        own_id(call),
        own_id(request),
    )
    assert len({trace_id(span) for span in spans.values()}) == 1
    assert call.kind is SpanKind.CLIENT
    assert request.kind is (SpanKind.CONSUMER if door == "queue" else SpanKind.SERVER)
    assert dict(call.attributes or {})["guerdon.items"] == 1
    about = dict(request.attributes or {})
    assert about["guerdon.door"] == door
    assert about["guerdon.outcome"] == ("200" if door == "http" else "ok")
    assert about["guerdon.request_id"]
    assert dict(batch.attributes or {})["guerdon.batch_items"] == 1
    assert (call.start_time or 0) <= (request.start_time or 0) <= (batch.end_time or 0)


async def test_a_batch_is_in_the_trace_of_each_of_its_requests(
    serve: Any, scorers: ModuleType, exporter: InMemorySpanExporter, until: Any
) -> None:
    service = scorers.Echo(scorers.EchoSettings(max_items=2, max_wait_ms=60_000))
    async with (
        serve(service) as served,
        AsyncClient(served.process.url) as one,
        AsyncClient(served.process.url) as other,
    ):
        # Neither is run before the other has come.
        await asyncio.gather(one.score([Sample(response="1")]), other.score([Sample(response="2")]))
        await until(lambda: len(exporter.get_finished_spans()) == 6)
    batches = [span for span in exporter.get_finished_spans() if span.name == "execute"]
    assert len({trace_id(span) for span in batches}) == 2
    assert [dict(span.attributes or {})["guerdon.batch_items"] for span in batches] == [2, 2]


@pytest.mark.parametrize("door", DOORS)
async def test_a_refusal_is_marked_where_it_is_somebodys_fault(
    serve: Any,
    scorers: ModuleType,
    redis_url: str,
    exporter: InMemorySpanExporter,
    until: Any,
    door: str,
) -> None:
    async with serve(scorers.Echo(scorers.EchoSettings()), queue=redis_url) as served:
        async with AsyncClient(urls(served, redis_url)[door], service="echo") as client:
            if door == "queue":
                [result] = await client.score([Sample(response="1")], options={"scael": 1})
                assert "scael" in result.reason
            else:
                with pytest.raises(InvalidRequest, match="scael"):
                    await client.score([Sample(response="1")], options={"scael": 1})
        await until(lambda: len(exporter.get_finished_spans()) == 2)
    spans = by_name(exporter)
    assert spans[DOORS[door]].status.status_code is StatusCode.UNSET, "it was the caller's fault"
    expected = StatusCode.UNSET if door == "queue" else StatusCode.ERROR
    assert spans["guerdon.score"].status.status_code is expected


async def test_what_is_no_trace_begins_another_one(
    serve: Any, scorers: ModuleType, redis_url: str, exporter: InMemorySpanExporter, until: Any
) -> None:
    async with serve(scorers.Echo(scorers.EchoSettings()), queue=redis_url) as served:
        answer = await served.http.get("/v1/info", headers={"traceparent": "00-rubbish"})
        assert answer.status_code == 200
        producer = Producer(redis_url, "echo")
        await (await producer.submit("info", b"", trace="\x00 no trace"))
        await producer.close()
        await until(lambda: len(exporter.get_finished_spans()) == 2)
    assert all(span.parent is None for span in exporter.get_finished_spans())


async def test_strangers_name_no_span(
    serve: Any, scorers: ModuleType, exporter: InMemorySpanExporter
) -> None:
    async with serve(scorers.Echo(scorers.EchoSettings())) as served:
        assert (await served.http.get("/secret/path")).status_code == 404
        for probe in ("/healthz", "/readyz", "/metrics"):
            assert (await served.http.get(probe)).status_code == 200
    assert [span.name for span in exporter.get_finished_spans()] == ["GET other"]


class _Collector(BaseHTTPRequestHandler):
    bodies: "Queue[bytes]"

    def do_POST(self) -> None:
        """Take what an exporter sends."""
        self.bodies.put(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> "Generator[Queue[bytes]]":
    """An OTLP collector that the environment names; what comes are protobuf messages."""
    bodies: Queue[bytes] = Queue()
    handler = type("Handler", (_Collector,), {"bodies": bodies})
    with HTTPServer(("127.0.0.1", 0), handler) as server, ThreadPoolExecutor(1) as thread:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        thread.submit(server.serve_forever)
        yield bodies
        server.shutdown()


def test_a_service_sends_its_spans_to_a_collector(spawn: Any, collector: "Queue[bytes]") -> None:
    child = spawn("Echo")
    child.wait_ready()
    body = {"samples": [{"response": "2"}]}
    headers = {**PARENT, "X-Request-Id": "step-3"}
    answer = httpx.post(f"{child.http}/v1/score", json=body, headers=headers, trust_env=False, timeout=60)
    assert answer.json()["results"][0]["value"] == 2.0
    child.process.send_signal(signal.SIGTERM)
    assert child.wait() == 0
    sent = ExportTraceServiceRequest()
    while not collector.empty():
        sent.MergeFromString(collector.get())
    [resource] = {
        one.value.string_value
        for spans in sent.resource_spans
        for one in spans.resource.attributes
        if one.key == "service.name"
    }
    assert resource == "guerdon-echo"
    spans = {
        span.name: span
        for group in sent.resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    }
    assert set(spans) == {"POST /v1/score", "execute"}
    assert {span.trace_id.hex() for span in spans.values()} == {TRACE_ID}
    assert spans["POST /v1/score"].parent_span_id.hex() == "b7ad6b7169203331"
    named = {one.key: one.value.string_value for one in spans["POST /v1/score"].attributes}
    assert named["guerdon.request_id"] == "step-3"


def test_a_collector_that_is_away_stops_nobody(spawn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    child = spawn("Echo")
    child.wait_ready()
    answer = httpx.post(
        f"{child.http}/v1/score",
        json={"samples": [{"response": "2"}]},
        headers=PARENT,
        trust_env=False,
        timeout=60,
    )
    assert answer.json()["results"][0]["value"] == 2.0
    child.process.send_signal(signal.SIGTERM)
    assert child.wait(120) == 0
