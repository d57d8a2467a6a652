"""One run: all sections, and which of them fit together."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from guerdon.services_file import ServiceConfig
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
from guerdon_trainer.config.fit import check_fit, check_rewards
from guerdon_trainer.config.importance import ImportanceConfig
from guerdon_trainer.config.services import (
    EvaluationConfig,
    FailureConfig,
    ProcessRewardConfig,
    RewardConfig,
    RolloutConfig,
    SourceConfig,
)
from guerdon_trainer.config.training import OptimizerConfig, TrainingConfig, WeightsConfig
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
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    #: Default: runs/<name>-seed<seed>.
    folder: Path | None = None
    policy: PolicyConfig
    data: DataConfig
    eval_data: DataConfig
    rollout: RolloutConfig = RolloutConfig()
    rewards: Annotated[list[RewardConfig], Field(min_length=1)]
    #: The name of the outcome reward that says how right a response is: for the accuracy, filter accuracy, loss nft and
    #: what a PRM learns. Default: the first. A response that a gate keeps from being asked for it counts as wrong.
    correctness: str | None = None
    process_reward: ProcessRewardConfig | None = None
    #: null for loss nft, which weighs responses itself.
    advantage: AdvantageConfig | None = GrpoConfig()
    loss: LossConfig = GspoConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    #: Off unless the section is there, `{}` for its defaults.
    importance: ImportanceConfig | None = None
    filter: FilterConfig = [SpreadFilter()]
    training: TrainingConfig = TrainingConfig()
    weights: WeightsConfig = WeightsConfig()
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
        name = self.loss.service
        return next((reward for reward in self.outcome_rewards if reward.name == name), None)

    @property
    def correctness_reward(self) -> RewardConfig:
        """The outcome reward that says how right a response is."""
        named = [reward for reward in self.outcome_rewards if self.correctness in (None, reward.name)]
        return named[0]

    @property
    def counts_on_correctness(self) -> str | None:
        """What takes correctness for a fraction of right, in [0, 1]; None when nothing does."""
        if self.process is not None:
            return f"an entry with role process ({self.process.name})"
        if self.loss.name == "nft":
            return "loss nft"
        return "filter accuracy" if any(one.kind == "accuracy" for one in self.filter) else None

    @property
    def needed_rewards(self) -> frozenset[str]:
        """The outcome rewards that something counts on besides the sum, whatever their weight."""
        correctness = self.correctness_reward if self.counts_on_correctness else None
        return frozenset(reward.name for reward in (correctness, self.injected) if reward)

    @property
    def sources(self) -> dict[str, SourceConfig]:
        """Where each service that the run uses is asked, by the name that counts and messages give it."""
        sources = {self.rollout.service: SourceConfig(service=self.rollout.service)}
        for reward in self.rewards:
            sources[reward.name] = reward.source
            if reward.backup:
                sources[reward.backup_name] = reward.backup
        if self.process and self.process_reward and self.process_reward.replicas:
            sources[self.process.replicas_name] = self.process_reward.replicas
        return {name: self._on_its_queue(sources[name]) for name in sorted(sources)}

    @property
    def spare_sources(self) -> dict[str, SourceConfig]:
        """The services that `guerdon run` starts and nothing in the recipe uses, by name."""
        used = {source.service for source in self.sources.values() if source.url is None}
        spare = {name: self._on_its_queue(SourceConfig(service=name)) for name in sorted(self.services)}
        return {name: source for name, source in spare.items() if source.service not in used}

    def _on_its_queue(self, source: SourceConfig) -> SourceConfig:
        """A service that the run starts may take its work from a queue of another name."""
        started = self.services.get(source.service or "")
        if source.url is not None or started is None or started.queue is None:
            return source
        return source.model_copy(update={"service": started.queue})

    @property
    def run_folder(self) -> Path:
        """Where this run keeps everything, absolute."""
        return (self.folder or Path("runs") / f"{self.name}-seed{self.seed}").absolute()

    @model_validator(mode="after")
    def _rewards_fit_together(self) -> Self:
        check_rewards(self)
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
