"""Tensor maths shared by services and trainers: pure functions. The only module here that needs torch.

Shape suffixes: B sequences, T response tokens, N token positions, D hidden size, V vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint  # pyright: ignore[reportUnknownVariableType]

Aggregation = Literal["mean", "product", "geometric_mean", "mean_logprob"]
PairWeights = Literal["none", "acc", "rm"]


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


@dataclass(frozen=True)
class PairTargets:
    """What each response is compared with in `prm_pairwise_loss`: constants, each of shape (B,).

    A response is to exceed `below` with weight `rise` and to stay under `above` with weight 1 - `rise`.
    """

    rise_B: Tensor
    below_B: Tensor
    above_B: Tensor
    weight_B: Tensor

    def rows(self, indices: Sequence[int]) -> "PairTargets":
        """Those of some responses, as for one part of a batch."""
        chosen = torch.tensor(list(indices), dtype=torch.long, device=self.rise_B.device)
        return PairTargets(
            self.rise_B[chosen], self.below_B[chosen], self.above_B[chosen], self.weight_B[chosen]
        )

    def to(self, device: torch.device) -> "PairTargets":
        """The same on a device."""
        return PairTargets(
            self.rise_B.to(device), self.below_B.to(device), self.above_B.to(device), self.weight_B.to(device)
        )


def pairwise_targets(
    logits_B: Tensor, outcomes_B: Tensor, groups: Sequence[object], *, weights: PairWeights = "none"
) -> PairTargets:
    """Mean logits of each response's worse and better rivals in its group, detached; PRIME's "detached DPO".

    `logits_B` are beta * sum_t q_it. `rise` is the share of the rivals that are worse; with equal outcomes
    throughout a group it is the outcome itself and both rivals are 0, which leaves cross-entropy. `weights`: 1
    each, or the density of the best of K draws at this response, K * (share of the group that is no better)
    ^ (K - 1), by outcome (`acc`) or by logit (`rm`).
    """
    logits_B, outcomes_B = logits_B.detach().float(), outcomes_B.float()
    rise_B, below_B, above_B = outcomes_B.clone(), torch.zeros_like(logits_B), torch.zeros_like(logits_B)
    weight_B = torch.ones_like(logits_B)
    for rows in _members(groups).values():
        logits_K, outcomes_K = logits_B[rows], outcomes_B[rows]
        worse_KK = outcomes_K.unsqueeze(0) < outcomes_K.unsqueeze(1)
        better_KK = worse_KK.T
        worse_K, better_K = worse_KK.sum(-1), better_KK.sum(-1)
        rivals_K = worse_K + better_K
        rise_B[rows] = torch.where(rivals_K > 0, worse_K / rivals_K.clamp(min=1), outcomes_K)
        below_B[rows] = torch.where(worse_KK, logits_K, 0).sum(-1) / worse_K.clamp(min=1)
        above_B[rows] = torch.where(better_KK, logits_K, 0).sum(-1) / better_K.clamp(min=1)
        if weights != "none":
            by_K = outcomes_K if weights == "acc" else logits_K
            no_better_K = (by_K.unsqueeze(0) <= by_K.unsqueeze(1)).float().mean(-1)
            weight_B[rows] = len(rows) * no_better_K ** (len(rows) - 1)
    return PairTargets(rise_B, below_B, above_B, weight_B)


def prm_pairwise_loss(
    log_ratios_BT: Tensor,
    mask_BT: Tensor,
    targets: PairTargets,
    *,
    beta: float,
    denominator: int | None = None,
) -> Tensor:
    """Logistic loss of each response against the mean of its rivals, scalar; PRIME's "detached DPO".

    mean_i weight_i * [rise_i softplus(below_i - Q_i) + (1 - rise_i) softplus(Q_i - above_i)] with Q = beta *
    sum_t q_it. Rivals are constants, so parts of a batch add up exactly; `denominator` as in `prm_ce_loss`.
    """
    logits_B = beta * torch.where(mask_BT.bool(), log_ratios_BT, 0).sum(-1)
    up_B = targets.rise_B * F.softplus(targets.below_B - logits_B)
    down_B = (1 - targets.rise_B) * F.softplus(logits_B - targets.above_B)
    total = (targets.weight_B * (up_B + down_B)).sum()
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
    accuracies: list[float] = []
    for rows in _members(groups).values():
        scores_K, outcomes_K = scores_B[rows], outcomes_B[rows]
        better_KK = outcomes_K.unsqueeze(1) - outcomes_K.unsqueeze(0)
        lead_KK = scores_K.unsqueeze(1) - scores_K.unsqueeze(0)
        ahead_KK = (lead_KK.sign() + 1) / 2
        weight_KK = better_KK.clamp(min=0)
        total = float(weight_KK.sum())
        accuracies.append(float((weight_KK * ahead_KK).sum()) / total if total > 0 else 0.5)
    return sum(accuracies) / len(accuracies) if accuracies else 0.5


def _members(groups: Sequence[object]) -> dict[object, list[int]]:
    members: dict[object, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    return members


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
