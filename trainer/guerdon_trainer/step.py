"""One step of learning: advantages, then optimiser steps over mini-batches in micro-batches.

Every micro-batch divides by the count of its whole mini-batch, so that their gradients add up to the gradient of the
mini-batch, however it is cut and whichever rank computes them. Responses without reward take no part in any count.

Shape suffixes: B responses, T response tokens.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel

from guerdon.lora import Adapters
from guerdon_trainer.batch import Batch
from guerdon_trainer.config import LoraConfig, OptimizerConfig, RecipeError, RunConfig
from guerdon_trainer.config.algorithms import ReinforcePpConfig
from guerdon_trainer.config.importance import ImportanceConfig
from guerdon_trainer.distributed import rank, ranks, shard, sum_over_ranks, total_norm
from guerdon_trainer.groups import RolloutError
from guerdon_trainer.losses.importance import importance_weights, truncated, weighted
from guerdon_trainer.losses.kl import kl_estimate
from guerdon_trainer.means import Means
from guerdon_trainer.micro_batches import micro_batches
from guerdon_trainer.model import Policy, checkpoint_layers, token_logprobs
from guerdon_trainer.objective import denominator_of, loss_of


@dataclass(frozen=True)
class Learner:
    """What learns. `initial` is the policy before the first step, kept to report how far training moved it."""

    policy: Policy
    optimizer: torch.optim.Optimizer
    schedule: LambdaLR
    initial: Policy | None

    @property
    def model(self) -> PreTrainedModel:
        """The model below the policy."""
        return self.policy.model


def make_learner(model: PreTrainedModel, initial: PreTrainedModel | None, config: OptimizerConfig) -> Learner:
    """AdamW over all parameters that learn, with a linear warm-up of the learning rate.

    With adapters the model is its own initial policy: `initial` may be `model`.

    Raises:
        RecipeError: the adapters do not fit the model.
    """
    if config.gradient_checkpointing:
        checkpoint_layers(model)
    adapters = add_adapters(model, config.lora) if config.lora else None
    autocast = torch.bfloat16 if config.precision == "bf16" else None
    policy = Policy(model, autocast=autocast, adapters=adapters)
    shard(policy, autocast)
    before = policy
    if initial is None:
        before = None
    elif initial is not model:
        before = Policy(initial, autocast=autocast)
        shard(before, autocast)
    optimizer = torch.optim.AdamW(
        [parameter for parameter in policy.parameters() if parameter.requires_grad],
        lr=config.lr,
        betas=config.betas,
        weight_decay=config.weight_decay,
        fused=True,
    )
    warmup = max(config.warmup_steps, 1)
    schedule = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))
    return Learner(policy, optimizer, schedule, before)


def add_adapters(model: PreTrainedModel, lora: LoraConfig) -> Adapters:
    """Put the recipe's adapters into the model.

    Raises:
        RecipeError: they cannot be put there; the message names the key.
    """
    try:
        return Adapters(model, rank=lora.rank, alpha=lora.alpha, targets=lora.targets)
    except ImportError as error:
        raise RecipeError(
            "optimizer.lora needs the library peft: pip install guerdon-trainer[lora]"
        ) from error
    except ValueError as error:
        names = sorted(
            {name.rpartition(".")[2] for name, part in model.named_modules() if isinstance(part, nn.Linear)}
        )
        raise RecipeError(
            f"optimizer.lora.targets: no module of this policy is called {' or '.join(lora.targets)}; "
            f"its linear layers are {', '.join(names)}"
        ) from error


def optimise(
    learner: Learner, batch: Batch, advantages: Tensor, config: RunConfig, step: int
) -> dict[str, float]:
    """Update the model on one batch and say what happened.

    Args:
        advantages: (B,) or (B, T), see `objective.advantages_of`.
        step: the number of the step, which with the run's seed decides the mini-batches.

    Raises:
        RolloutError: no response of the batch can be learned from, or a gradient is no number.
    """
    optimizer = config.optimizer
    old_logps_BT = _old_logps(learner, batch, config)
    means = Means()
    for rows in _mini_batches(batch, optimizer.mini_batches, f"{config.seed}/{step}"):
        part = batch.select(rows)
        old_BT = None if old_logps_BT is None else _rows_of(old_logps_BT, rows, part)
        part_advantages = _rows_of(advantages, rows, part)
        _accumulate(learner, part, old_BT, part_advantages, config, means)
        norm = total_norm(list(learner.policy.parameters()), optimizer.max_grad_norm)
        means.once("grad_norm", norm)
        learner.optimizer.step()
        means.once("lr", torch.tensor(learner.schedule.get_last_lr()[0]))
        learner.schedule.step()
        learner.optimizer.zero_grad()
    result = means.result()
    # Looked at once and not before each optimiser step, which would wait for the device: nothing is handed on yet.
    if not math.isfinite(result["grad_norm"]):
        raise RolloutError(
            f"step {step}: the gradient is no number (norm {result['grad_norm']}). Its policy is not handed on, and "
            "the last checkpoint stands; a lower optimizer.lr, or precision fp32, may get further"
        )
    return result


def kl_in_reward(learner: Learner, batch: Batch, config: RunConfig) -> Tensor | None:
    """What the recipe's KL in the reward is taken of: the log-ratio of each sampled token (k1, nats), (B, T).

    Of the policy that sampled to the initial one; None where the recipe has none. Every rank must call it.
    """
    advantage, optimizer = config.advantage, config.optimizer
    if not isinstance(advantage, ReinforcePpConfig) or advantage.kl_coefficient == 0:
        return None
    if learner.initial is None:
        raise ValueError("advantage.kl_coefficient needs the initial policy")
    how = (batch, config.rollout.temperature, optimizer.micro_batch_tokens)
    engine = optimizer.old_logprobs == "engine"
    old_BT = batch.engine_logps_BT if engine else all_logprobs(learner.policy, *how)
    with learner.initial.bare():
        return kl_estimate(old_BT, all_logprobs(learner.initial, *how), "k1")


@torch.no_grad()
def all_logprobs(policy: Policy, batch: Batch, temperature: float, max_tokens: int) -> Tensor:
    """Log-probabilities of a whole batch, in micro-batches, without gradient, shape (B, T)."""
    logps_BT = torch.zeros(batch.mask_BT.shape, device=batch.mask_BT.device)
    for rows in _own_parts(policy, batch, max_tokens):
        if len(rows) == 0:
            policy.idle()
            continue
        part_BT, _ = token_logprobs(policy, batch.select(rows), temperature, entropy=False)
        logps_BT[rows, : part_BT.shape[1]] = part_BT
    return sum_over_ranks(logps_BT)


def _own_parts(policy: Policy, batch: Batch, max_tokens: int) -> list[Tensor]:
    """This rank's micro-batches: as many as every other rank has."""
    parts = micro_batches(batch, max_tokens, packs=policy.packs, ranks=ranks())
    return [rows.to(batch.mask_BT.device) for rows in parts[rank() :: ranks()]]


