"""PRIME: process and outcome rewards in one advantage (arXiv:2502.01456, equation 5).

Shape suffixes: B responses, T response tokens (padded right).
"""

from typing import Literal

from torch import Tensor

from guerdon_trainer.advantages.groups import Groups, grouped
from guerdon_trainer.advantages.returns import on_last_token, returns_to_go, whitened
from guerdon_trainer.losses.base import masked, row_means


def prime_advantages(
    token_rewards_BT: Tensor,
    outcomes_B: Tensor,
    mask_BT: Tensor,
    groups_B: Tensor,
    valid_B: Tensor,
    *,
    form: Literal["paper", "released"] = "paper",
    gamma_process: float = 1.0,
    gamma_outcome: float = 1.0,
    process_weight: float = 1.0,
    outcome_weight: float = 1.0,
    whiten: bool = True,
) -> Tensor:
    """Leave-one-out returns of process rewards plus those of the outcome reward, shape (B, T), 0 on padding.

    Args:
        token_rewards_BT: implicit process rewards r_t.
        outcomes_B: the verifier's reward r_o.
        mask_BT: 1 on response tokens, 0 on padding.
        groups_B, valid_B: see `grpo_advantages`; here a response is valid when it has all of its rewards.
        form: `paper` subtracts from r_t the mean over the other responses of their average token reward.
            `released` is what the authors' code computes: r_t * K/(K-1) minus the group's summed average over
            K-1. Both agree on average over a response; the latter stretches differences within it by K/(K-1).
        gamma_process, gamma_outcome: discounts of later process rewards, and of the outcome on the last token.
        process_weight, outcome_weight: multiply the terms; a process weight of 0 switches that one off.
        whiten: centre and scale over all tokens of the batch, as the authors' code does and the paper does not say.

    An empty response has an outcome and counts in the outcome's baseline; it has no average token reward, and
    stays out of the process term's.
    """
    groups = grouped(groups_B, valid_B, token_rewards_BT.dtype)
    mask_BT = mask_BT.bool() & groups.usable_B[:, None]
    outcome_B = groups.leave_one_out(outcomes_B)
    returns_BT = outcome_weight * returns_to_go(on_last_token(outcome_B, mask_BT), mask_BT, gamma_outcome)
    if process_weight != 0:
        filled = grouped(groups_B, groups.valid_B & mask_BT.any(-1), token_rewards_BT.dtype)
        process_BT = _process_term(masked(token_rewards_BT, mask_BT), mask_BT, filled, form)
        returns_BT = returns_BT + process_weight * returns_to_go(process_BT, mask_BT, gamma_process)
    return whitened(returns_BT, mask_BT) if whiten else returns_BT


def _process_term(rewards_BT: Tensor, mask_BT: Tensor, filled: Groups, form: str) -> Tensor:
    """Each token's process reward minus its baseline; 0 in groups with fewer than two filled responses."""
    averages_B = row_means(rewards_BT, mask_BT)
    if form == "paper":
        centred_BT = rewards_BT - filled.mean_of_others(averages_B)[:, None]
    elif form == "released":
        others_B = (filled.count_B - 1).clamp(min=1)
        stretch_B = filled.count_B / others_B
        centred_BT = rewards_BT * stretch_B[:, None] - (filled.sum(averages_B) / others_B)[:, None]
    else:
        raise ValueError(f"form {form!r} is neither paper nor released")
    return masked(centred_BT, mask_BT & filled.usable_B[:, None])
