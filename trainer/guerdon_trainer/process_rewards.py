"""Token rewards from a process reward model: it learns from every batch, and it or its replicas score the batch.

Part of what `rollouts.py` asks of services. A replica follows the versions that the learner publishes, so every score
is asked by its version: the one that precedes the update or the one that it makes, as the recipe's `order` says.

Shapes: B responses, T tokens.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence

from guerdon.errors import ServiceFailure
from guerdon.functional import normalise_returns
from guerdon.types import (
    Options,
    Result,
    Sample,
    Status,
    UpdateRequest,
    UpdateResponse,
    VersionsResponse,
    failed,
)
from guerdon_trainer.config import ProcessRewardConfig, RewardConfig, RunConfig
from guerdon_trainer.groups import Group, ProcessRewards, RolloutError, labelled, token_rewards_of
from guerdon_trainer.service_calls import AnswerT, ServiceCalls, ServiceClient
from guerdon_trainer.service_stats import ServiceStats


@dataclass(frozen=True)
class _Newest:
    """The newest version that a learner has, as an answer."""

    version: int
    status: Status = Status.OK
    reason: str = ""


class ProcessRewardModel:
    """The learner of a recipe, with its replicas if there are any. Used on the event loop of the clients."""

    def __init__(
        self,
        clients: Mapping[str, ServiceClient],
        reward: RewardConfig,
        learning: ProcessRewardConfig,
        calls: ServiceCalls,
        stats: ServiceStats,
        timeout_s: float,
    ) -> None:
        self._clients = clients
        self._reward = reward
        self._learning = learning
        self._calls = calls
        self._stats = stats
        self._timeout_s = timeout_s
        #: The newest number that may have been given to other weights before this attempt; None until it is known.
        self._doubtful: int | None = None

    async def versions(self) -> VersionsResponse:
        """What versions the learner has.

        Raises:
            ServiceFailure: it does not answer.
        """
        return await self._clients[self._reward.name].versions()

    async def rewards(self, groups: Sequence[Group], request_id: str, base_version: int) -> ProcessRewards:
        """See `Rollouts.process_rewards`."""
        order = self._learning.order
        if order == "none":
            return await self.scores(groups, base_version)
        update = UpdateRequest(
            request_id=request_id,
            samples=_with_outcomes(groups),
            order=order,
            base_version=base_version,
            options=self._reward.options,
        )
        if self._learning.replicas is None or not await self._number_is_new(base_version):
            answer = await self._update(update)
            tokens = token_rewards_of(update.samples, answer.results)
            self._count(answer.results)
        else:
            answer, tokens = await self._beside_replicas(update, base_version)
        version = base_version if answer.version_after is None else answer.version_after
        return ProcessRewards(tokens, version, answer.metrics)

    async def scores(self, groups: Sequence[Group], version: int) -> ProcessRewards:
        """See `Rollouts.process_scores`."""
        samples = _with_outcomes(groups)
        results = await self._ask(self._reward.name, samples)
        return ProcessRewards(self._of_the_batch(samples, results), version, {})

    async def _number_is_new(self, base_version: int) -> bool:
        """Whether the version that scores has a number that the PRM gave to no other weights before.

        An attempt that was killed may have taught it further than the checkpoint knows. It goes back and gives those
        numbers again, to other weights, while a replica may still hold the old ones: until then the learner scores.
        """
        if self._doubtful is None:
            newest = await self._newest()
            self._doubtful = newest if newest > base_version else base_version - 1
        return base_version + (self._learning.order == "before") > self._doubtful

    async def _newest(self) -> int:
        """The newest version that the learner has."""

        async def call() -> _Newest:
            versions = await self.versions()
            return _Newest(max([versions.current, *(one.version for one in versions.versions)]))

        return (await self._until("a question for its versions", call)).version

    async def _beside_replicas(
        self, update: UpdateRequest, base_version: int
    ) -> tuple[UpdateResponse, dict[str, list[float]]]:
        update = update.model_copy(update={"options": self._sample_options})
        if update.order == "before":
            answer, results = await self._scored_after_update(update)
        else:
            answer, results = await self._scored_before_update(update, base_version)
        return answer, self._of_the_batch(update.samples, results)

    def _of_the_batch(self, samples: Sequence[Sample], results: Sequence[Result]) -> dict[str, list[float]]:
        """Token rewards from scores by `_sample_options`."""
        tokens = token_rewards_of(samples, results)
        return _normalised(tokens) if tokens and self._reward.options.get("norm") == "batch" else tokens

    @property
    def _sample_options(self) -> Options:
        """The options of a score. What concerns a batch is done here: a service sees a sample at a time."""
        return {key: value for key, value in self._reward.options.items() if key != "norm"}

    async def _scored_after_update(self, update: UpdateRequest) -> tuple[UpdateResponse, list[Result]]:
        """Order before: the learner learns, then the batch is scored by the version that this made."""
        # With the other order its own scores cost it nothing, for they come with the forward that it learns from.
        answer = await self._update(update.model_copy(update={"order": "after"}))
        if answer.version_after is None:
            raise RolloutError(f"{self._reward.name} does not say which version its update made")
        references = {one.reference_version for one in answer.results if one.status is Status.OK}
        wanted = answer.version_after, references.pop() if references else None
        results = await self._ask(self._reward.replicas_name, update.samples, wanted)
        lacking = [row for row, result in enumerate(results) if result.status.retryable]
        if lacking:
            again = await self._ask(self._reward.name, [update.samples[row] for row in lacking], wanted)
            for row, result in zip(lacking, again, strict=True):
                results[row] = result
        return answer, results

    async def _scored_before_update(
        self, update: UpdateRequest, base_version: int
    ) -> tuple[UpdateResponse, list[Result]]:
        """Order after: the batch is scored by the version that is there, then the learner learns."""
        results = await self._ask(self._reward.replicas_name, update.samples, (base_version, None))
        answer = await self._update(update)
        # Its own scores, by that same version, stand where a replica's are missing or compare with another reference.
        return answer, [
            theirs
            if theirs.status is Status.OK and theirs.reference_version == own.reference_version
            else own
            for theirs, own in zip(results, answer.results, strict=True)
        ]

    async def _ask(
        self, name: str, samples: Sequence[Sample], wanted: tuple[int | None, int | None] = (None, None)
    ) -> list[Result]:
        """Scores by exactly the `wanted` versions of PRM and reference, None for any."""

        async def call(samples: list[Sample], attempt: int) -> list[Result]:
            results = await self._clients[name].score(
                samples, options=self._sample_options, min_version=wanted[0], timeout_s=self._timeout_s
            )
            return [_by_versions(result, wanted) for result in results]

        def failure(sample: Sample, status: Status, reason: str) -> Result:
            return failed(status, reason, id=sample.id)

        return await self._calls.each(name, samples, call, failure)

    async def _update(self, request: UpdateRequest) -> UpdateResponse:
        async def call() -> UpdateResponse:
            return await self._clients[self._reward.name].update(request, timeout_s=self._timeout_s)

        answer = await self._until("an update", call)
        if answer.status is not Status.OK:
            raise RolloutError(f"{self._reward.name} refused an update: {answer.status}: {answer.reason}")
        return answer

    async def _until(self, what: str, call: Callable[[], Awaitable[AnswerT]]) -> AnswerT:
        """The learner's answer, which a restart may delay."""
        service, time_limit_s = self._reward.name, self._learning.time_limit_s
        try:
            return await self._calls.until(service, time_limit_s, call)
        except ServiceFailure as error:
            raise RolloutError(f"{service} did not answer {what} for {time_limit_s:g} s: {error}") from error

    def _count(self, results: Sequence[Result]) -> None:
        for result in results:
            self._stats.answered(self._reward.name, result.status, result.reason)


