"""Truncated importance sampling: corrects for an engine that samples by other log-probabilities than the trainer's.

The engine's kernels, precision or age make the policy mu that sampled another one than the trainer's pi_old, from
which the ratios of a loss start. Each term of the loss is then weighted with min(pi_old / mu, cap) (Yao et al., "Your
Efficient RL Framework Secretly Brings You Off-Policy RL Training", 2025; the ratio of AReaL's decoupled objective,
arXiv:2505.24298, equation 5, where mu is an older policy). The clipped losses are positively homogeneous in their
advantages, so that weighting an advantage weights its term.

Shape suffixes: B sequences, T response tokens (padded right).
"""

import math
from typing import Literal

from torch import Tensor

from guerdon_trainer.losses.base import masked

Level = Literal["token", "sequence"]


def importance_weights(
    trainer_BT: Tensor, engine_BT: Tensor, mask_BT: Tensor, *, level: Level, cap: float
) -> Tensor:
    """The detached weights, (B, T), at most `cap`; outside the mask 0.

    Args:
        trainer_BT: log-probabilities (nats, fp32) of the sampled tokens by the trainer, of the weights before the step.
        engine_BT: those by the engine that sampled them.
        mask_BT: 1 on response tokens, 0 on padding.
        level: `token`: the ratio of each token; `sequence`: the product of all ratios of a response, on each token.
    """
    log_ratio_BT = masked(trainer_BT.detach() - engine_BT, mask_BT)
    if level == "sequence":
        log_ratio_BT = log_ratio_BT.sum(-1, keepdim=True).expand(mask_BT.shape)
    # Held before exp: the product over a long response overflows.
    return masked(log_ratio_BT.clamp(max=math.log(cap)).exp().clamp(max=cap), mask_BT)


def weighted(advantages: Tensor, weights_BT: Tensor) -> Tensor:
    """Advantages with these weights: (B, T), or (B,) where the advantages are and the weights of each row are equal."""
    if advantages.dim() == 2:
        return advantages * weights_BT
    # The largest of a row: an empty one has nothing but padding, and contributes nothing.
    return advantages * weights_BT.amax(-1)


def truncated(weights_BT: Tensor, mask_BT: Tensor, cap: float) -> Tensor:
    """1 where the cap binds, for a mean over the tokens of the mask."""
    return masked((weights_BT >= cap).float(), mask_BT)
