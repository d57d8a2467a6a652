"""The clock, servers behind a queue, and the rollout pods."""

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from simulation.setup import Setup


@dataclass
class Station:
    """Servers behind one queue, first come first served."""

    name: str
    servers: int
    busy: int = 0
    busy_s: float = 0.0
    waits: list[float] = field(default_factory=list[float])
    waiting: deque[tuple[float, float, Callable[[], None]]] = field(
        default_factory=deque[tuple[float, float, Callable[[], None]]]
    )


class Simulation:
    """The clock, the events, the stations."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        """Have something happen later."""
        heapq.heappush(self._events, (self.now + seconds, next(self._order), what))

    def serve(self, station: Station, seconds: float, then: Callable[[], None]) -> None:
        """Stand in line, be served for so long, go on."""
        station.waiting.append((self.now, seconds, then))
        self._next(station)

    def run(self) -> None:
        """Until nothing is left to happen."""
        while self._events:
            self.now, _, what = heapq.heappop(self._events)
            what()

    def _next(self, station: Station) -> None:
        if station.busy == station.servers or not station.waiting:
            return
        came, seconds, then = station.waiting.popleft()
        station.waits.append(self.now - came)
        station.busy += 1
        station.busy_s += seconds

        def done() -> None:
            station.busy -= 1
            self._next(station)
            then()

        self.after(seconds, done)


class Counter:
    """Calls something when it has been told so often."""

    def __init__(self, count: int, then: Callable[[], None]) -> None:
        self._left = count
        self._then = then

    def one(self) -> None:
        """One more."""
        self._left -= 1
        if not self._left:
            self._then()


class Rollouts:
    """The rollout service: pods that take groups from one queue, and stop taking them while new weights come."""

    def __init__(self, simulation: Simulation, setup: Setup) -> None:
        self._simulation, self._setup = simulation, setup
        self.pods = [Station("rollout", setup.rollout_slots) for _ in range(setup.rollout_pods)]
        self._closed: set[int] = set()
        self._load = [0] * len(self.pods)
        self._queue = deque[tuple[float, list[int], Callable[[], None]]]()
        #: Seconds that each group waited for a pod.
        self.waits: list[float] = []

    def take(self, lengths: list[int], then: Callable[[], None]) -> None:
        """Sample a group."""
        self._queue.append((self._simulation.now, lengths, then))
        self._dispatch()

    def update(self) -> None:
        """New weights are there. A run without work ahead asks for nothing that older ones could answer."""
        if self._setup.on_update == "keep" and self._setup.ahead:
            return
        self._closed = set(range(len(self.pods)))
        for pod in list(self._closed):
            self._reload(pod)

    def _reload(self, pod: int) -> None:
        def open_again() -> None:
            self._closed.discard(pod)
            self._dispatch()

        if pod in self._closed and not self._load[pod]:
            self._simulation.after(self._setup.publish_s, open_again)

    def _dispatch(self) -> None:
        """Groups go to the pod that has least to do, as long as one has a free slot."""
        while self._queue:
            takes = [pod for pod in range(len(self.pods)) if pod not in self._closed]
            pod = min(takes, key=self._load.__getitem__, default=None)
            if pod is None or self._load[pod] >= self._setup.rollout_slots:
                return
            came, lengths, then = self._queue.popleft()
            self.waits.append(self._simulation.now - came)
            self._load[pod] += len(lengths)
            last = Counter(len(lengths), then)
            for length in lengths:
                seconds = length * self._setup.token_s
                self._simulation.serve(
                    self.pods[pod], seconds, lambda pod=pod, last=last: self._ended(pod, last)
                )

    def _ended(self, pod: int, last: "Counter") -> None:
        self._load[pod] -= 1
        self._reload(pod)
        last.one()
        self._dispatch()