def process_reward_model(
    clients: Mapping[str, ServiceClient], config: RunConfig, calls: ServiceCalls, stats: ServiceStats
) -> ProcessRewardModel | None:
    """The PRM that a recipe asks; None where it has no process reward."""
    reward, learning = config.process, config.process_reward
    if reward is None or learning is None:
        return None
    return ProcessRewardModel(clients, reward, learning, calls, stats, config.failures.timeout_s)


def _by_versions(result: Result, wanted: tuple[int | None, int | None]) -> Result:
    """The result, or a retryable failure where other versions scored than are wanted."""
    got = result.model_version, result.reference_version
    if result.status is not Status.OK or all(
        want in (None, one) for want, one in zip(wanted, got, strict=True)
    ):
        return result
    reason = f"scored by versions {got} of PRM and reference, wanted {wanted}"
    return failed(Status.UNAVAILABLE, reason, id=result.id)


def _normalised(tokens: dict[str, list[float]]) -> dict[str, list[float]]:
    """What the learner's option `norm: batch` does with the scores of an update."""
    rewards_BT = pad_sequence(
        [torch.tensor(row, dtype=torch.float64) for row in tokens.values()], batch_first=True
    )
    lengths_B1 = torch.tensor([[len(row)] for row in tokens.values()])
    mask_BT = torch.arange(rewards_BT.shape[1]) < lengths_B1
    rows = normalise_returns(rewards_BT, mask_BT).tolist()
    return {id: row[: len(old)] for (id, old), row in zip(tokens.items(), rows, strict=True)}


def _with_outcomes(groups: Sequence[Group]) -> list[Sample]:
    """Every response that has an outcome to teach the PRM."""
    samples = [labelled(group, response) for group in groups for response in group.responses]
    return [sample for sample in samples if sample.outcome is not None]
