"""Advantages and group filters: pure functions on tensors, one file per algorithm.

To add one: write `advantages/NAME.py`, name it here, and add its golden values to `tests/trainer/advantages`.
"""

from guerdon_trainer.advantages.filters import keep_by_accuracy
from guerdon_trainer.advantages.grpo import grpo_advantages
from guerdon_trainer.advantages.prime import prime_advantages
from guerdon_trainer.advantages.rloo import rloo_advantages

__all__ = ["grpo_advantages", "keep_by_accuracy", "prime_advantages", "rloo_advantages"]
