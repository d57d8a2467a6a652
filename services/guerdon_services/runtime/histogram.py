"""A histogram that takes many equal observations at once, as the items of one request in one batch are."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class Counts:
    """What was observed under one label. Belongs to the event loop: nothing here is locked."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value` so many times."""
        self._sum += value * times
        self._counts[bisect_left(self._bounds, value)] += times

    def added_to(self, family: HistogramMetricFamily, label: str) -> None:
        """Publish what was observed until now."""
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        family.add_metric([label], buckets, self._sum)


class Histogram(Collector):
    """One histogram with one label; `bounds` are the upper ends of its buckets."""

    def __init__(
        self, name: str, documentation: str, label: str, bounds: Sequence[float], registry: CollectorRegistry
    ) -> None:
        self._about = (name, documentation)
        self._label = label
        self._bounds = tuple(bounds)
        self._counts: dict[str, Counts] = {}
        registry.register(self)

    def labels(self, value: str) -> Counts:
        """What is counted under this value of the label."""
        return self._counts.setdefault(value, Counts(self._bounds))

    def collect(self) -> Iterable[Metric]:
        """The whole histogram, as Prometheus wants it."""
        name, documentation = self._about
        family = HistogramMetricFamily(name, documentation, labels=[self._label])
        for value, counts in self._counts.items():
            counts.added_to(family, value)
        return [family]
