"""Rollouts and their rewards: the only file of the trainer that talks to services.

The clients run on an event loop in a thread of its own. Each prompt is one task: it asks for a group of rollouts and,
as soon as they are there, for all their outcome rewards at once; groups finish in any order. A group the filter
rejects is replaced by the next prompt, so a batch always consists of the first prompts that pass, whatever the order
of their completion: a resumed run meets the same batch again.

A retryable failure is tried again a bounded number of times, with the same seed. After that it stays a failure: the
response has reward None, never 0.
"""

import asyncio
import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, Self

from guerdon.client import AsyncClient
from guerdon.errors import ServiceFailure
from guerdon.types import (
    GenerateResult,
    GenerateSample,
    Options,
    Result,
    Rollout,
    Sample,
    Sampling,
    ServiceInfo,
    Status,
    UpdateRequest,
    UpdateResponse,
    VersionsResponse,
    failed,
)
from guerdon_trainer.config import RewardConfig, RunConfig
from guerdon_trainer.questions import Question
from guerdon_trainer.service_calls import LoopThread, ServiceCalls
from guerdon_trainer.service_stats import FailureBudget, ServiceStats


class RolloutError(RuntimeError):
    """A step cannot be completed; the message says what the services answered."""


class ServiceClient(Protocol):
    """What the trainer needs of `guerdon.AsyncClient`."""

    async def score(
        self,
        samples: Sequence[Sample],
        *,
        options: Options | None = None,
        min_version: int | None = None,
        timeout_s: float | None = None,
    ) -> list[Result]: ...

    async def generate(
        self,
        samples: Sequence[GenerateSample],
        sampling: Sampling,
        *,
        min_version: int | None = None,
        timeout_s: float | None = None,
    ) -> list[GenerateResult]: ...

    async def update(self, request: UpdateRequest, *, timeout_s: float | None = None) -> UpdateResponse: ...

    async def versions(self) -> VersionsResponse: ...

    async def info(self) -> ServiceInfo: ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True)
class Ask:
    """One prompt to sample a group for. `position` in the prompt stream orders the groups of a batch."""

    position: int
    question: Question
    sampling: Sampling
    policy_version: int


@dataclass(frozen=True)
class Response:
    """One rollout with what each outcome service said of it.

    `outcome` is its correctness, the first outcome reward; `reward` the weighted sum of all, None when any has
    no value.
    """

    id: str
    rollout: Rollout
    results: dict[str, Result]
    outcome: float | None
    reward: float | None


@dataclass(frozen=True)
class Group:
    """The responses to one prompt, all of one policy version; empty when sampling failed for good."""

    position: int
    question: Question
    prompt_token_ids: list[int]
    responses: list[Response]
    policy_age: int = 0


@dataclass(frozen=True)
class ProcessRewards:
    """Token rewards by response id (absent where the PRM gave none), its version afterwards and its metrics."""

    tokens: dict[str, list[float]]
    version: int
    metrics: dict[str, float]


def connect(config: RunConfig, redis_url: str) -> dict[str, ServiceClient]:
    """A client over the queue for every service that the recipe uses or starts.

    The clients themselves do not retry: failures are repeated, and counted, here.
    """
    names = {config.rollout.service, *(reward.service for reward in config.rewards), *config.services}
    queues = {name: service.queue or name for name, service in config.services.items()}
    timeout_s = config.failures.timeout_s
    return {
        name: AsyncClient(redis_url, service=queues.get(name, name), timeout_s=timeout_s, retries=0)
        for name in sorted(names)
    }


