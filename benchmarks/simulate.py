"""What a large run asks of the services, simulated: rates, waits, Redis, and what is full first.

    python benchmarks/simulate.py [--preset laptop|pod|thousand] [key=value ...] [--sweep key=v1,v2,...]

Discrete events, one for each thing that happens to a request. A step asks `groups` prompts for `group_size` rollouts
each; a group whose rollouts are done is verified and scored; when enough groups are there the trainer learns, and
publishes. With ahead=1 the next step's prompts are asked while it learns. A request passes the trainer's client (one
process), a Redis, a worker, the Redis again and the client again. Times are parameters; the defaults are what the
benchmarks of this repository measured, where they could (docs/scale.md says which). Nothing here needs a service.
"""

import argparse
import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace

#: Seconds for which Redis keeps a result: of a made-up request id, and of a score with a key, as without work ahead.
KEPT_S, KEYED_S = 60.0, 600.0


@dataclass(frozen=True)
class Setup:
    """One run. Seconds, tokens and bytes."""

    steps: int = 3
    groups: int = 32
    group_size: int = 8
    ahead: int = 0
    #: Groups asked and not yet used at the same time, of all steps (`rollout.groups_in_flight`).
    in_flight: int = 256
    #: Lognormal lengths of responses, cut at the most.
    tokens_mean: float = 1000.0
    tokens_sigma: float = 0.7
    tokens_most: int = 8192
    prompt_tokens: int = 200
    #: Sequences that all rollout pods decode together, and seconds of each for a token.
    rollout_slots: int = 64
    token_s: float = 0.02
    #: Programs that all pods of the verifier run at once, and CPU seconds of one.
    math_workers: int = 2
    math_s: float = 1 / 3600
    #: A second verifier, such as `code`, that takes its share of samples; 0 workers: none.
    code_workers: int = 0
    code_s: float = 0.25
    #: Scoring replicas, and tokens each scores in a second; 0: no process rewards.
    prm_replicas: int = 1
    prm_tokens_s: float = 40_000.0
    #: One learner, which takes the whole batch at once.
    prm_update_tokens_s: float = 0.0
    #: The trainer's own time for a batch, and from the publication until rollouts have the weights.
    train_s: float = 30.0
    publish_s: float = 5.0
    #: CPU of the trainer's client, of Redis and of the worker's queue for a request, both ways together.
    client_s: float = 0.00029
    redis_s: float = 0.00016
    worker_s: float = 0.00032
    #: Processes that the client's work is spread over; Redis servers, by service or by group.
    clients: int = 1
    shards: int = 1
    shard_by: str = "service"
    seed: int = 0


#: A host, one node of 8 GPUs, and 1,000 GPUs: 512 train, 448 sample (112 replicas of 4), 40 score.
PRESETS = {
    "laptop": Setup(
        rollout_slots=64, token_s=0.03, tokens_mean=12, tokens_most=12, prm_tokens_s=4000, train_s=2
    ),
    "pod": Setup(
        groups=256, group_size=8, tokens_mean=1500, rollout_slots=4 * 128, train_s=120, math_workers=8
    ),
    "thousand": Setup(
        groups=2048,
        group_size=16,
        ahead=1,
        in_flight=4096,
        tokens_mean=4000,
        tokens_most=16_384,
        rollout_slots=112 * 256,
        token_s=0.03,
        math_workers=64,
        prm_replicas=40,
        train_s=240,
        publish_s=30,
    ),
}


@dataclass
class Station:
    """Servers behind one queue, first come first served."""

    name: str
    servers: int
    busy: int = 0
    busy_s: float = 0.0
    most_waiting: int = 0
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
        station.most_waiting = max(station.most_waiting, len(station.waiting))

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


@dataclass
class Step:
    """When a step was asked, had its rewards, and was learned."""

    asked: float
    rewarded: float = 0.0
    learned: float = 0.0


