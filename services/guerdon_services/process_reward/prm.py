"""The implicit process reward model: log-ratios of two causal models, and the step that trains one of them.

Shape suffixes: B samples, T response tokens. PRIME, arXiv:2502.01456; see docs/papers/prime.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.optim import Optimizer

from guerdon.functional import implicit_rewards, prm_ce_loss
from guerdon_services.process_reward.rewards import log_ratios
from guerdon_services.runtime.scorer import NotReady
from guerdon_services.scoring import (
    ScoredSequence,
    batch_logprobs,
    is_out_of_memory,
    token_batches,
    token_logprobs,
)


@dataclass(frozen=True)
class Step:
    """What one optimizer step was made of: log-ratios of the weights before it, mean loss, unclipped norm."""

    log_ratios: list[Tensor]
    references: list[Tensor]
    loss: float
    grad_norm: float


class ImplicitPRM:
    """A trained model and its frozen reference; log-ratios q_t = log pi_prm(y_t) - log pi_ref(y_t), in nats."""

    def __init__(
        self,
        policy: nn.Module,
        reference: nn.Module,
        optimizer: Optimizer,
        *,
        grad_clip: float,
        max_tokens: int,
    ) -> None:
        self.policy = policy
        self.optimizer = optimizer
        self._reference = reference.requires_grad_(False)
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

        `references` are the reference's log-probs where a step has computed them: they never change.
        """
        known = self._reference if references is None else references
        return log_ratios(self.policy, known, sequences, temperature=temperature, max_tokens=self._max_tokens)

    def step(
        self,
        sequences: Sequence[ScoredSequence],
        outcomes: Sequence[float],
        *,
        beta: float,
        temperature: float,
    ) -> Step:
        """One step of cross-entropy against `outcomes` (in [0, 1]); the loss is a mean over non-empty responses.

        Raises:
            NotReady: memory is too short for a single sequence.
            FloatingPointError: the gradient is not finite.
        In both cases the weights are unchanged.
        """
        references = self._reference_logps(sequences, temperature)
        longest = max(len(sequence) for sequence in sequences)
        max_tokens = self._max_tokens
        while (
            done := self._accumulate(sequences, references, outcomes, max_tokens, beta, temperature)
        ) is None:
            # A backward pass cut short leaves a partial gradient: all of it is computed again in smaller parts.
            if max_tokens <= longest:
                raise NotReady("not enough memory to learn from a sequence of this length")
            max_tokens = max(longest, max_tokens // 2)
        log_ratios, loss = done
        grad_norm = float(nn.utils.clip_grad_norm_(self.policy.parameters(), self._grad_clip))
        if not torch.isfinite(torch.tensor(grad_norm)):
            raise FloatingPointError(
                "the gradient of the process reward model is not finite; no update was made"
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        return Step(log_ratios, references, loss, grad_norm)

    def _accumulate(
        self,
        sequences: Sequence[ScoredSequence],
        references: Sequence[Tensor],
        outcomes: Sequence[float],
        max_tokens: int,
        beta: float,
        temperature: float,
    ) -> tuple[list[Tensor], float] | None:
        """Gradients and loss of the whole batch, part by part; None when a part does not fit in memory."""
        self.optimizer.zero_grad()
        ratios = [torch.empty(0)] * len(sequences)
        batches = token_batches(sequences, max_tokens)
        count = sum(map(len, batches))
        total = 0.0
        try:
            for indices in batches:
                logps = batch_logprobs(self.policy, [sequences[i] for i in indices], temperature=temperature)
                rows = [
                    implicit_rewards(logps_T, references[i].to(logps_T.device), beta=1.0)
                    for i, logps_T in zip(indices, logps, strict=True)
                ]
                loss = _ce_loss(rows, [outcomes[i] for i in indices], beta=beta, denominator=count)
                loss.backward()
                total += loss.item()
                for i, row in zip(indices, rows, strict=True):
                    ratios[i] = row.detach().cpu()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return None
        return ratios, total

    def _reference_logps(self, sequences: Sequence[ScoredSequence], temperature: float) -> list[Tensor]:
        return token_logprobs(
            self._reference, sequences, temperature=temperature, max_tokens=self._max_tokens
        )


def _ce_loss(rows: Sequence[Tensor], outcomes: Sequence[float], *, beta: float, denominator: int) -> Tensor:
    ratios_BT = pad_sequence(list(rows), batch_first=True)
    mask_BT = pad_sequence([torch.ones_like(row, dtype=torch.bool) for row in rows], batch_first=True)
    outcomes_B = torch.tensor(outcomes, device=ratios_BT.device)
    return prm_ce_loss(ratios_BT, mask_BT, outcomes_B, beta=beta, denominator=denominator)
