"""What the process reward service is started with, and what a request may ask for."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from guerdon.functional import PairWeights
from guerdon_services.models import FollowerSettings, WeightsLocation
from guerdon_services.process_reward.schedule import Schedule
from guerdon_services.runtime.scorer import ScorerOptions, ScorerSettings
from guerdon_services.scoring import Temperature

#: More would take rewards and gradients out of fp32.
Beta = Annotated[float, Field(gt=0, le=1000)]


class ProcessRewardSettings(ScorerSettings):
    """Start-up settings; beta, lr and grad_clip are those of PRIME's released script."""

    #: Plain Hugging Face folder of any causal model: the PRM of version 0, and the frozen reference.
    model: Path
    #: Weights folder: every version is published here, and a restarted service resumes from its latest one.
    weights_dir: Path
    #: URL (s3://bucket/prm, file:///shared/prm) that every version is uploaded to, for replicas elsewhere.
    mirror_url: Annotated[str, Field(pattern="^[a-z0-9+]+://")] | None = None
    beta: Beta = 0.05
    lr: Annotated[float, Field(gt=0)] = 1e-6
    #: constant, linear or cosine: how the learning rate goes on after `warmup_updates`, in which it rises from 0.
    lr_schedule: Schedule = "constant"
    warmup_updates: Annotated[int, Field(ge=0)] = 0
    #: The version at which linear and cosine have reached `lr_floor`, a share of `lr`, and stay there.
    schedule_updates: Annotated[int, Field(ge=1)] | None = None
    lr_floor: Annotated[float, Field(ge=0, le=1)] = 0.0
    grad_clip: Annotated[float, Field(gt=0)] = 10.0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    #: frozen: compare with the initial model. policy: with the policy's newest weights in `policy_weights_dir`.
    reference: Literal["frozen", "policy"] = "frozen"
    #: Weights folder that the trainer publishes its policy to; the initial model until there is a version.
    policy_weights_dir: WeightsLocation | None = None
    #: Train adapters of this rank (LoRA) and share their base with the frozen reference; 0 trains all weights.
    lora_rank: Annotated[int, Field(ge=0, le=1024)] = 0
    #: The adapters' output is scaled by lora_alpha / lora_rank.
    lora_alpha: Annotated[float, Field(gt=0)] = 32.0
    #: Linear layers that get adapters: a regular expression over module names, or all of them but the output head.
    lora_targets: Annotated[str, Field(min_length=1)] = "all-linear"
    #: Rows x length of one forward. Changes memory and speed, never the result beyond rounding.
    max_tokens: Annotated[int, Field(ge=1)] = 16_384
    #: Versions kept: how far back an update's `base_version` can reach.
    keep_last: Annotated[int, Field(ge=1)] = 2
    threads: Annotated[int, Field(ge=1)] = 1
    #: Seeds torch. Dropout is off in training too, so results do not depend on it.
    seed: int = 0
    device: str = "cpu"
    #: Jinja text for chat prompts, where the tokenizer has none or another one.
    chat_template: str | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.reference == "policy") != (self.policy_weights_dir is not None):
            raise ValueError("policy_weights_dir: give it exactly when reference is policy")
        if self.lr_schedule == "constant":
            if self.schedule_updates is not None:
                raise ValueError("schedule_updates: a constant learning rate has no end")
        elif self.schedule_updates is None or self.schedule_updates <= self.warmup_updates:
            raise ValueError(f"schedule_updates: {self.lr_schedule} needs one above warmup_updates")
        return self


class ReplicaSettings(FollowerSettings):
    """Start-up settings of a scoring replica; those that the learner has too must be the learner's.

    `model` is what the learner started from: the frozen reference, and version 0. `weights_dir` is the learner's, or
    the URL that it uploads to.
    """

    #: The learner's, as each of its versions tells, when absent.
    beta: Beta | None = None
    reference: Literal["frozen", "policy"] = "frozen"
    policy_weights_dir: WeightsLocation | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.reference == "policy") != (self.policy_weights_dir is not None):
            raise ValueError("policy_weights_dir: give it exactly when reference is policy")
        return self


class ProcessRewardOptions(ScorerOptions):
    """Per-request options; an update's apply to its loss and to the scores it returns alike."""

    #: Scale of rewards and of the loss's logit; the service's setting when absent.
    beta: Beta | None = None
    #: token: one reward per token. step, response: their sum on the last token of each step or of the response,
    #: 0 elsewhere.
    granularity: Literal["token", "step", "response"] = "token"
    #: What a reasoning step ends with, for granularity step.
    step_separator: Annotated[str, Field(min_length=1, max_length=100)] = "\n\n"
    #: What an update minimises. ce: cross-entropy on outcomes. pairwise: each response against the mean of the
    #: better and of the worse ones of its group.
    loss: Literal["ce", "pairwise"] = "ce"
    #: Weights of the pairwise loss: none, or those of the best of the group by outcome (acc) or by the PRM (rm).
    pair_weights: PairWeights = "none"
    #: Divides the logits of both models.
    temperature: Temperature = 1.0
    #: batch: divide by the largest absolute return-to-go of the update's samples. Updates only: the items of a
    #: score request reach the model in batches that also hold other requests' items.
    norm: Literal["none", "batch"] = "none"
