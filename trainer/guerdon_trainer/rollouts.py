"""Rollouts and their rewards: the only file of the trainer that talks to services.

The clients run on an event loop in a thread of its own. Each prompt is one task: it asks for a group of rollouts and,
as soon as they are there, for all their outcome rewards at once. Groups finish in any order, and go on being sampled
and scored while the trainer's thread does something else.

A retryable failure is tried again a bounded number of times, with the same seed. After that it stays a failure: the
response has reward None, never 0.

Scores are asked for under a key, so that a trainer that was killed and started again finds over the queue what its
earlier attempt had scored already. The key names the run, the version of the policy and the position; the client adds
the content of each sample, its token ids included, so that no key can give a sample another one's score.
"""

import queue
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Self

from guerdon.rewards import counted, in_turn, or_backup
from guerdon.types import (
    GenerateResult,
    GenerateSample,
    Result,
    Sample,
    ServiceInfo,
    Status,
    failed,
)
from guerdon_trainer.config import RewardConfig, RunConfig, SourceConfig
from guerdon_trainer.groups import (
    Ask,
    Group,
    ProcessRewards,
    Response,
    RolloutError,
    as_asked,
    check_correctness,
    in_its_place,
    judged,
    of_one_version,
    sample_of,
)
from guerdon_trainer.process_rewards import ProcessRewardModel, process_reward_model
from guerdon_trainer.service_calls import LoopThread, ServiceCalls, ServiceClient, refusals_named
from guerdon_trainer.service_stats import FailureBudget, ServiceStats


