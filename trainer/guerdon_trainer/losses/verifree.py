"""VeriFree (arXiv:2505.21493, equation 5): a policy gradient on the reasoning, likelihood of the reference after it.

A row holds the sampled reasoning z and then the reference answer y* that was put in place of the sampled one.

Shape suffixes: B sequences, T tokens of reasoning and reference (padded right).
"""

import torch
from torch import Tensor

from guerdon_trainer.losses.aggregate import Aggregation, aggregate
from guerdon_trainer.losses.base import Loss, masked, share


def verifree_loss(
    logps_BT: Tensor,
    advantages_B: Tensor,
    weights_B: Tensor,
    mask_BT: Tensor,
    reference_BT: Tensor,
    *,
    aggregation: Aggregation = "seq-mean-token-sum",
    norm: float | None = None,
    denominator: float | None = None,
) -> Loss:
    """-A_i log pi(z_i) - R_i log pi(y* | z_i), a sum over each row's tokens and the mean over rows.

    There is no importance ratio and nothing is clipped: a row should be scored by the policy that is trained.

    Args:
        logps_BT: log-probabilities (nats, fp32) under the policy being trained; carries the gradient.
        advantages_B: what the reasoning is worth; a constant.
        weights_B: how much the reference's likelihood counts: R_i, the probability of the reference; a constant.
            Ignored in rows without reference tokens, a response that has no place for an answer.
        mask_BT: 1 on the tokens of the row, 0 on padding.
        reference_BT: 1 on those of the reference.
        aggregation, norm, denominator: how token losses become one number, see `aggregate`.
    """
    mask_BT, reference_BT = mask_BT.bool(), reference_BT.bool() & mask_BT.bool()
    logps_BT = masked(logps_BT, mask_BT)
    # where(), so that a weight which is no number does not reach the rows without a reference. One weight per row
    # meets one row of tokens: the released code multiplies (B, 1) by (B,) and trains on their outer product.
    weights_BT = torch.where(reference_BT, weights_B[:, None].detach(), advantages_B[:, None].detach())
    losses_BT = -masked(weights_BT, mask_BT) * logps_BT
    value = aggregate(losses_BT, mask_BT, aggregation, norm=norm, denominator=denominator)
    metrics = {"reference_share": share(reference_BT, mask_BT)}
    return Loss(value=value, metrics=metrics, count=mask_BT.sum())
