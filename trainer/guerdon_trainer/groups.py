"""What a step is made of: prompts that are asked, the groups that come back, and what services are told of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from guerdon.rewards import counted, mix
from guerdon.types import GenerateResult, Result, Rollout, Sample, Sampling, Status, failed
from guerdon_trainer.config import RunConfig
from guerdon_trainer.questions import Question


class RolloutError(RuntimeError):
    """A step cannot be completed; the message says what the services answered."""


@dataclass(frozen=True)
class Ask:
    """One prompt to sample a group for. `position` in the prompt stream orders the groups of a batch.

    `oldest` is the oldest policy version that may sample it.
    """

    position: int
    question: Question
    sampling: Sampling
    oldest: int


@dataclass(frozen=True)
class Response:
    """One rollout with what each outcome reward that was asked said of it, by name.

    `outcome` is its correctness, `reward` what `guerdon.rewards.mix` makes of all; None where there is none.
    Correctness of weight 0 only measures and may lack: then `outcome` may be None although there is a reward.
    """

    id: str
    rollout: Rollout
    results: dict[str, Result]
    outcome: float | None
    reward: float | None

    @property
    def truncated(self) -> bool:
        """Whether it was cut off at its greatest length."""
        return self.rollout.finish_reason == "length"


@dataclass(frozen=True)
class Group:
    """The responses to one prompt, all of one policy version; empty when sampling failed for good.

    `policy_version` is the one that sampled; of an empty group, the newest at that time.
    """

    position: int
    question: Question
    prompt_token_ids: list[int]
    responses: list[Response]
    policy_version: int = 0


@dataclass(frozen=True)
class ProcessRewards:
    """Token rewards by response id (absent where the PRM gave none), its version afterwards and its metrics."""

    tokens: dict[str, list[float]]
    version: int
    metrics: dict[str, float]


def of_one_version(result: GenerateResult, oldest: int, newest: int) -> GenerateResult:
    """The result, or a retryable failure when a rollout is too old, too new, or the group is mixed."""
    versions = {rollout.model_version for rollout in result.rollouts}
    if len(versions) <= 1 and all(oldest <= version <= newest for version in versions):
        return result
    reason = f"sampled by policy versions {sorted(versions)}, wanted one of {oldest} to {newest}"
    return GenerateResult(id=result.id, status=Status.UNAVAILABLE, reason=reason)


def as_asked(result: GenerateResult, count: int) -> GenerateResult:
    """The result, or a retryable failure when it is not what was asked for: there is nothing to train on in it."""
    rollouts = result.rollouts
    if result.status is not Status.OK:
        return result
    if len(rollouts) != count:
        reason = f"asked for {count} responses, the engine gave {len(rollouts)}"
    elif any(len(one.logprobs) != len(one.token_ids) for one in rollouts):
        reason = "the engine gave a response another number of log-probabilities than of tokens"
    else:
        return result
    return GenerateResult(id=result.id, status=Status.INTERNAL_ERROR, reason=reason)


def in_its_place(result: Result) -> Result:
    """The result, or a retryable failure when the reference it scored does not stand where its span says."""
    span = result.verdict.span if result.verdict else None
    if result.value is None or span is None or span.sampled_tokens < span.token_start:
        return result
    if result.token_ids and span.sampled_tokens + len(result.token_ids) == span.token_end:
        return result
    reason = "the reference that was scored does not stand where its span says"
    return failed(Status.INTERNAL_ERROR, reason, id=result.id)


def sample_of(ask: Ask, generated: GenerateResult, number: int) -> Sample:
    """What an outcome service is given to score of response `number`."""
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


def judged(config: RunConfig, id: str, rollout: Rollout, results: Sequence[Result | None]) -> Response:
    """A response with one result per outcome reward, None for those that a closed gate kept from being asked."""
    rewards = config.outcome_rewards
    mixed = mix(rewards, results)
    asked = {
        reward.name: result for reward, result in zip(rewards, results, strict=True) if result is not None
    }
    correctness = config.correctness_reward
    if correctness.name in asked:
        outcome = counted(correctness, asked[correctness.name])
    else:  # what a gate stops is not right; where the gate itself has no value, nobody knows
        outcome = None if mixed.value is None else 0.0
    lacking = any(name in asked and name not in mixed.values for name in config.needed_rewards)
    return Response(id, rollout, asked, outcome, reward=None if lacking else mixed.value)


def check_correctness(responses: Sequence[Response], service: str, needed_by: str) -> None:
    """Refuse outcomes that are no fraction of right: a reward of -1 for wrong would be taken for a rate of its own.

    Raises:
        RolloutError: an outcome lies outside [0, 1].
    """
    for response in responses:
        if response.outcome is not None and not 0 <= response.outcome <= 1:
            raise RolloutError(
                f"{service} gave response {response.id} the value {response.outcome:g}. As the recipe's correctness it "
                f"says how right a response is, which {needed_by} needs in [0, 1]: name one that does so in correctness"
            )


def labelled(group: Group, response: Response) -> Sample:
    """What a PRM is given to score, and to learn from where it has an outcome."""
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


def token_rewards_of(samples: Sequence[Sample], results: Sequence[Result]) -> dict[str, list[float]]:
    """Token rewards by sample id, checked to belong to the sampled tokens.

    Raises:
        RolloutError: they belong to other tokens.
    """
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
