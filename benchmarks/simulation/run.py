"""A run of training: what the trainer asks, what passes the queue, and the figures that come out."""

import math
import random
from collections import Counter as Tally
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simulation.setup import Setup
from simulation.stations import Counter, Rollouts, Simulation, Station

#: Seconds for which Redis keeps a result: of a made-up request id, and of a score with a key, as without work ahead.
KEPT_S, KEYED_S = 60.0, 600.0


@dataclass
class Step:
    """When a step's rewards were there, and when it was learned."""

    rewarded: float = 0.0
    learned: float = 0.0


@dataclass(frozen=True)
class Request:
    """What passes the queue: of which service and group, bytes both ways, and CPU seconds of its tokens."""

    service: str
    group: int
    asked: float
    answered: float
    client_s: float


class Run:
    """A whole run of training."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.simulation = Simulation()
        self._random = random.Random(setup.seed)
        self.client = Station("client", setup.clients)
        self.redis = [Station(f"redis {index}" if index else "redis", 1) for index in range(setup.shards)]
        self.rollouts = Rollouts(self.simulation, setup)
        counts = {
            "math": setup.math_workers,
            "code": setup.code_workers,
            "process_reward": setup.prm_replicas,
        }
        self.workers = {name: Station(name, count) for name, count in counts.items() if count}
        self.trainer, self.learner = Station("trainer", 1), Station("prm learner", 1)
        #: Changes of the bytes that each Redis holds; most entries of each queue, waiting and in hand; the largest.
        self.bytes: list[list[tuple[float, float]]] = [[] for _ in self.redis]
        self.entries, self.most_entries = Tally[str](), Tally[str]()
        self.largest = 0.0
        self.steps: list[Step] = []
        self.requests = 0
        self._asked = self._open = 0
        #: Lengths of the groups that are finished, and of those taken for the batch.
        self._finished = deque[list[int]]()
        self._taken: list[list[int]] = []
        self._collecting = True

    def go(self) -> "Run":
        """Simulate it."""
        self._collect()
        self.simulation.run()
        return self

    def _collect(self) -> None:
        """Ask for what is missing and for what is ahead; take groups as they finish, of whichever step."""
        setup = self.setup
        while self._collecting:
            wanted = min(setup.groups * (1 + setup.ahead) - len(self._taken), setup.in_flight)
            while self._open < wanted and self._asked < setup.steps * setup.groups:
                self._asked += 1
                self._open += 1
                self._group(self._asked)
            if not self._finished:
                return
            self._taken.append(self._finished.popleft())
            self._open -= 1
            if len(self._taken) == setup.groups:
                self._collecting = False
                self._batch()

    def _group(self, group: int) -> None:
        setup = self.setup
        lengths = [self._length() for _ in range(setup.group_size)]
        verifiers = [name for name in self.workers if name != "process_reward"]

        def judged(left: list[str]) -> None:
            if not left:
                self._finished.append(lengths)
                self._collect()
                return
            last = Counter(len(lengths), lambda: judged(left[1:]))
            seconds = setup.math_s if left[0] == "math" else setup.code_s
            for length in lengths:
                self._score(left[0], group, seconds, length, last)

        tokens = sum(lengths)
        self._request(
            Request(
                "rollout",
                group,
                4.0 * setup.prompt_tokens + 500,
                12.0 * tokens + 400,
                tokens * setup.read_token_s,
            ),
            lambda then: self.simulation.after(setup.worker_s, lambda: self.rollouts.take(lengths, then)),
            lambda: judged(verifiers),
        )

    def _score(self, name: str, group: int, seconds: float, length: int, last: "Counter") -> None:
        """One response goes to a scorer; a PRM's answer has numbers for its tokens."""
        setup, prm = self.setup, name == "process_reward"
        client_s = length * (setup.write_token_s + prm * setup.read_token_s)
        request = Request(name, group, 4.0 * length + 500, prm * 8.0 * length + 400, client_s)
        work_s = seconds + setup.worker_s
        self._request(request, lambda then: self.simulation.serve(self.workers[name], work_s, then), last.one)

    def _request(
        self, one: "Request", work: Callable[[Callable[[], None]], None], then: Callable[[], None]
    ) -> None:
        """Client, Redis, worker, Redis, client. Redis holds an entry until its answer, and that for a while."""
        setup, simulation = self.setup, self.simulation
        shard = self._shard(one)
        held = self.bytes[shard]
        keyed = not setup.ahead and one.service in ("math", "code")
        client_s = (setup.client_s + one.client_s) / 2
        self.requests += 1
        self.largest = max(self.largest, one.asked, one.answered)

        def submitted() -> None:
            held.append((simulation.now, one.asked))
            self.entries[one.service] += 1
            self.most_entries[one.service] = max(self.most_entries[one.service], self.entries[one.service])
            work(lambda: simulation.serve(self.redis[shard], setup.redis_s / 2, completed))

        def completed() -> None:
            self.entries[one.service] -= 1
            held.append((simulation.now, one.answered - one.asked))
            held.append((simulation.now + (KEYED_S if keyed else KEPT_S), -one.answered))
            simulation.serve(self.client, client_s, then)

        def to_redis() -> None:
            simulation.serve(self.redis[shard], setup.redis_s / 2, submitted)

        simulation.serve(self.client, client_s, to_redis)

    def _shard(self, one: "Request") -> int:
        if self.setup.shard_by == "group":
            return one.group % self.setup.shards
        return ("rollout", "math", "code", "process_reward", "prm learner").index(
            one.service
        ) % self.setup.shards

    def _length(self) -> int:
        setup = self.setup
        middle = math.log(setup.tokens_mean) - setup.tokens_sigma**2 / 2
        return max(1, min(setup.tokens_most, round(self._random.lognormvariate(middle, setup.tokens_sigma))))

    def _batch(self) -> None:
        """Process rewards for a whole batch, which then their learner learns, and last the trainer."""
        setup, groups = self.setup, self._taken
        self._taken = []
        self.steps.append(Step(rewarded=self.simulation.now))
        if not setup.prm_replicas:
            self._update(groups)
            return
        last = Counter(setup.groups * setup.group_size, lambda: self._update(groups))
        for group, lengths in enumerate(groups):
            for length in lengths:
                seconds = (length + setup.prompt_tokens) / setup.prm_tokens_s
                self._score("process_reward", group, seconds, length, last)

    def _update(self, groups: list[list[int]]) -> None:
        setup = self.setup
        if not setup.prm_update_tokens_s:
            self._train()
            return
        tokens = sum(map(sum, groups))
        work_s = (tokens + setup.prompt_tokens * setup.groups * setup.group_size) / setup.prm_update_tokens_s
        self._request(
            Request(
                "prm learner",
                0,
                4.0 * tokens,
                8.0 * tokens,
                tokens * (setup.write_token_s + setup.read_token_s),
            ),
            lambda then: self.simulation.serve(self.learner, work_s, then),
            self._train,
        )

    def _train(self) -> None:
        self.simulation.serve(self.trainer, self.setup.train_s, self._learned)

    def _learned(self) -> None:
        self.steps[-1].learned = self.simulation.now
        self._collecting = len(self.steps) < self.setup.steps
        self.rollouts.update()
        self._collect()


