"""Counts of what the services answered, how fast, and the failure budget."""

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

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
        self._clock = _PhaseClock()
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
    def phase(self, name: Literal["sampling", "scoring"]) -> Iterator[None]:
        """Within it one group more is being sampled or scored."""
        with self._lock:
            self._clock.move(name, 1)
        try:
            yield
        finally:
            with self._lock:
                self._clock.move(name, -1)

    def take_waits(self) -> dict[str, float]:
        """Seconds since the last call in which groups were sampled, and in which only rewards were missing."""
        with self._lock:
            return self._clock.take()

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


class _PhaseClock:
    """Splits time into sampling (any group still sampled) and waiting for rewards (groups only scored)."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()
        self._since = time.monotonic()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def move(self, name: str, change: int) -> None:
        now = time.monotonic()
        phase = next((phase for phase in ("sampling", "scoring") if self._open[phase]), "idle")
        self._seconds[phase] += now - self._since
        self._since = now
        self._open[name] += change

    def take(self) -> dict[str, float]:
        self.move("idle", 0)
        taken, self._seconds = self._seconds, defaultdict(float)
        return {"wait_rollouts_s": taken["sampling"], "wait_rewards_s": taken["scoring"]}


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