def _old_logps(learner: Learner, batch: Batch, config: RunConfig) -> Tensor | None:
    """Log-probabilities under the policy that sampled; None where those of the first forward pass are the same."""
    optimizer = config.optimizer
    if optimizer.old_logprobs == "engine":
        return batch.engine_logps_BT
    if optimizer.mini_batches == 1:
        return None
    return all_logprobs(learner.policy, batch, config.rollout.temperature, optimizer.micro_batch_tokens)


def _accumulate(
    learner: Learner,
    batch: Batch,
    old_logps_BT: Tensor | None,
    advantages: Tensor,
    config: RunConfig,
    means: Means,
) -> None:
    """Add the gradient of one mini-batch, micro-batch by micro-batch."""
    denominator = denominator_of(config.loss, batch)
    temperature = config.rollout.temperature
    for rows in _own_parts(learner.policy, batch, config.optimizer.micro_batch_tokens):
        if len(rows) == 0:
            _initial_logps(learner, None, temperature)
            learner.policy.idle().backward()
            continue
        part = batch.select(rows)
        initial_BT = _initial_logps(learner, part, temperature)
        logps_BT, entropy_BT = token_logprobs(learner.policy, part, temperature)
        # On policy: the weights that sampled are those being trained, and recomputing would repeat this forward.
        old_BT = logps_BT.detach() if old_logps_BT is None else _rows_of(old_logps_BT, rows, part)
        part_advantages = _rows_of(advantages, rows, part)
        if config.importance is not None:
            part_advantages = _corrected(config.importance, part_advantages, old_BT, part, means)
        given = (logps_BT, old_BT, part_advantages, part, denominator)
        loss = loss_of(config.loss, *given, initial_logps_BT=initial_BT, entropy_BT=entropy_BT)
        # FSDP takes the mean over ranks, and this is a part of a sum.
        (loss.value * ranks()).backward()
        means.total("loss", loss.value.detach())
        for name, value in loss.metrics.items():
            means.add(name, value, float(loss.count))
        recomputed = config.optimizer.old_logprobs == "recompute"
        _measure(means, part, logps_BT.detach(), old_BT, initial_BT, entropy_BT.detach())
        _mismatch(means, part, old_BT if recomputed else logps_BT.detach())
    means.close("loss")


