"""One run: all sections, and which of them fit together."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from guerdon.supervisor import ServiceConfig
from guerdon_trainer.config.algorithms import (
    AdvantageConfig,
    FilterConfig,
    GrpoConfig,
    GspoConfig,
    LossConfig,
    SpreadFilter,
    VeriFreeConfig,
)
from guerdon_trainer.config.base import Section
from guerdon_trainer.config.fit import check_fit
from guerdon_trainer.config.importance import ImportanceConfig
from guerdon_trainer.config.services import (
    EvaluationConfig,
    FailureConfig,
    ProcessRewardConfig,
    RewardConfig,
    RolloutConfig,
)
from guerdon_trainer.config.training import OptimizerConfig, TrainingConfig
from guerdon_trainer.data import DataConfig
from guerdon_trainer.prepare import PolicyConfig

#: The losses that grow in proportion to their advantages, which is what importance weights need.
WEIGHTED_LOSSES = ("gspo", "gspo_token", "ppo_clip", "reinforce")

#: The losses that take every response for one of the policy they train.
WITHOUT_RATIO = ("reinforce", "verifree")


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
    #: null for loss nft, which weighs responses itself.
    advantage: AdvantageConfig | None = GrpoConfig()
    loss: LossConfig = GspoConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    #: Off unless the section is there, `{}` for its defaults.
    importance: ImportanceConfig | None = None
    filter: FilterConfig = [SpreadFilter()]
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    failures: FailureConfig = FailureConfig()
    #: See `guerdon_trainer.trackers`. All but tensorboard have to be installed.
    tracking: list[Literal["tensorboard", "wandb", "mlflow", "trackio"]] = ["tensorboard"]
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
    def injected(self) -> RewardConfig | None:
        """The reward whose reference answers take the place of the sampled ones in what is trained on, if any."""
        if not isinstance(self.loss, VeriFreeConfig):
            return None
        service = self.loss.service
        return next((reward for reward in self.outcome_rewards if reward.service == service), None)

    @property
    def counts_on_correctness(self) -> str | None:
        """What takes the first outcome reward for a fraction of right, in [0, 1]; None when nothing does."""
        if self.process is not None:
            return f"an entry with role process ({self.process.service})"
        if self.loss.name == "nft":
            return "loss nft"
        return "filter accuracy" if any(one.kind == "accuracy" for one in self.filter) else None

    @property
    def needed_rewards(self) -> frozenset[str]:
        """The outcome services without whose value a response has no reward: all but those that only measure."""
        needed = [reward for reward in self.outcome_rewards if reward.weight]
        if self.counts_on_correctness:
            needed.append(self.outcome_rewards[0])
        if self.injected:
            needed.append(self.injected)
        return frozenset(reward.service for reward in needed)

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
        return self

    @model_validator(mode="after")
    def _old_logprobs_fit_the_age(self) -> Self:
        if self.rollout.max_policy_age and self.loss.name in WITHOUT_RATIO and self.importance is None:
            instead = ", or give the section importance" if self.loss.name in WEIGHTED_LOSSES else ""
            raise ValueError(
                f"loss {self.loss.name} has no ratio to the policy that sampled: "
                f"rollout.max_policy_age must be 0{instead}"
            )
        recomputed = self.optimizer.old_logprobs == "recompute"
        if self.rollout.max_policy_age and recomputed and self.importance is None:
            raise ValueError(
                "rollout.max_policy_age above 0 needs optimizer.old_logprobs engine, or the section importance"
            )
        if self.rollout.ahead > self.rollout.max_policy_age:
            raise ValueError(
                "rollout.ahead above rollout.max_policy_age: groups would be too old when their step comes"
            )
        return self

    @model_validator(mode="after")
    def _importance_fits(self) -> Self:
        if self.importance is None:
            return self
        if self.optimizer.old_logprobs == "engine":
            raise ValueError("importance corrects nothing where optimizer.old_logprobs is engine")
        if self.loss.name not in WEIGHTED_LOSSES:
            raise ValueError(
                f"importance weights advantages, and loss {self.loss.name} has no use for them: "
                f"one of {', '.join(WEIGHTED_LOSSES)}"
            )
        if self.loss.name == "gspo" and self.importance.level == "token":
            raise ValueError("loss gspo is per sequence: importance.level must be sequence")
        return self

    @model_validator(mode="after")
    def _algorithms_fit(self) -> Self:
        check_fit(self)
        return self
