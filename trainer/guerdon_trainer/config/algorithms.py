"""Sections on what is learned from rewards: advantages, losses and group filters, each named after its function."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from guerdon_trainer.config.base import Fraction, Section

#: As in `losses.aggregate`, which this file does without: reading a recipe must not import torch.
Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


class GrpoConfig(Section):
    """See `advantages.grpo`. Dr.GRPO is scale none, RLPR's advantage min_std 1e-6."""

    name: Literal["grpo"] = "grpo"
    scale: Literal["std", "batch_std", "none"] = "std"
    eps: Annotated[float, Field(gt=0)] = 1e-6
    min_std: Annotated[float, Field(ge=0)] = 0.0


class RlooConfig(Section):
    """See `advantages.rloo`."""

    name: Literal["rloo"] = "rloo"


class ReinforcePpConfig(Section):
    """See `advantages.reinforce_pp`: an advantage per token, with process rewards where there are any."""

    name: Literal["reinforce_pp"] = "reinforce_pp"
    #: batch is REINFORCE++, group is REINFORCE++-baseline.
    baseline: Literal["batch", "group"] = "batch"
    gamma: Fraction = 1.0
    whiten: bool = True
    #: KL in the reward: each token's loses this times k1, its log-ratio to the initial policy, before returns.
    kl_coefficient: Annotated[float, Field(ge=0)] = 0.0


class PrimeConfig(Section):
    """See `advantages.prime`; the weight of the process term stands with its entry in `rewards`."""

    name: Literal["prime"] = "prime"
    form: Literal["paper", "released"] = "paper"
    gamma_process: Fraction = 1.0
    gamma_outcome: Fraction = 1.0
    outcome_weight: float = 1.0
    whiten: bool = True


class LossSection(Section):
    """What every loss can have besides its own settings."""

    #: Truncated responses (finish reason length) count in their group's baseline and give no gradient: DAPO's
    #: overlong filtering.
    mask_truncated: bool = False
    #: Adds this times the KL divergence from the initial policy, per token, aggregated as the loss is.
    kl_coefficient: Annotated[float, Field(ge=0)] = 0.0
    #: See `losses.kl`. k3+ has the value of k3 and a gradient that does not end at its bound.
    kl_estimator: Literal["k1", "k2", "k3", "k1+", "k3+"] = "k3+"
    #: Takes away this times the policy's entropy, per token, aggregated as the loss is.
    entropy_coefficient: Annotated[float, Field(ge=0)] = 0.0


class GspoConfig(LossSection):
    """See `losses.gspo`: one advantage per sequence."""

    name: Literal["gspo"] = "gspo"
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 3e-4
    clip_high: Annotated[float, Field(gt=0)] = 4e-4
    delta: Annotated[float, Field(gt=1)] | None = None


class GspoTokenConfig(LossSection):
    """See `losses.gspo_token`: the sequence ratio with an advantage per token."""

    name: Literal["gspo_token"] = "gspo_token"
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 3e-4
    clip_high: Annotated[float, Field(gt=0)] = 4e-4
    delta: Annotated[float, Field(gt=1)] | None = None


class AggregatedLoss(LossSection):
    """A loss per token; see `losses.aggregate` for how it becomes one number."""

    aggregation: Aggregation = "token-mean"
    #: Tokens that seq-mean-token-sum-norm divides by, a constant: Dr.GRPO takes the longest response there can be.
    norm: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _norm_fits_aggregation(self) -> Self:
        if (self.norm is not None) != (self.aggregation == "seq-mean-token-sum-norm"):
            raise ValueError("norm belongs to aggregation seq-mean-token-sum-norm, and only to it")
        return self


class PpoClipConfig(AggregatedLoss):
    """See `losses.ppo_clip`."""

    name: Literal["ppo_clip"] = "ppo_clip"
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_high: Annotated[float, Field(gt=0)] = 0.2
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    delta: Annotated[float, Field(gt=1)] | None = None

    @model_validator(mode="after")
    def _one_bound(self) -> Self:
        if self.dual_clip is not None and self.delta is not None:
            raise ValueError("dual_clip and delta bound the same ratio: give one of them")
        return self