class Rollouts:
    """Asks the services for groups and process rewards. A context manager: leaving it cancels what is open.

    `policy_version` is the newest version that was published: no rollout can be newer. `key` is the part of the
    scores' keys that names the run; without one every score is asked for anew.
    """

    def __init__(
        self,
        clients: Mapping[str, ServiceClient],
        config: RunConfig,
        stats: ServiceStats,
        *,
        policy_version: int = 0,
        key: str = "",
    ) -> None:
        self.policy_version = policy_version
        self._clients = clients
        self._config = config
        self._stats = stats
        self._key = key
        self._calls = ServiceCalls(config.failures, stats)
        self._budget = FailureBudget(config.failures, stats)
        self._model = process_reward_model(clients, config, self._calls, stats)
        self._loop = LoopThread()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.close(client.aclose() for client in self._clients.values())

    def opened(self) -> "OpenGroups":
        """An empty set of open groups."""
        return OpenGroups(self, self._stats)

    def start(self, ask: Ask) -> Future[Group]:
        """Begin to sample and score a group; the caller goes on."""
        return self._loop.start(self._complete(ask))

    def count(self, ask: Ask, group: Group) -> None:
        """Count in the failure budget which responses of a group got their reward.

        Raises:
            FailureBudgetExceeded: too many responses got no reward.
        """
        # A group that could not be sampled is as many responses without reward as were asked for.
        self._budget.add([r.reward is not None for r in group.responses] or [False] * ask.sampling.n)

    def explanation(self) -> str:
        """Which services failed so far, how, and the last reason each gave."""
        return self._budget.explanation()

    def all_groups(self, asks: Sequence[Ask]) -> list[Group]:
        """Every group, whatever its rewards, in the order of `asks`: an evaluation.

        Raises:
            FailureBudgetExceeded: too many responses got no reward.
        """
        opened = self.opened()
        groups: list[Group] = []
        for started, ask in enumerate(asks):
            if started >= self._config.rollout.groups_in_flight:
                groups.append(opened.take(len(opened)))
            opened.ask(ask)
        groups += [opened.take(len(opened)) for _ in range(len(opened))]
        place = {ask.position: number for number, ask in enumerate(asks)}
        return sorted(groups, key=lambda group: place[group.position])

    def process_rewards(
        self, groups: Sequence[Group], *, request_id: str, base_version: int
    ) -> ProcessRewards:
        """Score every response with the PRM, which learns from their outcomes first or afterwards.

        An update is one request, repeated under the same `request_id` until it is answered or the time limit is
        over: the PRM applies it once, to exactly `base_version`. Responses without outcome are left out.

        Raises:
            RolloutError: the PRM refused the request, did not answer in time, scored nothing, or other tokens.
        """
        rewards = self._loop.run(self._prm.rewards(groups, request_id, base_version))
        if not rewards.tokens:
            raise RolloutError(f"no response of the batch got process rewards. {self._budget.explanation()}")
        return rewards

    def process_scores(self, groups: Sequence[Group], *, version: int) -> ProcessRewards:
        """Score every response that has an outcome with the PRM, which learns nothing; `version` is what it is at.

        Raises:
            RolloutError: it scored other tokens.
        """
        return self._loop.run(self._prm.scores(groups, version))

    def process_version(self) -> int:
        """The PRM's current version; 0 without one."""
        return self._loop.run(self._prm.versions()).current if self._config.process else 0

    def greet(self, *, count: bool = True) -> dict[str, ServiceInfo]:
        """What every service says of itself; with `count` the answers count among those of the run.

        Raises:
            GuerdonError: one of them does not answer.
        """
        return {name: self._loop.run(self._greet(name, count)) for name in sorted(self._clients)}

    @property
    def _prm(self) -> ProcessRewardModel:
        if self._model is None:
            raise ValueError("the recipe has no process reward")
        return self._model

    async def _greet(self, name: str, count: bool) -> ServiceInfo:
        started = time.monotonic()
        with refusals_named(name):
            info = await self._clients[name].info()
        if count:
            self._stats.round_trip(name, time.monotonic() - started)
            self._stats.answered(name, Status.OK)
        return info

    async def _complete(self, ask: Ask) -> Group:
        generated = await self._generate(ask)
        if generated.status is not Status.OK:
            return Group(ask.position, ask.question, [], [], self.policy_version)
        with self._stats.scoring():
            responses = await self._judge(ask, generated)
        version = generated.rollouts[0].model_version
        return Group(ask.position, ask.question, generated.prompt_token_ids, responses, version)

    async def _generate(self, ask: Ask) -> GenerateResult:
        name = self._config.rollout.service
        prompt = GenerateSample(id=str(ask.position), prompt=ask.question.prompt, seed=ask.sampling.seed)

        async def call(prompts: list[GenerateSample], attempt: int) -> list[GenerateResult]:
            results = await self._clients[name].generate(
                prompts, ask.sampling, min_version=ask.oldest, timeout_s=self._config.failures.timeout_s
            )
            # What waited in the queue meanwhile may be sampled by a version that was published since.
            fresh = [of_one_version(result, ask.oldest, self.policy_version) for result in results]
            return [as_asked(result, ask.sampling.n) for result in fresh]

        def failure(prompt: GenerateSample, status: Status, reason: str) -> GenerateResult:
            return GenerateResult(id=prompt.id, status=status, reason=reason)

        return (await self._calls.each(name, [prompt], call, failure))[0]

    async def _judge(self, ask: Ask, generated: GenerateResult) -> list[Response]:
        samples = [sample_of(ask, generated, number) for number in range(len(generated.rollouts))]
        version = generated.rollouts[0].model_version
        key = f"{self._key}:{version}:{ask.position}" if self._key else None
        table = await in_turn(
            self._config.outcome_rewards,
            samples,
            lambda reward, asked: self._score(reward, asked, key, version),
        )
        responses = [
            judged(self._config, str(sample.id), rollout, results)
            for sample, rollout, results in zip(samples, generated.rollouts, table, strict=True)
        ]
        if self._config.counts_on_correctness:
            name = self._config.correctness_reward.name
            check_correctness(responses, name, self._config.counts_on_correctness)
        return responses

    async def _score(
        self, reward: RewardConfig, samples: Sequence[Sample], key: str | None, version: int | None = None
    ) -> list[Result]:
        """The service's results, and the backup's where it has no value."""
        results = await self._ask(reward, reward.name, reward.source, samples, key, version)
        lacking = [row for row, result in enumerate(results) if result.value is None]
        if reward.backup and lacking:
            asked = [samples[row] for row in lacking]
            instead = await self._ask(reward, reward.backup_name, reward.backup, asked, key, version)
            for row, result in zip(lacking, instead, strict=True):
                results[row] = or_backup(results[row], result)
        return results

    async def _ask(
        self,
        reward: RewardConfig,
        name: str,
        source: SourceConfig,
        samples: Sequence[Sample],
        key: str | None,
        version: int | None,
    ) -> list[Result]:
        async def call(samples: list[Sample], attempt: int) -> list[Result]:
            # A repetition is new work: under the key the queue would give the same failure again.
            results = await self._clients[name].score(
                samples,
                options=source.options,
                min_version=version if reward.follows_policy else None,
                timeout_s=self._config.failures.timeout_s,
                key=None if attempt else key,
            )
            return (
                [in_its_place(result) for result in results] if reward == self._config.injected else results
            )

        def failure(sample: Sample, status: Status, reason: str) -> Result:
            return failed(status, reason, id=sample.id)

        def final(result: Result) -> bool:
            return counted(reward, result) is not None

        return await self._calls.each(name, samples, call, failure, final)


class OpenGroups:
    """Groups that are being sampled or scored. They come back in the order in which they finish."""

    def __init__(self, rollouts: Rollouts, stats: ServiceStats) -> None:
        self._rollouts = rollouts
        self._stats = stats
        self._finished: queue.SimpleQueue[Future[Group]] = queue.SimpleQueue()
        self._open: dict[Future[Group], Ask] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def positions(self) -> list[int]:
        """The positions that were asked for and not taken, in the order of the prompts."""
        return sorted(ask.position for ask in self._open.values())

    def ask(self, ask: Ask) -> None:
        """Begin a group."""
        future = self._rollouts.start(ask)
        self._open[future] = ask
        future.add_done_callback(self._finished.put)

    def take(self, missing: int) -> Group:
        """The next group that has finished. `missing` says how many the caller still waits for, to time the wait.

        Raises:
            FailureBudgetExceeded: too many responses got no reward.
        """
        with self._stats.waiting(missing):
            done = self._finished.get()
        ask, group = self._open.pop(done), done.result()
        self._rollouts.count(ask, group)
        return group
