"""What a run is: one frozen pydantic tree, read from a YAML recipe and `key=value` overrides.

A recipe is found by name in `guerdon_trainer/recipes` or by the path of a file. An override names a key by its
dotted path (`loss.clip_low=1e-3`, `rewards.0.weight=2`, `seed=1`); its value is YAML. In any string `${run}` stands
for the absolute path of the run folder, which is how services find the weights this run publishes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from guerdon.supervisor import ServiceConfig
from guerdon.types import Options
from guerdon_trainer.config_errors import RecipeError, explain
from guerdon_trainer.data import DataConfig
from guerdon_trainer.prepare import PolicyConfig

RECIPES = Path(__file__).parent / "recipes"
RUN_VARIABLE = "${run}"

Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """Base of every part of a recipe: unknown keys are errors, and nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class RolloutConfig(Section):
    """How responses are sampled."""

    service: str = "rollout"
    prompts_per_step: Count = 32
    group_size: Annotated[int, Field(ge=2)] = 8
    max_new_tokens: Count = 256
    temperature: Annotated[float, Field(gt=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    stop: list[str] = []
    #: Groups being sampled or scored at the same time.
    groups_in_flight: Count = 256
    #: A step asks for at most this many times `prompts_per_step` prompts.
    refill_budget: Annotated[float, Field(ge=1)] = 8.0
    #: What to do when they are spent. error: end the run. train: go on with the groups there are, if any.
    when_spent: Literal["error", "train"] = "error"
    #: Responses sampled by a policy older than this many versions are asked for again.
    max_policy_age: Annotated[int, Field(ge=0)] = 0


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


class ProcessRewardConfig(Section):
    """How the PRM behind the process reward learns during the run."""

    #: before: update on the batch, then score it; after: scores precede the update; none: it never learns.
    order: Literal["before", "after", "none"] = "before"
    #: A PRM that dies is restarted; the step waits this long for its answer, in seconds.
    time_limit_s: Annotated[float, Field(gt=0)] = 600.0


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


class OptimizerConfig(Section):
    """AdamW, one linear warm-up, then a constant rate."""

    lr: Annotated[float, Field(gt=0)] = 1e-6
    #: Optimiser steps over which the rate rises from 0.
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    #: Optimiser steps per batch; beyond one the later ones are off policy, which is what clipping is for.
    mini_batches: Count = 1
    #: Log-probabilities that ratios start from. recompute: the trainer's own, of the weights before the step, which
    #: must be those that sampled. engine: those that came with the rollouts, right for older policies too.
    old_logprobs: Literal["recompute", "engine"] = "recompute"
    #: Padded tokens (prompt and response) per forward pass; bounds memory, changes no result.
    micro_batch_tokens: Count = 16_384


class AccuracyFilter(Section):
    """Keeps the groups whose accuracy lies in [lower, upper] (PRIME keeps 0.2 to 0.8)."""

    kind: Literal["accuracy"] = "accuracy"
    lower: Fraction = 0.2
    upper: Fraction = 0.8


class SpreadFilter(Section):
    """Keeps the groups whose rewards have a standard deviation above `min_std`: 0 drops uniform groups."""

    kind: Literal["spread"] = "spread"
    min_std: Annotated[float, Field(ge=0)] = 0.0


class TrainingConfig(Section):
    """How long to train, and what to keep of it."""

    steps: Count = 100
    #: Steps between checkpoints; there is one before the first step and one after the last in any case.
    checkpoint_every: Count = 10
    keep_last: Count = 2
    #: Steps between held-out evaluations; 0 evaluates only before and after.
    eval_every: Annotated[int, Field(ge=0)] = 0
    #: Keep the initial policy in memory and report how far the trained one has moved from it.
    kl_to_initial: bool = True
    device: str = "cpu"
    #: CPU threads of torch; on a busy machine more than one can cost more than it gives.
    threads: Count = 1


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


class RunConfig(Section):
    """One run. Everything that can change its numbers is in here."""

    name: str
    description: str = ""
    seed: Annotated[int, Field(ge=0)] = 0
    #: Default: runs/<name>-seed<seed>.
    folder: Path | None = None
    policy: PolicyConfig
    data: DataConfig
    eval_data: DataConfig
    rollout: RolloutConfig = RolloutConfig()
    rewards: Annotated[list[RewardConfig], Field(min_length=1)]
    process_reward: ProcessRewardConfig | None = None
    advantage: AdvantageConfig = GrpoConfig()
    loss: LossConfig = GspoConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    filter: Annotated[AccuracyFilter | SpreadFilter, Field(discriminator="kind")] | None = SpreadFilter()
    training: TrainingConfig = TrainingConfig()
    failures: FailureConfig = FailureConfig()
    #: What `guerdon run` starts; `guerdon train` uses services that run already.
    services: dict[str, ServiceConfig] = {}

    @property
    def outcome_rewards(self) -> list[RewardConfig]:
        """The rewards that give one number per response."""
        return [reward for reward in self.rewards if reward.role == "outcome"]

    @property
    def process(self) -> RewardConfig | None:
        """The reward that gives one number per token, if any."""
        return next((reward for reward in self.rewards if reward.role == "process"), None)

    @property
    def run_folder(self) -> Path:
        """Where this run keeps everything, absolute."""
        return (self.folder or Path("runs") / f"{self.name}-seed{self.seed}").absolute()

    @model_validator(mode="after")
    def _rewards_fit_together(self) -> Self:
        if not self.outcome_rewards:
            raise ValueError("rewards needs at least one entry with role outcome")
        names = [reward.service for reward in self.rewards]
        if len(set(names)) < len(names):
            raise ValueError("rewards names a service twice")
        if sum(reward.role == "process" for reward in self.rewards) > 1:
            raise ValueError("rewards may have one entry with role process")
        if (self.process is None) != (self.process_reward is None):
            raise ValueError(
                "an entry of rewards with role process and the section process_reward need each other"
            )
        if (self.advantage.name == "prime") != (self.process is not None):
            raise ValueError("advantage prime and an entry of rewards with role process need each other")
        return self

    @model_validator(mode="after")
    def _old_logprobs_fit_the_age(self) -> Self:
        if self.rollout.max_policy_age and self.optimizer.old_logprobs == "recompute":
            raise ValueError("rollout.max_policy_age above 0 needs optimizer.old_logprobs engine")
        return self

    @model_validator(mode="after")
    def _loss_fits_advantage(self) -> Self:
        if self.advantage.name == "prime" and self.loss.name == "gspo":
            raise ValueError("advantage prime is per token and loss gspo per sequence: use loss gspo_token")
        return self


def load_recipe(recipe: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a recipe by name or path, apply `key=value` overrides and check the whole.

    Raises:
        RecipeError: no such recipe, or a key or value that does not fit; the message names it.
    """
    raw = _read(_find(recipe))
    raw.setdefault("name", Path(recipe).stem)
    for override in overrides:
        _apply(raw, override)
    # Where the run lies must be known before `${run}` can be replaced in the rest.
    run_folder = _validated(raw).run_folder
    return _validated(_substituted(raw, str(run_folder)))


def recipe_names() -> list[str]:
    """The recipes that come with the trainer."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def _find(recipe: str) -> Path:
    named = RECIPES / f"{recipe}.yaml"
    if named.is_file():
        return named
    path = Path(recipe)
    if path.is_file():
        return path
    raise RecipeError(
        f"no recipe {recipe!r}: it is no file, and the named ones are {', '.join(recipe_names())}"
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise RecipeError(f"{path} is not YAML: {error}") from error
    if not isinstance(raw, dict):
        raise RecipeError(f"{path} must hold keys and values, not {type(raw).__name__}")
    return raw


def _apply(raw: dict[str, Any], override: str) -> None:
    dotted, equals, text = override.partition("=")
    if not equals or not dotted:
        raise RecipeError(f"override {override!r} must look like key=value, for example seed=1")
    *parents, last = dotted.split(".")
    node: Any = raw
    for depth, part in enumerate(parents):
        if isinstance(node, list):
            node = node[_list_index(node, part, dotted)]
            continue
        if node.get(part) is None:
            node[part] = {}
        node = node[part]
        if not isinstance(node, (dict, list)):
            raise RecipeError(
                f"override {dotted!r}: {'.'.join(parents[: depth + 1])} is a value, not a section"
            )
    key: Any = _list_index(node, last, dotted) if isinstance(node, list) else last
    node[key] = yaml.safe_load(text)


def _list_index(node: list[Any], part: str, dotted: str) -> int:
    if not part.isdecimal() or int(part) >= len(node):
        raise RecipeError(f"override {dotted!r}: {part!r} must be a number from 0 to {len(node) - 1}")
    return int(part)


def _substituted(value: Any, run_folder: str) -> Any:
    if isinstance(value, str):
        return value.replace(RUN_VARIABLE, run_folder)
    if isinstance(value, list):
        return [_substituted(item, run_folder) for item in value]
    if isinstance(value, dict):
        return {key: _substituted(item, run_folder) for key, item in value.items()}
    return value


def _validated(raw: dict[str, Any]) -> RunConfig:
    try:
        return RunConfig.model_validate(raw)
    except ValidationError as error:
        raise RecipeError(explain(error, RunConfig)) from None
