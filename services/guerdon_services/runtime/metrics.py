"""Prometheus metrics of one process, in a registry of their own."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from guerdon.queue import QueueStats
from guerdon.types import Status
from guerdon_services.runtime import histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Bucket bounds in seconds: from a cached verdict to a long generation.
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
#: Operations that metrics know by name.
_OPERATIONS = frozenset({"score", "generate", "update", "versions", "info"})
_ITEMS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class OperationMetrics:
    """The metrics of one operation (score, generate or update)."""

    pending: Gauge
    inflight: Gauge
    batch_items: Histogram
    queue_seconds: histogram.Counts
    exec_seconds: Histogram
    cancelled: Counter
    items: dict[Status, Counter] = field(default_factory=dict[Status, Counter])


class Metrics:
    """Every metric of the process; docs/operations.md says what each means."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        self.requests = self._counter(
            "requests_total",
            "Requests by door (http, grpc, queue) and outcome (ok, cancelled, or why it was refused)",
            ["door", "operation", "outcome"],
        )
        self.ready = self._gauge("ready", "1 while the service takes work")
        self.model_version = self._gauge("model_version", "Version of the weights that answer now")
        self.worker_connected = self._gauge("worker_connected", "1 while the queue worker reaches Redis")
        self.worker_entries = self._counter(
            "worker_entries_total", "Queue entries answered, by status, and those handed back", ["status"]
        )
        self.worker_wait_seconds = self._histogram(
            "worker_wait_seconds", "Submission of a queue entry until it was taken here", _SECONDS, []
        )
        self.worker_redeliveries = self._counter(
            "worker_redeliveries_total", "Queue entries taken that another worker died over, or hung"
        )
        self._queue_entries = self._gauge("queue_entries", "Entries: queued, pending, dead", ["state"])
        self._queue_oldest_seconds = self._gauge("queue_oldest_seconds", "Age of the oldest unanswered entry")
        self._queue_workers = self._gauge("queue_workers", "Live workers of the queue")
        by_operation = ["operation"]
        self._items = self._counter("items_total", "Items answered, by status", ["operation", "status"])
        self._cancelled = self._counter(
            "cancelled_items_total", "Items that nobody waited for any more before they started", by_operation
        )
        self._pending = self._gauge("pending_items", "Items admitted and not started", by_operation)
        self._inflight = self._gauge("inflight_batches", "Batches that run now", by_operation)
        self._queue_seconds = histogram.Histogram(
            "guerdon_queue_seconds",
            "Admission to start of execution",
            *("operation", _SECONDS, self.registry),
        )
        self._exec_seconds = self._histogram("exec_seconds", "Execution of a batch", _SECONDS)
        self._batch_items = self._histogram("batch_items", "Items in a batch", _ITEMS)

    def operation(self, name: str) -> OperationMetrics:
        """The metrics of operation `name`, with every status present from the start."""
        return OperationMetrics(
            pending=self._pending.labels(name),
            inflight=self._inflight.labels(name),
            batch_items=self._batch_items.labels(name),
            queue_seconds=self._queue_seconds.labels(name),
            exec_seconds=self._exec_seconds.labels(name),
            cancelled=self._cancelled.labels(name),
            items={status: self._items.labels(name, status.value) for status in Status},
        )

    def describe(self, service: str, release: str, device_memory: Callable[[], dict[str, int]]) -> None:
        """Say whose metrics these are, and ask for its device's memory whenever they are read."""
        self._gauge(
            "service_info", "1, with the name and version of the service", ["service", "version"]
        ).labels(service, release).set(1)
        self.registry.register(_DeviceMemory(device_memory))

    def queue_seen(self, stats: QueueStats) -> None:
        """Publish a look at the whole queue."""
        for state, count in (("queued", stats.queued), ("pending", stats.pending), ("dead", stats.dead)):
            self._queue_entries.labels(state).set(count)
        self._queue_oldest_seconds.set(stats.oldest_ms / 1000)
        self._queue_workers.set(stats.workers)

    def refused(self, door: str, operation: str, outcome: str) -> None:
        """Count a request that a door refused before anything read it."""
        # What strangers ask for must not become labels.
        known = operation if operation in _OPERATIONS else "other"
        self.requests.labels(door, known, outcome).inc()

    def exposition(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)

    def _counter(self, name: str, documentation: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(f"guerdon_{name}", documentation, labels, registry=self.registry)

    def _gauge(self, name: str, documentation: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(f"guerdon_{name}", documentation, labels, registry=self.registry)

    def _histogram(
        self, name: str, documentation: str, buckets: Sequence[float], labels: Sequence[str] = ("operation",)
    ) -> Histogram:
        return Histogram(f"guerdon_{name}", documentation, labels, buckets=buckets, registry=self.registry)


class _DeviceMemory(Collector):
    """Nothing on a machine without an accelerator."""

    def __init__(self, read: Callable[[], dict[str, int]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "guerdon_device_memory_bytes",
            "Memory of the accelerator: allocated, reserved, free",
            labels=["state"],
        )
        for state, size in self._read().items():
            family.add_metric([state], size)
        return [family]

    def describe(self) -> Iterable[Metric]:
        # Registering must not ask the device.
        return []
