"""REINFORCE (Williams, 1992): the plain policy gradient, without ratio or clip.

Shape suffixes: B sequences, T response tokens (padded right).
"""

from torch import Tensor

from guerdon_trainer.losses.aggregate import Aggregation, aggregate
from guerdon_trainer.losses.base import Loss, masked


def reinforce_loss(
    logps_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    aggregation: Aggregation = "token-mean",
    norm: float | None = None,
    denominator: float | None = None,
) -> Loss:
    """-A_t log pi(y_t): right on policy, and biased by whatever drift there is.

    Args:
        logps_BT: log-probabilities (nats, fp32) under the policy being trained; carries the gradient.
        advantages_BT: one advantage per token.
        mask_BT: 1 on response tokens, 0 on padding.
        aggregation, norm, denominator: how token losses become one number, see `aggregate`.
    """
    logps_BT = masked(logps_BT, mask_BT)
    losses_BT = -masked(advantages_BT, mask_BT) * logps_BT
    value = aggregate(losses_BT, mask_BT, aggregation, norm=norm, denominator=denominator)
    metrics = {"logp_mean": logps_BT.detach().sum() / mask_BT.sum().clamp(min=1)}
    return Loss(value=value, metrics=metrics, count=mask_BT.sum())
