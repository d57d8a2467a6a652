"""What a step minimises: the recipe's advantages and its loss, with the counts they are divided by.

Shape suffixes: B responses, T response tokens.
"""

from collections.abc import Callable

from torch import Tensor

from guerdon_trainer.advantages import grpo_advantages, prime_advantages, rloo_advantages
from guerdon_trainer.batch import Batch
from guerdon_trainer.config import LossConfig, RunConfig
from guerdon_trainer.losses import Loss, gspo_loss, gspo_token_loss, ppo_clip_loss

#: By the name in the recipe, whose other keys are the function's keyword arguments.
LOSSES: dict[str, Callable[..., Loss]] = {
    "gspo": gspo_loss,
    "gspo_token": gspo_token_loss,
    "ppo_clip": ppo_clip_loss,
}
#: Those that give one advantage per response; PRIME's are per token and need more than rewards.
SEQUENCE_ADVANTAGES: dict[str, Callable[..., Tensor]] = {"grpo": grpo_advantages, "rloo": rloo_advantages}


def advantages_of(config: RunConfig, batch: Batch) -> Tensor:
    """The recipe's advantages of a whole batch: (B,), or (B, T) for PRIME."""
    options = config.advantage.model_dump(exclude={"name"})
    if config.advantage.name == "prime":
        return prime_advantages(
            batch.token_rewards_BT,
            batch.rewards_B,
            batch.mask_BT,
            batch.groups_B,
            batch.valid_B,
            process_weight=config.process.weight if config.process else 0.0,
            **options,
        )
    return SEQUENCE_ADVANTAGES[config.advantage.name](
        batch.rewards_B, batch.groups_B, batch.valid_B, **options
    )


def loss_of(
    config: LossConfig,
    logps_BT: Tensor,
    old_logps_BT: Tensor,
    advantages: Tensor,
    batch: Batch,
    denominator: float,
) -> Loss:
    """The recipe's loss of a micro-batch; an advantage per sequence is spread over its tokens where the loss wants so.

    Args:
        advantages: (B,) or (B, T), the rows of `advantages_of` that belong to the micro-batch.
        denominator: `denominator_of` the whole mini-batch.
    """
    mask_BT = batch.learned_BT
    if config.name != "gspo" and advantages.dim() == 1:
        advantages = advantages[:, None].expand(mask_BT.shape)
    options = config.model_dump(exclude={"name"})
    return LOSSES[config.name](
        logps_BT, old_logps_BT, advantages, mask_BT, denominator=denominator, **options
    )


def denominator_of(config: LossConfig, batch: Batch) -> float:
    """The count that the loss of a whole mini-batch is divided by: its tokens or its responses."""
    learned_BT = batch.learned_BT
    if config.name == "ppo_clip" and config.aggregation == "token-mean":
        return float(learned_BT.sum())
    return float(learned_BT.any(-1).sum())
