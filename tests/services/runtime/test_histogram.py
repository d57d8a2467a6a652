"""A histogram that takes many equal observations at once."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as Reference

from guerdon_services.runtime.histogram import Histogram


def test_it_says_what_prometheus_own_histogram_says() -> None:
    bounds = (0.005, 0.01, 1, 300)
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    histogram = Histogram("waits_seconds", "How long", "operation", bounds, ours)
    reference = Reference("waits_seconds", "How long", ["operation"], buckets=bounds, registry=theirs)
    for operation, value, times in (
        ("score", 0.01, 3),
        ("score", 0.5, 64),
        ("score", 400, 1),
        ("update", 0, 2),
    ):
        histogram.labels(operation).observe(value, times)
        for _ in range(times):
            reference.labels(operation).observe(value)
    said = [line for line in generate_latest(theirs).decode().splitlines() if "_created" not in line]
    assert generate_latest(ours).decode().splitlines() == said


def test_what_was_never_observed_is_zero() -> None:
    registry = CollectorRegistry()
    Histogram("waits_seconds", "How long", "operation", (1,), registry).labels("score")
    lines = generate_latest(registry).decode().splitlines()
    assert 'waits_seconds_bucket{le="+Inf",operation="score"} 0.0' in lines
    assert 'waits_seconds_sum{operation="score"} 0.0' in lines