@dataclass(frozen=True)
class Figures:
    """What a run came to. `use`, `p99_s` and `entries` by station or queue; bytes of the fullest Redis."""

    step_s: float
    rollouts_min: float
    requests_s: float
    trainer_idle: float
    use: dict[str, float]
    p99_s: dict[str, float]
    entries: dict[str, int]
    peak_bytes: float
    largest_bytes: float


def figures(run: Run) -> Figures:
    """Means over the whole run; with ahead, the first steps are those of an empty pipeline."""
    setup, total = run.setup, run.steps[-1].learned
    stations: dict[str, list[Station]] = {"rollout": run.rollouts.pods}
    for one in (run.client, *run.redis, *run.workers.values(), run.learner, run.trainer):
        stations[one.name] = [one]
    return Figures(
        step_s=total / setup.steps,
        rollouts_min=60 * setup.steps * setup.groups * setup.group_size / total,
        requests_s=run.requests / total,
        trainer_idle=1 - run.trainer.busy_s / total,
        use={
            name: sum(one.busy_s / total / one.servers for one in all) / len(all)
            for name, all in stations.items()
        },
        p99_s={
            name: quantile(run.rollouts.waits if name == "rollout" else all[0].waits, 0.99)
            for name, all in stations.items()
        },
        entries=dict(run.most_entries),
        peak_bytes=max(_peak(changes) for changes in run.bytes),
        largest_bytes=run.largest,
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
