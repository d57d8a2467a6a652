"""The implicit process reward model: log-ratios of two causal models, and the step that trains one of them.

Shape suffixes: B samples, T response tokens. PRIME, arXiv:2502.01456; see docs/papers/prime.md.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.optim import Optimizer

from guerdon.functional import (
    PairWeights,
    implicit_rewards,
    pairwise_targets,
    prm_ce_loss,
    prm_pairwise_loss,
)
from guerdon_services.process_reward.references import Reference
from guerdon_services.process_reward.rewards import log_ratios
from guerdon_services.runtime.progress import report_progress
from guerdon_services.runtime.scorer import OutOfMemory
from guerdon_services.scoring import (
    ScoredSequence,
    batch_logprobs,
    is_out_of_memory,
    token_batches,
    token_logprobs,
)

#: The summed loss of some responses, from their padded log-ratios, mask and numbers in the batch.
_Loss = Callable[[Tensor, Tensor, Sequence[int]], Tensor]


@dataclass(frozen=True)
class Objective:
    """What an update minimises; see `guerdon.functional.prm_ce_loss` and `prm_pairwise_loss`."""

    beta: float
    temperature: float = 1.0
    loss: Literal["ce", "pairwise"] = "ce"
    pair_weights: PairWeights = "none"


@dataclass(frozen=True)
class Step:
    """What one optimizer step was made of: log-ratios of the weights before it, mean loss, unclipped norm."""

    log_ratios: list[Tensor]
    references: list[Tensor]
    loss: float
    grad_norm: float


class ImplicitPRM:
    """A trained model and its reference; log-ratios q_t = log pi_prm(y_t) - log pi_ref(y_t), in nats."""

    def __init__(
        self,
        policy: nn.Module,
        reference: Reference,
        optimizer: Optimizer,
        *,
        grad_clip: float,
        max_tokens: int,
    ) -> None:
        self.policy = policy
        self.optimizer = optimizer
        self._reference = reference
        self._grad_clip = grad_clip
        self._max_tokens = max_tokens

    def log_ratios(
        self,
        sequences: Sequence[ScoredSequence],
        *,
        temperature: float,
        references: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        """q of every response, each of shape (T,); empty for an empty response.

        `references` are the reference's log-probs where a step has computed them.
        """
        if references is None:
            references = self._reference_logps(sequences, temperature)
        return log_ratios(
            self.policy, references, sequences, temperature=temperature, max_tokens=self._max_tokens
        )

    def step(
        self,
        sequences: Sequence[ScoredSequence],
        outcomes: Sequence[float],
        objective: Objective,
        *,
        groups: Sequence[object] | None = None,
        lr: float | None = None,
    ) -> Step:
        """One step towards `outcomes` (in [0, 1]); the loss is a mean over non-empty responses.

        `groups` tells which responses answer one prompt, for the pairwise loss; by default all of them do. `lr`
        replaces the optimizer's learning rate.

        Raises:
            OutOfMemory: memory is too short for a single sequence.
            FloatingPointError: the gradient is not finite.
        In both cases the weights are unchanged.
        """
        references = self._reference_logps(sequences, objective.temperature)
        loss_of = self._loss(sequences, references, outcomes, groups or [0] * len(sequences), objective)
        longest = max(len(sequence) for sequence in sequences)
        max_tokens = self._max_tokens
        while (
            done := self._accumulate(sequences, references, loss_of, max_tokens, objective.temperature)
        ) is None:
            # A backward pass cut short leaves a partial gradient: all of it is computed again in smaller parts.
            if max_tokens <= longest:
                raise OutOfMemory("not enough memory to learn from a sequence of this length")
            max_tokens = max(longest, max_tokens // 2)
        log_ratios, loss = done
        grad_norm = float(nn.utils.clip_grad_norm_(self.policy.parameters(), self._grad_clip))
        if not math.isfinite(grad_norm):
            raise FloatingPointError("the gradient is not finite; no update was made")
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = parameters["lr"] if lr is None else lr
        self.optimizer.step()
        self.optimizer.zero_grad()
        return Step(log_ratios, references, loss, grad_norm)

    def _loss(
        self,
        sequences: Sequence[ScoredSequence],
        references: Sequence[Tensor],
        outcomes: Sequence[float],
        groups: Sequence[object],
        objective: Objective,
    ) -> _Loss:
        """The share of the batch's mean loss that some of its responses make; empty ones have none."""
        live = [i for i, sequence in enumerate(sequences) if sequence.response_ids]
        count = len(live)
        outcomes_B = torch.tensor(outcomes)
        if objective.loss == "ce":
            return lambda ratios_bT, mask_bT, rows: prm_ce_loss(
                ratios_bT,
                mask_bT,
                outcomes_B[rows].to(ratios_bT.device),
                beta=objective.beta,
                denominator=count,
            )
        # What a response is compared with is constant: gathered first, it leaves the parts of a batch independent.
        ratios = self.log_ratios(sequences, temperature=objective.temperature, references=references)
        logits_B = objective.beta * torch.stack([ratios[i].sum() for i in live])
        targets = pairwise_targets(
            logits_B, outcomes_B[live], [groups[i] for i in live], weights=objective.pair_weights
        )
        place = {index: row for row, index in enumerate(live)}
        return lambda ratios_bT, mask_bT, rows: prm_pairwise_loss(
            ratios_bT,
            mask_bT,
            targets.rows([place[index] for index in rows]).to(ratios_bT.device),
            beta=objective.beta,
            denominator=count,
        )

    def _accumulate(
        self,
        sequences: Sequence[ScoredSequence],
        references: Sequence[Tensor],
        loss_of: _Loss,
        max_tokens: int,
        temperature: float,
    ) -> tuple[list[Tensor], float] | None:
        """Gradients and loss of the whole batch, part by part; None when a part does not fit in memory."""
        self.optimizer.zero_grad()
        ratios = [torch.empty(0)] * len(sequences)
        total = 0.0
        try:
            for indices in token_batches(self.policy, sequences, max_tokens):
                logps = batch_logprobs(self.policy, [sequences[i] for i in indices], temperature=temperature)
                rows = [
                    implicit_rewards(logps_T, references[i].to(logps_T.device), beta=1.0)
                    for i, logps_T in zip(indices, logps, strict=True)
                ]
                ratios_bT = pad_sequence(rows, batch_first=True)
                mask_bT = pad_sequence(
                    [torch.ones_like(row, dtype=torch.bool) for row in rows], batch_first=True
                )
                loss = loss_of(ratios_bT, mask_bT, indices)
                loss.backward()
                total += loss.item()
                report_progress()
                for i, row in zip(indices, rows, strict=True):
                    ratios[i] = row.detach().cpu()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return None
        return ratios, total

    def _reference_logps(self, sequences: Sequence[ScoredSequence], temperature: float) -> list[Tensor]:
        with self._reference.module() as reference:
            return token_logprobs(reference, sequences, temperature=temperature, max_tokens=self._max_tokens)