class Run:
    """A whole run of training."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.simulation = Simulation()
        self._random = random.Random(setup.seed)
        self.client = Station("client", setup.clients)
        self.redis = [Station(f"redis {index}" if index else "redis", 1) for index in range(setup.shards)]
        self.workers = {
            name: Station(name, count)
            for name, count in (
                ("rollout", setup.rollout_slots),
                ("math", setup.math_workers),
                ("code", setup.code_workers),
                ("process_reward", setup.prm_replicas),
            )
            if count
        }
        self.trainer = Station("trainer", 1)
        #: Changes of the bytes that each Redis holds.
        self.bytes: list[list[tuple[float, float]]] = [[] for _ in self.redis]
        self._groups_in_flight = 0
        self._groups_done = 0
        self._groups_waiting = deque[Callable[[], None]]()
        self.steps: list[Step] = []
        self._ready: set[int] = set()

    def go(self) -> "Run":
        """Simulate it."""
        for index in range(min(self.setup.ahead + 1, self.setup.steps)):
            self._ask(index)
        self.simulation.run()
        return self

    def _ask(self, index: int) -> None:
        self.steps.append(Step(self.simulation.now))
        for group in range(self.setup.groups):
            self._groups_waiting.append(lambda group=group: self._group(group))
        self._admit()

    def _admit(self) -> None:
        while self._groups_waiting and self._groups_in_flight < self.setup.in_flight:
            self._groups_in_flight += 1
            self._groups_waiting.popleft()()

    def _finished(self) -> None:
        """A batch is made of the groups that finish first, of whichever step they were asked."""
        self._groups_in_flight -= 1
        self._groups_done += 1
        if self._groups_done % self.setup.groups == 0:
            self._rewarded(self._groups_done // self.setup.groups - 1)
        self._admit()

    def _group(self, group: int) -> None:
        setup = self.setup
        lengths = [self._length() for _ in range(setup.group_size)]
        scorers = [name for name in self.workers if name != "rollout"]
        scored = Counter(len(lengths) * len(scorers), self._finished)

        def sampled() -> None:
            for name in scorers:
                for length in lengths:
                    seconds = {"math": setup.math_s, "code": setup.code_s}.get(name)
                    if seconds is None:
                        seconds = (length + setup.prompt_tokens) / setup.prm_tokens_s
                    answer = 8.0 * length + 400 if name == "process_reward" else 400.0
                    self._request(name, group, seconds, 4.0 * length + 500, answer, scored.one)

        rollouts = Counter(len(lengths), sampled)
        for length in lengths:
            size = 4.0 * setup.prompt_tokens + 500
            self._request("rollout", group, length * setup.token_s, size, 12.0 * length + 400, rollouts.one)

    def _request(
        self, name: str, group: int, seconds: float, asked: float, answered: float, then: Callable[[], None]
    ) -> None:
        """Client, Redis, worker, Redis, client. Redis holds an entry until its answer, and that for a while."""
        setup, simulation = self.setup, self.simulation
        shard = self._shard(name, group)
        held = self.bytes[shard]
        kept_s = KEPT_S if name == "rollout" or setup.ahead else KEYED_S

        def submitted() -> None:
            held.append((simulation.now, asked))
            simulation.serve(self.workers[name], seconds + setup.worker_s, worked)

        def worked() -> None:
            simulation.serve(self.redis[shard], setup.redis_s / 2, completed)

        def completed() -> None:
            held.append((simulation.now, answered - asked))
            held.append((simulation.now + kept_s, -answered))
            simulation.serve(self.client, setup.client_s / 2, then)

        simulation.serve(
            self.client,
            setup.client_s / 2,
            lambda: simulation.serve(self.redis[shard], setup.redis_s / 2, submitted),
        )

    def _shard(self, name: str, group: int) -> int:
        if self.setup.shard_by == "group":
            return group % self.setup.shards
        return list(self.workers).index(name) % self.setup.shards

    def _length(self) -> int:
        setup = self.setup
        middle = math.log(setup.tokens_mean) - setup.tokens_sigma**2 / 2
        return max(1, min(setup.tokens_most, round(self._random.lognormvariate(middle, setup.tokens_sigma))))

    def _rewarded(self, index: int) -> None:
        self.steps[index].rewarded = self.simulation.now
        self._ready.add(index)
        self._learn(index)

    def _learn(self, index: int) -> None:
        """Steps are learned in order."""
        setup = self.setup
        if index not in self._ready or (index and not self.steps[index - 1].learned):
            return
        self._ready.discard(index)
        tokens = setup.groups * setup.group_size * (setup.tokens_mean + setup.prompt_tokens)
        update_s = tokens / setup.prm_update_tokens_s if setup.prm_update_tokens_s else 0.0
        self.simulation.serve(self.trainer, setup.train_s + update_s, lambda: self._learned(index))

    def _learned(self, index: int) -> None:
        self.steps[index].learned = self.simulation.now
        following = index + 1 + self.setup.ahead
        if following < self.setup.steps:
            self.simulation.after(self.setup.publish_s, lambda: self._ask(following))
        if index + 1 < len(self.steps):
            self._learn(index + 1)


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


@dataclass(frozen=True)
class Figures:
    """What a run came to. `use` and `p99_s` by station; `peak_bytes` of the fullest Redis."""

    step_s: float
    rollouts_min: float
    requests_s: float
    trainer_idle: float
    use: dict[str, float]
    p99_s: dict[str, float]
    waiting: dict[str, int]
    peak_bytes: float


def figures(run: Run) -> Figures:
    """Means over the whole run; with ahead, the first steps are those of an empty pipeline."""
    setup, total = run.setup, run.steps[-1].learned
    stations = [run.client, *run.redis, *run.workers.values(), run.trainer]
    served = sum(len(station.waits) for station in run.workers.values())
    return Figures(
        step_s=total / setup.steps,
        rollouts_min=60 * setup.steps * setup.groups * setup.group_size / total,
        requests_s=served / total,
        trainer_idle=1 - run.trainer.busy_s / total,
        use={one.name: one.busy_s / total / one.servers for one in stations},
        p99_s={one.name: quantile(one.waits, 0.99) for one in stations},
        waiting={one.name: one.most_waiting for one in stations},
        peak_bytes=max(_peak(changes) for changes in run.bytes),
    )


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which so large a share lies; 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _peak(changes: list[tuple[float, float]]) -> float:
    held = most = 0.0
    for _, change in sorted(changes):
        held += change
        most = max(most, held)
    return most


def changed(setup: Setup, words: Sequence[str]) -> Setup:
    """A setup with `key=value` words.

    Raises:
        SystemExit: an unknown key, or a value that is no number.
    """
    kinds = {one.name: one.type for one in fields(Setup)}
    for word in words:
        key, _, text = word.partition("=")
        if key not in kinds:
            raise SystemExit(f"{key!r} is no parameter; there are {', '.join(kinds)}")
        try:
            value = {"int": int, "float": float, "str": str}[
                str(getattr(kinds[key], "__name__", kinds[key]))
            ](text)
        except ValueError:
            raise SystemExit(f"{key} takes a number, not {text!r}") from None
        setup = replace(setup, **{key: value})
    return setup


def main() -> None:
    """Print the figures of one setup, or a line for each value of a sweep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("changes", nargs="*", metavar="key=value")
    parser.add_argument("--preset", choices=PRESETS, default="pod")
    parser.add_argument("--sweep", metavar="key=v1,v2,...", help="one line for each value")
    arguments = parser.parse_args()
    setup = changed(PRESETS[arguments.preset], arguments.changes)
    key, _, values = (arguments.sweep or "").partition("=")
    for value in values.split(","):
        found = figures(Run(changed(setup, [f"{key}={value}"] if key else [])).go())
        full = max((name for name in found.use if name != "trainer"), key=lambda name: found.use[name])
        print(
            f"{f'{key}={value}: ' if key else ''}step {found.step_s:.0f} s, {found.rollouts_min:,.0f} rollouts/min, "
            f"{found.requests_s:,.0f} requests/s, trainer idle {found.trainer_idle:.0%}, "
            f"Redis peak {found.peak_bytes / 2**20:,.0f} MiB, fullest: {full} {found.use[full]:.0%}"
        )
        if not key:
            print(f"{'station':16} {'in use':>8} {'p99 wait s':>11} {'most waiting':>13}")
            for name, use in found.use.items():
                print(f"{name:16} {use:8.1%} {found.p99_s[name]:11.3f} {found.waiting[name]:13,}")


if __name__ == "__main__":
    main()
