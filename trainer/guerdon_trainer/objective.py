"""What a step minimises: the recipe's advantages and its loss, with the counts they are divided by.

A loss is a sum over responses or tokens divided by a count of the whole mini-batch, on all ranks: the sums of
micro-batches then add up to the mini-batch, however it is cut. The count is one of learned tokens (aggregation
token-mean) or of learned responses with a token (every other one, GSPO included). Responses without reward, truncated
ones where the recipe masks them, and empty ones are not counted; those of uniform groups are, and add 0.

Shape suffixes: B responses, T response tokens.
"""

from typing import Any

from torch import Tensor

from guerdon_trainer.advantages import (
    group_rates,
    grpo_advantages,
    prime_advantages,
    reinforce_pp_advantages,
    rloo_advantages,
)
from guerdon_trainer.batch import Batch
from guerdon_trainer.config import LossConfig, RunConfig
from guerdon_trainer.config.algorithms import (
    AggregatedLoss,
    GrpoConfig,
    GspoConfig,
    GspoTokenConfig,
    LossSection,
    NftConfig,
    PpoClipConfig,
    PrimeConfig,
    ReinforceConfig,
    ReinforcePpConfig,
    RlooConfig,
    VeriFreeConfig,
)
from guerdon_trainer.losses import (
    Loss,
    gspo_loss,
    gspo_token_loss,
    kl_estimate,
    nft_loss,
    ppo_clip_loss,
    reinforce_loss,
    verifree_loss,
)
from guerdon_trainer.losses.aggregate import Aggregation, aggregate
from guerdon_trainer.losses.base import masked

#: Keys of a loss's section that are no argument of its function.
_OURS = {"name", "service", "weight", *LossSection.model_fields}


def advantages_of(config: RunConfig, batch: Batch, kl_BT: Tensor | None = None) -> Tensor:
    """The recipe's advantages of a whole batch: (B,), or (B, T) for those per token.

    For NFT, which has none, how often each response's group is right: what its loss weighs responses with.

    Args:
        kl_BT: `step.kl_in_reward`, where the recipe has one.
    """
    advantage = config.advantage
    options = {} if advantage is None else advantage.model_dump(exclude={"name", "kl_coefficient"})
    process_weight = config.process.weight if config.process else 0.0
    groups = (batch.groups_B, batch.valid_B)
    match advantage:
        case None:
            return group_rates(batch.outcomes_B, *groups)
        case GrpoConfig():
            return grpo_advantages(batch.rewards_B, *groups, **options)
        case RlooConfig():
            return rloo_advantages(batch.rewards_B, *groups, **options)
        case ReinforcePpConfig():
            tokens_BT = process_weight * batch.token_rewards_BT if config.process else None
            if kl_BT is not None:
                penalty_BT = -advantage.kl_coefficient * kl_BT
                tokens_BT = penalty_BT if tokens_BT is None else tokens_BT + penalty_BT
            return reinforce_pp_advantages(
                batch.rewards_B, batch.mask_BT, *groups, token_rewards_BT=tokens_BT, **options
            )
        case PrimeConfig():
            return prime_advantages(
                batch.token_rewards_BT,
                batch.rewards_B,
                batch.mask_BT,
                *groups,
                process_weight=process_weight,
                **options,
            )


def loss_of(
    config: LossConfig,
    logps_BT: Tensor,
    old_logps_BT: Tensor,
    advantages: Tensor,
    batch: Batch,
    denominator: float,
    *,
    initial_logps_BT: Tensor | None = None,
    entropy_BT: Tensor | None = None,
) -> Loss:
    """The recipe's loss of a micro-batch, with its KL term and entropy bonus.

    Args:
        advantages: (B,) or (B, T), the rows of `advantages_of` that belong to the micro-batch; one per sequence is
            spread over its tokens where the loss wants that.
        denominator: `denominator_of` the whole mini-batch.
        initial_logps_BT: log-probabilities under the initial policy, for the KL term.
        entropy_BT: entropy at each token, with gradient, for the bonus.

    Raises:
        ValueError: what the KL term or the bonus needs is missing.
    """
    loss = _policy_loss(config, logps_BT, old_logps_BT, advantages, batch, denominator)
    value = loss.value
    # References were not sampled: no estimate from samples of the policy holds there.
    sampled_BT = batch.learned_BT & batch.sampled_BT
    for name, coefficient, token_values_BT in (
        ("kl_coefficient", config.kl_coefficient, _kl(config, logps_BT, initial_logps_BT, sampled_BT)),
        ("entropy_coefficient", -config.entropy_coefficient, entropy_BT),
    ):
        if coefficient == 0:
            continue
        if token_values_BT is None:
            raise ValueError(f"loss.{name} needs numbers per token that are missing")
        mode, norm = _aggregation(config)
        value = value + coefficient * aggregate(
            masked(token_values_BT, sampled_BT), batch.learned_BT, mode, norm=norm, denominator=denominator
        )
    return Loss(value, loss.metrics, loss.count)


def denominator_of(config: LossConfig, batch: Batch) -> float:
    """The count that the loss of a whole mini-batch is divided by: its learned tokens or responses."""
    learned_BT = batch.learned_BT
    if _aggregation(config)[0] == "token-mean":
        return float(learned_BT.sum())
    return float(learned_BT.any(-1).sum())


def _policy_loss(
    config: LossConfig,
    logps_BT: Tensor,
    old_logps_BT: Tensor,
    advantages: Tensor,
    batch: Batch,
    denominator: float,
) -> Loss:
    mask_BT = batch.learned_BT
    options: dict[str, Any] = {**config.model_dump(exclude=_OURS), "denominator": denominator}
    per_token = advantages[:, None].expand(mask_BT.shape) if advantages.dim() == 1 else advantages
    match config:
        case GspoConfig():
            return gspo_loss(logps_BT, old_logps_BT, advantages, mask_BT, **options)
        case GspoTokenConfig():
            return gspo_token_loss(logps_BT, old_logps_BT, per_token, mask_BT, **options)
        case PpoClipConfig():
            return ppo_clip_loss(logps_BT, old_logps_BT, per_token, mask_BT, **options)
        case ReinforceConfig():
            return reinforce_loss(logps_BT, per_token, mask_BT, **options)
        case NftConfig():
            return nft_loss(logps_BT, old_logps_BT, batch.outcomes_B, advantages, mask_BT, **options)
        case VeriFreeConfig():
            weights_B = batch.weights_B if config.weight == "reward" else advantages
            return verifree_loss(logps_BT, advantages, weights_B, mask_BT, batch.reference_BT, **options)


def _aggregation(config: LossConfig) -> tuple[Aggregation, float | None]:
    if isinstance(config, AggregatedLoss):
        return config.aggregation, config.norm
    return "seq-mean-token-mean", None


def _kl(
    config: LossConfig, logps_BT: Tensor, initial_logps_BT: Tensor | None, mask_BT: Tensor
) -> Tensor | None:
    if initial_logps_BT is None:
        return None
    return kl_estimate(masked(logps_BT, mask_BT), masked(initial_logps_BT, mask_BT), config.kl_estimator)
