"""What a run is: one frozen pydantic tree, read from a YAML recipe and `key=value` overrides.

To add a setting, put it into its section; a new algorithm gets a section of its own in `algorithms.py`.
"""

from guerdon_trainer.config.algorithms import (
    AccuracyFilter,
    AdvantageConfig,
    FilterConfig,
    LossConfig,
    SpreadFilter,
    StdThresholdFilter,
    TruncationFilter,
)
from guerdon_trainer.config.errors import RecipeError
from guerdon_trainer.config.recipe import load_recipe, recipe_names
from guerdon_trainer.config.run import RunConfig
from guerdon_trainer.config.services import (
    FailureConfig,
    ProcessRewardConfig,
    PushConfig,
    RewardConfig,
    RolloutConfig,
    SourceConfig,
)
from guerdon_trainer.config.training import LoraConfig, OptimizerConfig, TrainingConfig, WeightsConfig

__all__ = [
    "AccuracyFilter",
    "AdvantageConfig",
    "FailureConfig",
    "FilterConfig",
    "LoraConfig",
    "LossConfig",
    "OptimizerConfig",
    "ProcessRewardConfig",
    "PushConfig",
    "RecipeError",
    "RewardConfig",
    "RolloutConfig",
    "RunConfig",
    "SourceConfig",
    "SpreadFilter",
    "StdThresholdFilter",
    "TrainingConfig",
    "TruncationFilter",
    "WeightsConfig",
    "load_recipe",
    "recipe_names",
]
