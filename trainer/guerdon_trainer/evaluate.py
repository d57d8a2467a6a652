"""Held-out accuracy of greedy responses, through the same services as training."""

from collections.abc import Sequence
from dataclasses import dataclass

from guerdon.types import Sampling
from guerdon_trainer.config import RunConfig
from guerdon_trainer.groups import Ask, Group
from guerdon_trainer.questions import Question
from guerdon_trainer.rollouts import Rollouts


@dataclass(frozen=True)
class Evaluation:
    """Means over the responses that were judged; `failed` ones count neither as right nor as wrong."""

    step: int
    accuracy: float | None
    reward: float | None
    judged: int
    failed: int
    response_length: float

    @property
    def summary(self) -> str:
        """One line for people."""
        if self.accuracy is None:
            return f"held-out accuracy unknown: none of {self.failed} responses could be judged"
        lost = f", {self.failed} without a verdict" if self.failed else ""
        return f"held-out greedy accuracy {self.accuracy:.1%} of {self.judged} questions{lost}"


def evaluate(
    rollouts: Rollouts, questions: Sequence[Question], config: RunConfig, *, step: int, policy_version: int
) -> tuple[Evaluation, list[Group]]:
    """Answer every question once, greedily, and have the outcome services judge."""
    sampling = Sampling(
        n=1, max_new_tokens=config.rollout.max_new_tokens, temperature=0.0, stop=config.rollout.stop
    )
    asks = [Ask(place, question, sampling, policy_version) for place, question in enumerate(questions)]
    groups = rollouts.all_groups(asks)
    responses = [response for group in groups for response in group.responses]
    judged = [response for response in responses if response.reward is not None]
    evaluation = Evaluation(
        step=step,
        accuracy=_mean([response.outcome for response in judged if response.outcome is not None]),
        reward=_mean([response.reward for response in judged if response.reward is not None]),
        judged=len(judged),
        failed=len(questions) - len(judged),
        response_length=_mean([len(response.rollout.token_ids) for response in responses]) or 0.0,
    )
    return evaluation, groups


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