class Rollouts:
    """Asks the services for groups and process rewards. A context manager: leaving it cancels what is open."""

    def __init__(self, clients: Mapping[str, ServiceClient], config: RunConfig, stats: ServiceStats) -> None:
        self._clients = clients
        self._config = config
        self._stats = stats
        self._calls = ServiceCalls(config.failures, stats)
        self._budget = FailureBudget(config.failures, stats)
        self._loop = LoopThread()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.close(client.aclose() for client in self._clients.values())

    def groups(self, asks: Iterator[Ask], count: int, keep: Callable[[Group], bool]) -> Iterator[Group]:
        """Yield `count` groups that `keep` accepts, in the order in which they finish.

        They are the first `count` acceptable ones in the order of `asks`: as many prompts are asked for as groups
        are missing, and one more for each rejected. Fewer come when the refill budget is spent and the recipe says
        `when_spent: train`.

        Raises:
            RolloutError: the refill budget is spent.
            FailureBudgetExceeded: too many responses got no reward.
        """
        finished: queue.SimpleQueue[Future[Group]] = queue.SimpleQueue()
        open_groups: dict[Future[Group], Ask] = {}
        asked, kept = 0, 0
        most = int(self._config.rollout.refill_budget * count)
        try:
            while kept < count:
                room = min(count - kept, self._config.rollout.groups_in_flight) - len(open_groups)
                for ask in islice(asks, max(0, min(room, most - asked))):
                    future = self._loop.start(self._complete(ask))
                    open_groups[future] = ask
                    future.add_done_callback(finished.put)
                    asked += 1
                if not open_groups:
                    self._accept_partial(kept, asked, count)
                    return
                done = finished.get()
                ask, group = open_groups.pop(done), done.result()
                # A group that could not be sampled is as many responses without reward as were asked for.
                self._budget.add([r.reward is not None for r in group.responses] or [False] * ask.sampling.n)
                if keep(group):
                    kept += 1
                    yield group
        finally:
            for future in open_groups:
                future.cancel()

    def all_groups(self, asks: Sequence[Ask]) -> list[Group]:
        """Every group, whatever its rewards, in the order of `asks`: an evaluation."""
        groups = self.groups(iter(asks), len(asks), lambda group: True)
        return sorted(groups, key=lambda group: group.position)

    def process_rewards(
        self, groups: Sequence[Group], *, request_id: str, base_version: int
    ) -> ProcessRewards:
        """Score every response with the PRM, which learns from their outcomes first or afterwards.

        An update is one request, repeated under the same `request_id` until it is answered or the time limit is
        over: the PRM applies it once, to exactly `base_version`. Responses without outcome are left out.

        Raises:
            RolloutError: the PRM refused the request, did not answer in time, scored nothing, or other tokens.
        """
        rewards = self._loop.run(self._process_rewards(groups, request_id, base_version))
        if not rewards.tokens:
            raise RolloutError(f"no response of the batch got process rewards. {self._budget.explanation()}")
        return rewards

    def process_version(self) -> int:
        """The PRM's current version; 0 without one."""
        reward = self._config.process
        return self._loop.run(self._clients[reward.service].versions()).current if reward else 0

    def greet(self) -> dict[str, ServiceInfo]:
        """What every service says of itself.

        Raises:
            GuerdonError: one of them does not answer.
        """
        return {name: self._loop.run(self._greet(name)) for name in sorted(self._clients)}

    async def _greet(self, name: str) -> ServiceInfo:
        started = time.monotonic()
        info = await self._clients[name].info()
        self._stats.round_trip(name, time.monotonic() - started)
        self._stats.answered(name, Status.OK)
        return info

    def _accept_partial(self, kept: int, asked: int, count: int) -> None:
        """The refill budget is spent before the batch is full."""
        if kept and self._config.rollout.when_spent == "train":
            return
        raise RolloutError(
            f"only {kept} of {asked} groups passed the filter, and the batch needs {count}: "
            f"rollout.refill_budget ({self._config.rollout.refill_budget:g} times the batch) is spent. "
            f"{self._budget.explanation()}"
        )

    async def _complete(self, ask: Ask) -> Group:
        with self._stats.phase("sampling"):
            generated = await self._generate(ask)
        if generated.status is not Status.OK:
            return Group(ask.position, ask.question, [], [])
        with self._stats.phase("scoring"):
            responses = await self._judge(ask, generated)
        age = ask.policy_version - generated.rollouts[0].model_version
        return Group(ask.position, ask.question, generated.prompt_token_ids, responses, age)

    async def _generate(self, ask: Ask) -> GenerateResult:
        name = self._config.rollout.service
        prompt = GenerateSample(id=str(ask.position), prompt=ask.question.prompt, seed=ask.sampling.seed)
        oldest = max(0, ask.policy_version - self._config.rollout.max_policy_age)

        async def call(prompts: list[GenerateSample]) -> list[GenerateResult]:
            results = await self._clients[name].generate(
                prompts, ask.sampling, min_version=oldest, timeout_s=self._config.failures.timeout_s
            )
            return [_of_one_version(result, oldest, ask.policy_version) for result in results]

        def failure(prompt: GenerateSample, status: Status, reason: str) -> GenerateResult:
            return GenerateResult(id=prompt.id, status=status, reason=reason)

        return (await self._calls.each(name, [prompt], call, failure))[0]

    async def _judge(self, ask: Ask, generated: GenerateResult) -> list[Response]:
        samples = [_sample(ask, generated, number) for number in range(len(generated.rollouts))]
        rewards = self._config.outcome_rewards
        columns = await asyncio.gather(*(self._score(reward, samples) for reward in rewards))
        return [
            _response(rewards, str(sample.id), rollout, results)
            for sample, rollout, *results in zip(samples, generated.rollouts, *columns, strict=True)
        ]

    async def _score(self, reward: RewardConfig, samples: Sequence[Sample]) -> list[Result]:
        async def call(samples: list[Sample]) -> list[Result]:
            return await self._clients[reward.service].score(
                samples, options=reward.options, timeout_s=self._config.failures.timeout_s
            )

        def failure(sample: Sample, status: Status, reason: str) -> Result:
            return failed(status, reason, id=sample.id)

        return await self._calls.each(reward.service, samples, call, failure)

    async def _process_rewards(
        self, groups: Sequence[Group], request_id: str, base_version: int
    ) -> ProcessRewards:
        reward, learner = self._config.process, self._config.process_reward
        if reward is None or learner is None:
            raise ValueError("the recipe has no process reward")
        samples = [_labelled(group, response) for group in groups for response in group.responses]
        samples = [sample for sample in samples if sample.outcome is not None]
        if learner.order == "none":
            results = await self._score(reward, samples)
            return ProcessRewards(_token_rewards(samples, results), base_version, {})
        request = UpdateRequest(
            request_id=request_id,
            samples=samples,
            order=learner.order,
            base_version=base_version,
            options=reward.options,
        )
        answer = await self._update(reward.service, learner.time_limit_s, request)
        for result in answer.results:
            self._stats.answered(reward.service, result.status, result.reason)
        version = base_version if answer.version_after is None else answer.version_after
        return ProcessRewards(_token_rewards(samples, answer.results), version, answer.metrics)

    async def _update(self, service: str, time_limit_s: float, request: UpdateRequest) -> UpdateResponse:
        async def call() -> UpdateResponse:
            return await self._clients[service].update(request, timeout_s=self._config.failures.timeout_s)

        try:
            answer = await self._calls.until(service, time_limit_s, call)
        except ServiceFailure as error:
            raise RolloutError(
                f"{service} did not answer an update for {time_limit_s:g} s: {error}"
            ) from error
        if answer.status is not Status.OK:
            raise RolloutError(f"{service} refused an update: {answer.status}: {answer.reason}")
        return answer


