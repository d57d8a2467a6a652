"""Advantages and group filters: pure functions on tensors, one file per algorithm.

To add one: write `advantages/NAME.py`, name it here, and add its golden values to `tests/trainer/advantages`.
"""

from guerdon_trainer.advantages.filters import StdThreshold, keep_by_accuracy, keep_by_length
from guerdon_trainer.advantages.gae import gae_advantages
from guerdon_trainer.advantages.groups import group_rates
from guerdon_trainer.advantages.grpo import grpo_advantages
from guerdon_trainer.advantages.prime import prime_advantages
from guerdon_trainer.advantages.reinforce_pp import reinforce_pp_advantages
from guerdon_trainer.advantages.rloo import rloo_advantages

__all__ = [
    "StdThreshold",
    "gae_advantages",
    "group_rates",
    "grpo_advantages",
    "keep_by_accuracy",
    "keep_by_length",
    "prime_advantages",
    "reinforce_pp_advantages",
    "rloo_advantages",
]
