"""Sections on what the services do: sampling, rewards, and what happens when they fail."""

from typing import Annotated, Literal

from pydantic import Field

from guerdon.types import Options, Sampling
from guerdon_trainer.config.base import Count, Fraction, Section

#: What the contract lets one request ask for, see `guerdon.types.Sampling`.
_MOST_RESPONSES = 1024
_INT32 = 2**31


class RolloutConfig(Section):
    """How responses are sampled."""

    service: str = "rollout"
    prompts_per_step: Count = 32
    group_size: Annotated[int, Field(ge=2, le=_MOST_RESPONSES)] = 8
    max_new_tokens: Annotated[int, Field(ge=1, lt=_INT32)] = 256
    temperature: Annotated[float, Field(gt=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0, lt=_INT32)] = 0
    stop: list[Annotated[str, Field(min_length=1)]] = []
    #: Groups being sampled or scored at the same time.
    groups_in_flight: Count = 256
    #: A step asks for at most this many times `prompts_per_step` prompts.
    refill_budget: Annotated[float, Field(ge=1)] = 8.0
    #: What to do when they are spent. error: end the run. train: go on with the groups there are;
    #: when there is none although all have their rewards, nothing is left to learn and the run is finished.
    when_spent: Literal["error", "train"] = "error"
    #: Steps whose prompts are asked in advance, so that they are sampled and scored while the policy learns. 0 is
    #: strictly on policy: only then does an interrupted run go on exactly as it would have.
    ahead: Annotated[int, Field(ge=0)] = 0
    #: Groups whose policy is older than this many versions when they would be trained on, the time in queues
    #: included, are dropped and asked for again.
    max_policy_age: Annotated[int, Field(ge=0)] = 0

    def sampling(self, seed: int) -> Sampling:
        """How one prompt of training is sampled."""
        return Sampling(
            n=self.group_size,
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=self.stop,
            seed=seed,
        )


class EvaluationConfig(Section):
    """How held-out questions are answered besides greedily."""

    #: Responses sampled for each, for pass@k with k of every power of two up to it; 0: none.
    samples: Annotated[int, Field(ge=0, le=_MOST_RESPONSES)] = 0
    temperature: Annotated[float, Field(gt=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0


class RewardConfig(Section):
    """One service that judges responses.

    A response's reward is the weighted sum of its outcome rewards. The first outcome reward of the list is also
    its correctness: it gives the accuracy, the accuracy filter and the labels that the PRM learns from. The one
    process reward gives a number per token; its weight multiplies PRIME's process term.
    """

    service: str
    role: Literal["outcome", "process"] = "outcome"
    weight: float = 1.0
    options: Options = {}
    #: The service scores with the policy itself, as a reference reward does: it must have the weights that sampled,
    #: or newer ones.
    follows_policy: bool = False


class ProcessRewardConfig(Section):
    """How the PRM behind the process reward learns during the run."""

    #: before: update on the batch, then score it; after: scores precede the update; none: it never learns.
    order: Literal["before", "after", "none"] = "before"
    #: A PRM that dies is restarted; the step waits this long for its answer, in seconds.
    time_limit_s: Annotated[float, Field(gt=0)] = 600.0


class FailureConfig(Section):
    """What is tried again, and when too much has failed to go on."""

    #: Times one request is sent before its failure is final.
    attempts: Count = 4
    #: Pause before a repetition, in seconds; doubles each time.
    pause_s: Annotated[float, Field(ge=0)] = 0.5
    #: Time one request may take, in seconds: longer than a worker's lease, so that a killed one costs only time.
    timeout_s: Annotated[float, Field(gt=0)] = 120.0
    #: The run stops when more than this share of the last `window` responses got no reward.
    max_fraction: Fraction = 0.1
    window: Count = 256