def _rows_of(values: Tensor, rows: Tensor, part: Batch) -> Tensor:
    """The rows of a whole batch's (B,) or (B, T) that `part` was selected from, as wide as it is."""
    return values[rows] if values.dim() == 1 else values[rows, : part.mask_BT.shape[1]]


def _corrected(
    correction: ImportanceConfig, advantages: Tensor, trainer_BT: Tensor, batch: Batch, means: Means
) -> Tensor:
    """The advantages, weighted for what trainer and engine make of the same tokens."""
    weights_BT = importance_weights(
        trainer_BT, batch.engine_logps_BT, batch.sampled_BT, level=correction.level, cap=correction.cap
    )
    means.over_tokens("importance_weight", weights_BT, batch.sampled_BT)
    means.over_tokens(
        "importance_truncated", truncated(weights_BT, batch.sampled_BT, correction.cap), batch.sampled_BT
    )
    if correction.level == "token" and advantages.dim() == 1:
        advantages = advantages[:, None].expand(weights_BT.shape)
    return weighted(advantages, weights_BT)


@torch.no_grad()
def _initial_logps(learner: Learner, batch: Batch | None, temperature: float) -> Tensor | None:
    """Log-probabilities under the initial policy, where it is kept; without a batch the forward of an idle rank."""
    if learner.initial is None:
        return None
    with learner.initial.bare():
        if batch is None:
            return learner.initial.idle()
        return token_logprobs(learner.initial, batch, temperature, entropy=False)[0]


def _mini_batches(batch: Batch, count: int, seed: str) -> Iterator[Tensor]:
    """Row numbers of the responses to learn from, in `count` parts as equal as can be.

    Groups are shuffled and stay together but for those that a part's end cuts: they share a prompt, computed once.
    """
    rows = batch.learned_BT.any(-1).nonzero()[:, 0].tolist()
    if not rows:
        raise RolloutError(
            "no response of the batch has a reward to learn from, and is neither empty nor cut off where "
            "loss.mask_truncated leaves those out"
        )
    if count > 1:
        groups = batch.groups_B.tolist()
        order = sorted(set(groups))
        random.Random(f"guerdon-mini-batches-{seed}").shuffle(order)
        place = {group: index for index, group in enumerate(order)}
        rows.sort(key=lambda row: place[groups[row]])
    yield from torch.tensor(rows, device=batch.mask_BT.device).tensor_split(min(count, len(rows)))


def _measure(
    means: Means,
    batch: Batch,
    logps_BT: Tensor,
    old_BT: Tensor,
    initial_BT: Tensor | None,
    entropy_BT: Tensor,
) -> None:
    means.over_tokens("entropy", entropy_BT, batch.sampled_BT)
    means.over_tokens("kl_old", kl_estimate(logps_BT, old_BT), batch.sampled_BT)
    if initial_BT is not None:
        means.over_tokens("kl_initial", kl_estimate(logps_BT, initial_BT), batch.sampled_BT)


def _mismatch(means: Means, batch: Batch, trainer_BT: Tensor) -> None:
    # Should be rounding (and the drift since, when old_logprobs is engine): more means that engine and trainer
    # disagree about weights, template or temperature.
    difference_BT = torch.where(batch.sampled_BT, (trainer_BT - batch.engine_logps_BT).abs(), 0)
    means.over_tokens("engine_mismatch", difference_BT, batch.sampled_BT)
    means.largest("engine_mismatch_max", difference_BT)
    means.over_tokens("engine_kl", kl_estimate(batch.engine_logps_BT, trainer_BT), batch.sampled_BT)
