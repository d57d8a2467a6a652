"""Losses: pure functions on tensors, one file per algorithm.

To add one: write `losses/NAME.py` with a function that returns a `Loss`, name it here, and add its golden values and
its gradient to `tests/trainer/losses`.
"""

from guerdon_trainer.losses.base import Loss
from guerdon_trainer.losses.gspo import gspo_loss
from guerdon_trainer.losses.gspo_token import gspo_token_loss
from guerdon_trainer.losses.kl import kl_estimate
from guerdon_trainer.losses.nft import nft_loss
from guerdon_trainer.losses.ppo_clip import ppo_clip_loss
from guerdon_trainer.losses.reinforce import reinforce_loss
from guerdon_trainer.losses.verifree import verifree_loss

__all__ = [
    "Loss",
    "gspo_loss",
    "gspo_token_loss",
    "kl_estimate",
    "nft_loss",
    "ppo_clip_loss",
    "reinforce_loss",
    "verifree_loss",
]
