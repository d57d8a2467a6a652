"""One step of learning: advantages, then optimiser steps over mini-batches in micro-batches.

Every micro-batch divides by the count of its whole mini-batch, so that their gradients add up to the gradient of the
mini-batch, however it is cut. Responses without reward take no part in any count.

Shape suffixes: B responses, T response tokens.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel

from guerdon_trainer.batch import Batch
from guerdon_trainer.config import OptimizerConfig, RunConfig
from guerdon_trainer.losses.kl import kl_estimate
from guerdon_trainer.model import all_logprobs, micro_batches, token_logprobs
from guerdon_trainer.objective import denominator_of, loss_of


@dataclass(frozen=True)
class Learner:
    """What learns. `initial` is the policy before the first step, kept to report how far training moved it."""

    model: PreTrainedModel
    optimizer: torch.optim.Optimizer
    schedule: LambdaLR
    initial: PreTrainedModel | None


def make_learner(model: PreTrainedModel, initial: PreTrainedModel | None, config: OptimizerConfig) -> Learner:
    """AdamW over all parameters, with a linear warm-up of the learning rate."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.lr, betas=config.betas, weight_decay=config.weight_decay
    )
    warmup = max(config.warmup_steps, 1)
    schedule = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))
    return Learner(model, optimizer, schedule, initial)


def optimise(
    learner: Learner, batch: Batch, advantages: Tensor, config: RunConfig, step: int
) -> dict[str, float]:
    """Update the model on one batch and say what happened.

    Args:
        advantages: (B,) or (B, T), see `objective.advantages_of`.
        step: the number of the step, which with the run's seed decides the mini-batches.

    Raises:
        ValueError: no response of the batch has a reward.
    """
    optimizer = config.optimizer
    old_logps_BT = _old_logps(learner, batch, config)
    means = _Means()
    for rows in _mini_batches(batch, optimizer.mini_batches, f"{config.seed}/{step}"):
        part = batch.select(rows)
        width = part.mask_BT.shape[1]
        old_BT = None if old_logps_BT is None else old_logps_BT[rows, :width]
        part_advantages = advantages[rows] if advantages.dim() == 1 else advantages[rows, :width]
        _accumulate(learner, part, old_BT, part_advantages, config, means)
        norm = torch.nn.utils.clip_grad_norm_(learner.model.parameters(), optimizer.max_grad_norm)
        means.add("grad_norm", norm, 1)
        learner.optimizer.step()
        means.add("lr", torch.tensor(learner.schedule.get_last_lr()[0]), 1)
        learner.schedule.step()
        learner.optimizer.zero_grad()
    return means.result()


def _old_logps(learner: Learner, batch: Batch, config: RunConfig) -> Tensor | None:
    """Log-probabilities under the policy that sampled; None where those of the first forward pass are the same."""
    optimizer = config.optimizer
    if optimizer.old_logprobs == "engine":
        return batch.engine_logps_BT
    if optimizer.mini_batches == 1:
        return None
    return all_logprobs(learner.model, batch, config.rollout.temperature, optimizer.micro_batch_tokens)


def _accumulate(
    learner: Learner,
    batch: Batch,
    old_logps_BT: Tensor | None,
    advantages: Tensor,
    config: RunConfig,
    means: "_Means",
) -> None:
    """Add the gradient of one mini-batch, micro-batch by micro-batch."""
    denominator = denominator_of(config.loss, batch)
    total = torch.zeros((), device=advantages.device)
    for rows in micro_batches(batch, config.optimizer.micro_batch_tokens):
        part = batch.select(rows)
        width = part.mask_BT.shape[1]
        logps_BT, entropy_BT = token_logprobs(learner.model, part, config.rollout.temperature)
        # On policy: the weights that sampled are those being trained, and recomputing would repeat this forward.
        old_BT = logps_BT.detach() if old_logps_BT is None else old_logps_BT[rows, :width]
        part_advantages = advantages[rows] if advantages.dim() == 1 else advantages[rows, :width]
        loss = loss_of(config.loss, logps_BT, old_BT, part_advantages, part, denominator)
        loss.value.backward()
        total += loss.value.detach()
        for name, value in loss.metrics.items():
            means.add(name, value, float(loss.count))
        recomputed = config.optimizer.old_logprobs == "recompute"
        _measure(means, part, logps_BT.detach(), old_BT, entropy_BT)
        means.mismatch(old_BT if recomputed else logps_BT.detach(), part)
        if learner.initial is not None:
            with torch.no_grad():
                initial_BT, _ = token_logprobs(learner.initial, part, config.rollout.temperature)
            means.over_tokens("kl_initial", kl_estimate(logps_BT.detach(), initial_BT), part.mask_BT)
    means.add("loss", total, 1)


def _mini_batches(batch: Batch, count: int, seed: str) -> Iterator[Tensor]:
    """Row numbers of the responses to learn from, shuffled, in `count` parts as equal as can be."""
    rows = batch.learned_BT.any(-1).nonzero()[:, 0].tolist()
    if not rows:
        raise ValueError("no response of the batch has a reward to learn from")
    if count > 1:
        random.Random(f"guerdon-mini-batches-{seed}").shuffle(rows)
    yield from torch.tensor(rows, device=batch.mask_BT.device).tensor_split(min(count, len(rows)))


def _measure(means: "_Means", batch: Batch, logps_BT: Tensor, old_BT: Tensor, entropy_BT: Tensor) -> None:
    means.over_tokens("entropy", entropy_BT, batch.mask_BT)
    means.over_tokens("kl_old", kl_estimate(logps_BT, old_BT), batch.mask_BT)


class _Means:
    """Weighted means and maxima, kept as tensors until the end."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Tensor, float]] = {}
        self._largest: dict[str, Tensor] = {}

    def add(self, name: str, value: Tensor, weight: float) -> None:
        total, weights = self._sums.get(name, (torch.zeros_like(value), 0.0))
        self._sums[name] = (total + value * weight, weights + weight)

    def over_tokens(self, name: str, values_BT: Tensor, mask_BT: Tensor) -> None:
        tokens = int(mask_BT.sum())
        if tokens:
            self.add(name, torch.where(mask_BT, values_BT, 0).sum() / tokens, tokens)

    def mismatch(self, trainer_BT: Tensor, batch: Batch) -> None:
        # Should be rounding (and the drift since, when old_logprobs is engine): more means that engine and trainer
        # disagree about weights, template or temperature.
        difference_BT = torch.where(batch.mask_BT, (trainer_BT - batch.engine_logps_BT).abs(), 0)
        self.over_tokens("engine_mismatch", difference_BT, batch.mask_BT)
        if difference_BT.numel():
            largest = difference_BT.max()
            self._largest["engine_mismatch_max"] = torch.maximum(
                self._largest.get("engine_mismatch_max", largest), largest
            )

    def result(self) -> dict[str, float]:
        means = {name: float(total / weights) for name, (total, weights) in self._sums.items()}
        return means | {name: float(value) for name, value in self._largest.items()}
