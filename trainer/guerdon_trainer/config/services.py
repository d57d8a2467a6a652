"""Sections on what the services do: sampling, rewards, and what happens when they fail."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from guerdon.rewards import Part
from guerdon.types import Options, Sampling
from guerdon_trainer.config.base import Count, Fraction, Section

#: What the contract lets one request ask for, see `guerdon.types.Sampling`.
_MOST_RESPONSES = 1024
_INT32 = 2**31
#: The longest that anything may wait, in seconds: a week.
_WEEK_S = 7 * 86_400.0

_Text = Annotated[str, Field(min_length=1)]


class PushConfig(Section):
    """Weights sent to rollout services that run vLLM, over NCCL, besides being published: see `weights_push.py`."""

    #: The HTTP doors of all of them, without a password: whoever is left out reads every version from the folder.
    urls: Annotated[list[Annotated[str, Field(pattern="^https?://[^@?#]+$")]], Field(min_length=1)]
    #: GPUs of each: its tensor, pipeline and data parallel sizes multiplied.
    workers: Count = 1
    #: Where they reach this process, for their first meeting.
    master_address: _Text
    master_port: Annotated[int, Field(ge=1, le=65_535)] = 29_600
    #: The environment variable that holds their bearer token. Default: GUERDON_TOKEN, if set.
    token_env: _Text | None = None
    #: The longest that the meeting, and each version, may take, in seconds.
    time_limit_s: Annotated[float, Field(gt=0, le=_WEEK_S)] = 300.0

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if len({url.rstrip("/") for url in self.urls}) < len(self.urls):
            raise ValueError("urls: one is named twice")
        return self


class RolloutConfig(Section):
    """How responses are sampled."""

    service: _Text = "rollout"
    prompts_per_step: Count = 32
    group_size: Annotated[int, Field(ge=2, le=_MOST_RESPONSES)] = 8
    max_new_tokens: Annotated[int, Field(ge=1, lt=_INT32)] = 256
    temperature: Annotated[float, Field(gt=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0, lt=_INT32)] = 0
    stop: list[_Text] = []
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
    #: Off unless the section is there.
    push: PushConfig | None = None

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


class SourceConfig(Section):
    """Where a service is asked, and with what options."""

    #: Its queue, in the run's own Redis unless there is a URL.
    service: _Text | None = None
    #: http(s)://, grpc(s):// or redis(s)://, for a service that takes no work from the run's Redis.
    url: _Text | None = None
    #: The environment variable that holds the bearer token of the service at `url`. Default: GUERDON_TOKEN, if set.
    token_env: _Text | None = None
    options: Options = {}

    @model_validator(mode="after")
    def _is_somewhere(self) -> Self:
        if self.service is None and self.url is None:
            raise ValueError("give a service or a url")
        return self

    @model_validator(mode="after")
    def _token_has_a_url(self) -> Self:
        if self.token_env is not None and self.url is None:
            raise ValueError("token_env belongs to a url: a queue takes no bearer token")
        return self


class RewardConfig(Part):
    """One service that judges responses, with the fields of `guerdon.rewards` and what only training asks of it.

    `guerdon.rewards.mix` makes one reward of a response's outcome rewards: weights, gates and `counts_as` are its.
    The one process reward gives a number per token; its weight multiplies PRIME's process term.
    """

    #: What metrics and messages call it. Default: its service.
    name: _Text
    #: As in `SourceConfig`. Default: its name.
    service: _Text | None = None
    url: _Text | None = None
    token_env: _Text | None = None
    options: Options = {}
    #: Asked instead when the service has no value, for whatever reason.
    backup: SourceConfig | None = None
    role: Literal["outcome", "process"] = "outcome"
    #: The service scores with the policy itself, as a reference reward does: it must have the weights that sampled,
    #: or newer ones.
    follows_policy: bool = False

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("service") is not None:
            return {"name": given["service"], **given}
        return given

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        _ = self.source
        return self

    @model_validator(mode="after")
    def _only_outcomes_are_mixed(self) -> Self:
        if self.role == "process" and (self.gate is not None or self.counts_as or self.backup):
            raise ValueError(
                "role process goes without gate, counts_as and backup: its numbers are per token"
            )
        return self

    @property
    def source(self) -> SourceConfig:
        """Where it is asked first."""
        return SourceConfig(
            service=self.service or self.name, url=self.url, token_env=self.token_env, options=self.options
        )

    @property
    def backup_name(self) -> str:
        """What metrics and messages call its backup."""
        return f"{self.name}/backup"

    @property
    def replicas_name(self) -> str:
        """What metrics and messages call the replicas of a process reward."""
        return f"{self.name}/replicas"


class ProcessRewardConfig(Section):
    """How the PRM behind the process reward learns during the run."""

    #: before: update on the batch, then score it; after: scores precede the update; none: it never learns.
    order: Literal["before", "after", "none"] = "before"
    #: A PRM that dies is restarted; the step waits this long for its answer, in seconds.
    time_limit_s: Annotated[float, Field(gt=0, le=_WEEK_S)] = 600.0
    #: The `process_reward_replica` services that score in the learner's place, as soon as they have the version that
    #: `order` says. Updates go to the learner, which also scores what they could not.
    replicas: SourceConfig | None = None


class FailureConfig(Section):
    """What is tried again, and when too much has failed to go on."""

    #: Times one request is sent before its failure is final.
    attempts: Count = 4
    #: Pause before a repetition, in seconds; doubles each time.
    pause_s: Annotated[float, Field(ge=0, le=_WEEK_S)] = 0.5
    #: Time one request may take, in seconds: longer than a worker's lease, so that a killed one costs only time.
    timeout_s: Annotated[float, Field(gt=0, le=_WEEK_S)] = 120.0
    #: The run stops when more than this share of the last `window` responses got no reward.
    max_fraction: Fraction = 0.1
    window: Count = 256
