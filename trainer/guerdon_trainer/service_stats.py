"""Counts of what the services answered, how fast, and the failure budget."""

import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from guerdon.types import Status
from guerdon_trainer.config import FailureConfig

#: Latest round trips kept per service for the percentiles.
_LATENCIES_KEPT = 20_000


class FailureBudgetExceeded(RuntimeError):
    """Too many responses got no reward for the run to be worth going on."""


@dataclass
class ServiceCounts:
    """One service: final statuses of items, statuses that were tried again, round trips in ms."""

    final: Counter[str] = field(default_factory=Counter)
    retried: Counter[str] = field(default_factory=Counter)
    latencies_ms: deque[float] = field(default_factory=lambda: deque(maxlen=_LATENCIES_KEPT))
    last_failure: str = ""

    def percentile_ms(self, fraction: float) -> float | None:
        """The round trip that `fraction` of the calls stay below; None before the first."""
        ordered = sorted(self.latencies_ms)
        return ordered[min(int(fraction * len(ordered)), len(ordered) - 1)] if ordered else None


class ServiceStats:
    """What every service answered over the whole run, resumes included.

    Written by the event loop of the services and read by the training thread.
    """

    def __init__(self, saved: dict[str, Any] | None = None) -> None:
        self._lock = threading.Lock()
        self._services: dict[str, ServiceCounts] = {}
        self._waits = _WaitClock()
        for name, counts in (saved or {}).items():
            self._services[name] = ServiceCounts(
                final=Counter(counts["final"]),
                retried=Counter(counts["retried"]),
                latencies_ms=deque(counts["latencies_ms"], maxlen=_LATENCIES_KEPT),
                last_failure=counts["last_failure"],
            )

    def answered(self, service: str, status: Status, reason: str = "") -> None:
        """Count the final status of one item."""
        with self._lock:
            counts = self._of(service)
            counts.final[status.value] += 1
            if status is not Status.OK:
                counts.last_failure = f"{status.value}: {reason}"

    def retried(self, service: str, status: Status, reason: str) -> None:
        """Count a failure that is tried again."""
        with self._lock:
            counts = self._of(service)
            counts.retried[status.value] += 1
            counts.last_failure = f"{status.value}: {reason}"

    def round_trip(self, service: str, seconds: float) -> None:
        """Record how long one call took."""
        with self._lock:
            self._of(service).latencies_ms.append(seconds * 1000)

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Within it one group more is being scored."""
        with self._lock:
            self._waits.move(scoring=1)
        try:
            yield
        finally:
            with self._lock:
                self._waits.move(scoring=-1)

    @contextmanager
    def waiting(self, missing: int) -> Iterator[None]:
        """Within it the training thread waits for so many groups."""
        with self._lock:
            self._waits.move(missing=missing)
        try:
            yield
        finally:
            with self._lock:
                self._waits.move(missing=-missing)

    def take_waits(self) -> dict[str, float]:
        """Seconds since the last call in which training waited for rollouts, and for nothing but rewards."""
        with self._lock:
            return self._waits.take()

    def failures(self) -> dict[str, dict[str, int]]:
        """Final failures by service and status."""
        with self._lock:
            return {
                name: {status: count for status, count in counts.final.items() if status != Status.OK}
                for name, counts in self._services.items()
            }

    def to_dict(self, *, latencies: bool = False) -> dict[str, Any]:
        """Plain data for reports; with `latencies` complete, for a checkpoint."""
        with self._lock:
            return {name: _plain(counts, latencies) for name, counts in sorted(self._services.items())}

    def _of(self, service: str) -> ServiceCounts:
        return self._services.setdefault(service, ServiceCounts())


def _plain(counts: ServiceCounts, latencies: bool) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "final": dict(counts.final),
        "retried": dict(counts.retried),
        "last_failure": counts.last_failure,
    }
    if latencies:
        return {**plain, "latencies_ms": list(counts.latencies_ms)}
    return {**plain, "p50_ms": counts.percentile_ms(0.5), "p99_ms": counts.percentile_ms(0.99)}


class _WaitClock:
    """Splits the time in which training waits: for rewards when every group it waits for is being scored already."""

    def __init__(self) -> None:
        self._scoring = 0
        self._missing = 0
        self._since = time.monotonic()
        self._seconds = {"wait_rollouts_s": 0.0, "wait_rewards_s": 0.0}

    def move(self, *, scoring: int = 0, missing: int = 0) -> None:
        now = time.monotonic()
        if self._missing:
            name = "wait_rewards_s" if self._scoring >= self._missing else "wait_rollouts_s"
            self._seconds[name] += now - self._since
        self._since = now
        self._scoring += scoring
        self._missing += missing

    def take(self) -> dict[str, float]:
        self.move()
        taken, self._seconds = self._seconds, dict.fromkeys(self._seconds, 0.0)
        return taken


class FailureBudget:
    """Watches the latest responses; too many of them without a reward end the run."""

    def __init__(self, config: FailureConfig, stats: ServiceStats) -> None:
        self._config = config
        self._stats = stats
        self._rewarded: deque[bool] = deque(maxlen=config.window)

    def add(self, rewarded: list[bool]) -> None:
        """Note which of a group's responses got their reward.

        Raises:
            FailureBudgetExceeded: the window is full and holds too many without.
        """
        self._rewarded.extend(rewarded)
        missing = self._rewarded.count(False)
        full = len(self._rewarded) == self._config.window
        if full and missing > self._config.max_fraction * len(self._rewarded):
            raise FailureBudgetExceeded(
                f"{missing} of the last {len(self._rewarded)} responses got no reward, more than the "
                f"{self._config.max_fraction:.0%} that failures.max_fraction allows. {self.explanation()}"
            )

    def explanation(self) -> str:
        """Which services failed, how, and the last reason each gave."""
        plain = self._stats.to_dict()
        parts = [
            f"{service}: {', '.join(f'{count} {status}' for status, count in failed.items())} "
            f"(last: {plain[service]['last_failure']})"
            for service, failed in self._stats.failures().items()
            if failed
        ]
        return "; ".join(parts) if parts else "No service reported a failure."