def _of_one_version(result: GenerateResult, oldest: int, newest: int) -> GenerateResult:
    """The result, or a retryable failure when a rollout is too old, too new, or the group is mixed."""
    versions = {rollout.model_version for rollout in result.rollouts}
    if len(versions) <= 1 and all(oldest <= version <= newest for version in versions):
        return result
    reason = f"sampled by policy versions {sorted(versions)}, wanted one of {oldest} to {newest}"
    return GenerateResult(id=result.id, status=Status.UNAVAILABLE, reason=reason)


def _sample(ask: Ask, generated: GenerateResult, number: int) -> Sample:
    rollout, question = generated.rollouts[number], ask.question
    return Sample(
        id=f"{ask.position}/{number}",
        prompt=question.prompt,
        prompt_token_ids=generated.prompt_token_ids,
        response=rollout.response,
        response_token_ids=rollout.token_ids,
        references=question.references,
        group=str(ask.position),
        code=question.code,
        metadata=question.metadata,
    )


def _response(
    rewards: Sequence[RewardConfig], id: str, rollout: Rollout, results: Sequence[Result]
) -> Response:
    by_service = {reward.service: result for reward, result in zip(rewards, results, strict=True)}
    values = [result.value for result in results if result.value is not None]
    total = None
    if len(values) == len(results):
        total = sum(reward.weight * value for reward, value in zip(rewards, values, strict=True))
    return Response(id, rollout, by_service, outcome=results[0].value, reward=total)


def _labelled(group: Group, response: Response) -> Sample:
    # Where any reward is missing the response takes no part: its outcome must teach the PRM nothing either.
    return Sample(
        id=response.id,
        prompt=group.question.prompt,
        prompt_token_ids=group.prompt_token_ids,
        response=response.rollout.response,
        response_token_ids=response.rollout.token_ids,
        references=group.question.references,
        outcome=None if response.reward is None else response.outcome,
        group=str(group.position),
    )


def _token_rewards(samples: Sequence[Sample], results: Sequence[Result]) -> dict[str, list[float]]:
    """Token rewards by sample id, checked to belong to the sampled tokens."""
    rewards: dict[str, list[float]] = {}
    for sample, result in zip(samples, results, strict=True):
        if result.status is not Status.OK:
            continue
        if result.token_ids != sample.response_token_ids or len(result.token_rewards) != len(
            result.token_ids
        ):
            raise RolloutError(
                f"the token rewards of response {sample.id} belong to other tokens than were sampled"
            )
        rewards[str(sample.id)] = result.token_rewards
    return rewards