class ReinforceConfig(AggregatedLoss):
    """See `losses.reinforce`."""

    name: Literal["reinforce"] = "reinforce"


class NftConfig(AggregatedLoss):
    """See `losses.nft`; RFT is neg_weight 0. It learns from correctness: the section `advantage` must be null."""

    name: Literal["nft"] = "nft"
    omega: Literal["drgrpo", "grpo", "none"] = "drgrpo"
    neg_weight: Annotated[float, Field(ge=0)] = 1.0
    eps: Annotated[float, Field(gt=0)] = 1.0
    eps_positive: Annotated[float, Field(ge=0)] = 0.0


class VeriFreeConfig(AggregatedLoss):
    """See `losses.verifree`: rows are the sampled reasoning and the reference that a reward put after it."""

    name: Literal["verifree"] = "verifree"
    aggregation: Aggregation = "seq-mean-token-sum"
    #: The name of the entry of `rewards` whose value is R and whose tokens are the reference.
    service: str = "reference_reward"
    #: Weight of the reference's likelihood. reward: R, as in the paper. advantage: the reasoning's advantage.
    weight: Literal["reward", "advantage"] = "reward"
    #: A truncated response also gets R = 0, whatever its answer was.
    mask_truncated: bool = True


AdvantageConfig = Annotated[
    GrpoConfig | RlooConfig | ReinforcePpConfig | PrimeConfig, Field(discriminator="name")
]
LossConfig = Annotated[
    GspoConfig | GspoTokenConfig | PpoClipConfig | ReinforceConfig | NftConfig | VeriFreeConfig,
    Field(discriminator="name"),
]


class AccuracyFilter(Section):
    """Keeps the groups whose accuracy lies in [lower, upper] (PRIME keeps 0.2 to 0.8)."""

    kind: Literal["accuracy"] = "accuracy"
    lower: Fraction = 0.2
    upper: Fraction = 0.8

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        if self.lower > self.upper:
            raise ValueError("lower must not be above upper: no group would ever pass")
        return self


class SpreadFilter(Section):
    """Keeps the groups whose rewards have a standard deviation above `min_std`: 0 drops uniform groups."""

    kind: Literal["spread"] = "spread"
    min_std: Annotated[float, Field(ge=0)] = 0.0


class TruncationFilter(Section):
    """Drops a group when any of its responses was cut off (PRIME's `filter_truncate`)."""

    kind: Literal["truncation"] = "truncation"
    #: tokens: it has `rollout.max_new_tokens` less `margin` tokens or more, even if it ended there by itself.
    #: finish_reason: the engine says that it ended for its length.
    by: Literal["tokens", "finish_reason"] = "tokens"
    margin: Annotated[int, Field(ge=0)] = 0


class StdThresholdFilter(Section):
    """Drops groups whose rewards deviate less than `beta` times a moving average (RLPR); see `advantages.filters`."""

    kind: Literal["std_threshold"] = "std_threshold"
    #: RLPR: 0.5 for Qwen, 0.9 for Llama, 1.0 for Gemma.
    beta: Annotated[float, Field(gt=0)] = 0.5
    ratio: Fraction = 0.99
    #: The first step whose deviations count, and the first in which groups are dropped.
    start_step: Annotated[int, Field(ge=1)] = 6
    filter_step: Annotated[int, Field(ge=2)] = 11

    @model_validator(mode="after")
    def _has_something_to_average(self) -> Self:
        if self.start_step >= self.filter_step:
            raise ValueError("start_step must come before filter_step: there would be nothing to average")
        return self


_Filter = Annotated[
    AccuracyFilter | SpreadFilter | TruncationFilter | StdThresholdFilter, Field(discriminator="kind")
]


def _listed(value: Any) -> Any:
    if value is None:
        return []
    return value if isinstance(value, (list, tuple)) else [value]


#: One section, a list of them, or null: a group has to pass all of them.
FilterConfig = Annotated[list[_Filter], BeforeValidator(_listed)]
