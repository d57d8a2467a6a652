"""Tensor maths shared by services and trainers: pure functions. The only module here that needs torch.

Shape suffixes: B sequences, T response tokens, N token positions, D hidden size, V vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint  # pyright: ignore[reportUnknownVariableType]

Aggregation = Literal["mean", "product", "geometric_mean", "mean_logprob"]


def chunked_logprobs(
    hidden_ND: Tensor,
    targets_N: Tensor,
    head: Callable[[Tensor], Tensor],
    *,
    temperature: float = 1.0,
    chunk: int = 1024,
) -> Tensor:
    """Log-probs of the targets in nats, fp32, shape (N,), with at most `chunk` rows of logits alive at a time.

    `head` maps hidden states (n, D) to logits (n, V); `temperature` divides the logits. With gradients a
    chunk's logits are computed again in the backward pass instead of being kept.
    """

    def one(hidden_nD: Tensor, targets_n: Tensor) -> Tensor:
        logits_nV = head(hidden_nD).float() / temperature
        chosen_n = logits_nV.gather(-1, targets_n.unsqueeze(-1)).squeeze(-1)
        return chosen_n - torch.logsumexp(logits_nV, dim=-1)

    starts = range(0, max(len(targets_N), 1), chunk)
    pieces = [(hidden_ND[start : start + chunk], targets_N[start : start + chunk]) for start in starts]
    if not torch.is_grad_enabled() or len(pieces) == 1:
        return torch.cat([one(hidden, targets) for hidden, targets in pieces])
    recomputed = cast(Callable[..., Tensor], checkpoint)
    return torch.cat([recomputed(one, hidden, targets, use_reentrant=False) for hidden, targets in pieces])


def implicit_rewards(prm_logps_BT: Tensor, ref_logps_BT: Tensor, *, beta: float) -> Tensor:
    """Implicit process reward of each token, shape as given; masked cells are meaningless.

    r_t = beta * (log pi_prm(y_t) - log pi_ref(y_t)), log-probs in nats; PRIME, arXiv:2502.01456.
    """
    return beta * (prm_logps_BT - ref_logps_BT)


def prm_ce_loss(
    log_ratios_BT: Tensor,
    mask_BT: Tensor,
    outcomes_B: Tensor,
    *,
    beta: float,
    denominator: int | None = None,
) -> Tensor:
    """Cross-entropy of the implicit PRM against outcome labels in [0, 1], scalar; PRIME, arXiv:2502.01456.

    mean_i BCE(sigmoid(beta * sum_t q_it), outcome_i) with q = log pi_prm - log pi_ref, from logits: its
    gradient is beta * (sigmoid - outcome) * mask / B even where the sigmoid saturates. `denominator` is B
    unless the batch is one part of a larger one whose losses are summed.
    """
    logits_B = beta * torch.where(mask_BT.bool(), log_ratios_BT, 0).sum(-1)
    total = F.binary_cross_entropy_with_logits(logits_B, outcomes_B.to(logits_B.dtype), reduction="sum")
    return total / (logits_B.shape[0] if denominator is None else denominator)


def normalise_returns(rewards_BT: Tensor, mask_BT: Tensor, *, eps: float = 1e-6) -> Tensor:
    """Divide rewards by the largest absolute return-to-go of the batch, shape (B, T); 0 where masked.

    PRIME's `batch_norm`. Whoever calls it decides what a batch is: the scale depends on all of its rows.
    """
    rewards_BT = torch.where(mask_BT.bool(), rewards_BT, 0)
    if rewards_BT.numel() == 0:
        return rewards_BT
    returns_BT = rewards_BT.flip(-1).cumsum(-1).flip(-1)
    return rewards_BT / (returns_BT.abs().max() + eps)


def pairwise_accuracy(scores_B: Tensor, outcomes_B: Tensor, groups: Sequence[object]) -> float:
    """How often the better response of a pair has the higher score, in [0, 1], mean over groups.

    Pairs of one group are weighted by how far their outcomes differ; equal scores count half, as does a group
    of equal outcomes.
    """
    members: dict[object, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    accuracies: list[float] = []
    for rows in members.values():
        scores_K, outcomes_K = scores_B[rows], outcomes_B[rows]
        better_KK = outcomes_K.unsqueeze(1) - outcomes_K.unsqueeze(0)
        lead_KK = scores_K.unsqueeze(1) - scores_K.unsqueeze(0)
        ahead_KK = (lead_KK.sign() + 1) / 2
        weight_KK = better_KK.clamp(min=0)
        total = float(weight_KK.sum())
        accuracies.append(float((weight_KK * ahead_KK).sum()) / total if total > 0 else 0.5)
    return sum(accuracies) / len(accuracies) if accuracies else 0.5


def aggregate_logprobs(logps_T: Tensor, aggregation: Aggregation) -> float:
    """One number from the log-probs (nats) of a reference answer's tokens; double precision, in log space.

    mean: mean token probability (RLPR, arXiv:2506.18254); product: probability of the whole answer (VeriFree,
    arXiv:2505.21493); geometric_mean: exp of the mean log-prob; mean_logprob: that mean itself, in nats.

    Raises:
        ValueError: there are no tokens.
    """
    if logps_T.numel() == 0:
        raise ValueError("no token to aggregate")
    logps_T = logps_T.double()
    match aggregation:
        case "mean":
            return float(logps_T.exp().mean())
        case "product":
            return math.exp(float(logps_T.sum()))
        case "geometric_mean":
            return math.exp(float(logps_T.mean()))
        case "mean_logprob":
            return float(logps_T.mean())


def debiased(probability: float, baseline: float) -> float:
    """RLPR's reward: what the reasoning added to the reference's probability, clipped to [0, 1]."""
    return min(max(probability - baseline, 0.0), 1.0)


def threshold_shaped(x: float, threshold: float) -> float:
    """0 below the threshold, as it is from there on; RLPR's `threshold_T`."""
    return 0.0 if x < threshold else x


def leaky_shaped(x: float, threshold: float, *, slope: float = 0.01) -> float:
    """`slope` times the value below the threshold, as it is from there on; RLPR's `leaky_T`."""
    return slope * x if x < threshold else x


def sigmoid_shaped(x: float, steepness: float, *, threshold: float = 0.0) -> float:
    """sigmoid(steepness * (2x - 1)), and 0 where that is below the threshold.

    RLPR's `sigmoid_K` and `comp_threshold_T_sigmoid_K`.
    """
    curve = 1 / (1 + math.exp(-steepness * (2 * x - 1)))
    return threshold_shaped(curve, threshold)
