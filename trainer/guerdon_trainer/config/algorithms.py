"""Sections on what is learned from rewards: advantages, losses and group filters, each named after its function."""

from typing import Annotated, Literal

from pydantic import Field

from guerdon_trainer.config.base import Fraction, Section


class GrpoConfig(Section):
    """See `advantages.grpo`."""

    name: Literal["grpo"] = "grpo"
    scale: Literal["std", "batch_std", "none"] = "std"
    eps: Annotated[float, Field(gt=0)] = 1e-6


class RlooConfig(Section):
    """See `advantages.rloo`."""

    name: Literal["rloo"] = "rloo"


class PrimeConfig(Section):
    """See `advantages.prime`; the weight of the process term stands with its entry in `rewards`."""

    name: Literal["prime"] = "prime"
    form: Literal["paper", "released"] = "paper"
    gamma_process: Fraction = 1.0
    gamma_outcome: Fraction = 1.0
    outcome_weight: float = 1.0
    whiten: bool = True


class GspoConfig(Section):
    """See `losses.gspo`: one advantage per sequence."""

    name: Literal["gspo"] = "gspo"
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 3e-4
    clip_high: Annotated[float, Field(gt=0)] = 4e-4


class GspoTokenConfig(Section):
    """See `losses.gspo_token`: the sequence ratio with an advantage per token."""

    name: Literal["gspo_token"] = "gspo_token"
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 3e-4
    clip_high: Annotated[float, Field(gt=0)] = 4e-4


class PpoClipConfig(Section):
    """See `losses.ppo_clip`."""

    name: Literal["ppo_clip"] = "ppo_clip"
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_high: Annotated[float, Field(gt=0)] = 0.2
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    aggregation: Literal["token-mean", "seq-mean-token-mean"] = "token-mean"


AdvantageConfig = Annotated[GrpoConfig | RlooConfig | PrimeConfig, Field(discriminator="name")]
LossConfig = Annotated[GspoConfig | GspoTokenConfig | PpoClipConfig, Field(discriminator="name")]


class AccuracyFilter(Section):
    """Keeps the groups whose accuracy lies in [lower, upper] (PRIME keeps 0.2 to 0.8)."""

    kind: Literal["accuracy"] = "accuracy"
    lower: Fraction = 0.2
    upper: Fraction = 0.8


class SpreadFilter(Section):
    """Keeps the groups whose rewards have a standard deviation above `min_std`: 0 drops uniform groups."""

    kind: Literal["spread"] = "spread"
    min_std: Annotated[float, Field(ge=0)] = 0.0


FilterConfig = Annotated[AccuracyFilter | SpreadFilter, Field(discriminator="kind")]
