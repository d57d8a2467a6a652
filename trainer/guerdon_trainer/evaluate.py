"""Held-out accuracy through the same services as training: of greedy responses, and pass@k of sampled ones."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from guerdon.types import Sampling
from guerdon_trainer.config import RunConfig
from guerdon_trainer.evaluation.estimates import pass_at
from guerdon_trainer.groups import Ask, Group
from guerdon_trainer.questions import Question, sampling_seed
from guerdon_trainer.rollouts import Rollouts


@dataclass(frozen=True)
class Chance:
    """The chance that one of k sampled responses is right, with its 95 % interval over `questions` questions."""

    value: float
    low: float
    high: float
    questions: int


@dataclass(frozen=True)
class Evaluation:
    """Means over the greedy responses that were judged; `failed` ones count neither as right nor as wrong.

    `pass_at` has the chance for each k, as text, over the questions with at least k judged samples; `samples_failed`
    of those had no verdict.
    """

    step: int
    accuracy: float | None
    reward: float | None
    judged: int
    failed: int
    response_length: float
    pass_at: dict[str, Chance] = field(default_factory=dict[str, Chance])
    samples_failed: int = 0

    @property
    def summary(self) -> str:
        """One line for people."""
        sampled = "".join(f", pass@{k} {chance.value:.1%}" for k, chance in self.pass_at.items())
        if self.accuracy is None:
            return f"held-out accuracy unknown: none of {self.failed} responses could be judged{sampled}"
        lost = f", {self.failed} without a verdict" if self.failed else ""
        return f"held-out greedy accuracy {self.accuracy:.1%} of {self.judged} questions{lost}{sampled}"


def evaluate(
    rollouts: Rollouts, questions: Sequence[Question], config: RunConfig, *, step: int, policy_version: int
) -> tuple[Evaluation, list[Group]]:
    """Answer every question greedily, and `evaluation.samples` times by chance; also returns the greedy groups."""
    # Both at once: the longest response is waited for once. Exactly this version answers, whatever age training allows.
    asks = [
        *_greedy(questions, config, policy_version),
        *(_sampled(questions, config, policy_version) if config.evaluation.samples else []),
    ]
    groups = rollouts.all_groups(asks)
    greedy, sampled = groups[: len(questions)], groups[len(questions) :]
    responses = [response for group in greedy for response in group.responses]
    judged = [one for one in responses if one.reward is not None and one.outcome is not None]
    chances, samples = _chances(sampled, config.evaluation.samples)
    evaluation = Evaluation(
        step=step,
        accuracy=_mean([response.outcome for response in judged if response.outcome is not None]),
        reward=_mean([response.reward for response in judged if response.reward is not None]),
        judged=len(judged),
        failed=len(questions) - len(judged),
        response_length=_mean([len(response.rollout.token_ids) for response in responses]) or 0.0,
        pass_at=chances,
        samples_failed=len(sampled) * config.evaluation.samples - samples,
    )
    return evaluation, greedy


def _greedy(questions: Sequence[Question], config: RunConfig, policy_version: int) -> list[Ask]:
    rollout = config.rollout
    sampling = Sampling(n=1, max_new_tokens=rollout.max_new_tokens, temperature=0.0, stop=rollout.stop)
    return [Ask(place, question, sampling, policy_version) for place, question in enumerate(questions)]


def _sampled(questions: Sequence[Question], config: RunConfig, policy_version: int) -> list[Ask]:
    """The same seeds at every evaluation: what differs is the policy."""
    asks: list[Ask] = []
    for place, question in enumerate(questions, start=len(questions)):
        sampling = Sampling(
            n=config.evaluation.samples,
            max_new_tokens=config.rollout.max_new_tokens,
            temperature=config.evaluation.temperature,
            top_p=config.evaluation.top_p,
            stop=config.rollout.stop,
            seed=sampling_seed(config.seed, 0, question.id, place),
        )
        asks.append(Ask(place, question, sampling, policy_version))
    return asks


def _chances(groups: Sequence[Group], samples: int) -> tuple[dict[str, Chance], int]:
    """pass@k for every power of two up to `samples`, and how many responses were judged in all."""
    outcomes = [
        [response.outcome for response in group.responses if response.outcome is not None] for group in groups
    ]
    # A fraction of the tests, say, is no solution.
    right = [sum(outcome >= 1.0 for outcome in one) for one in outcomes]
    judged = [len(one) for one in outcomes]
    chances: dict[str, Chance] = {}
    for k in (2**power for power in range(samples.bit_length())):
        estimate = pass_at(right, judged, k)
        if estimate is not None:
            chances[str(k)] = Chance(estimate.value, estimate.low, estimate.high, estimate.count)
    return chances, sum(judged)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
