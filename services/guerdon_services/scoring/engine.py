"""Log-probs of any number of sequences, without gradients, in batches that fit in memory."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from guerdon.logprobs import ScoredSequence, batch_logprobs, token_batches
from guerdon_services.runtime.progress import report_progress
from guerdon_services.scoring.memory import halve_when_out_of_memory


def token_logprobs(
    model: nn.Module,
    sequences: Sequence[ScoredSequence],
    *,
    temperature: float = 1.0,
    max_tokens: int = 16_384,
) -> list[Tensor]:
    """Log-probs (nats, fp32, shape (T,) for T response tokens) of each sequence, in order.

    `max_tokens` bounds the tokens of one forward; a batch that does not fit in memory is halved.

    Raises:
        OutOfMemory: memory is too short for a single sequence.
    """
    out: list[Tensor] = [torch.empty(0)] * len(sequences)

    def run(indices: list[int]) -> None:
        rows = batch_logprobs(model, [sequences[i] for i in indices], temperature=temperature)
        for index, row in zip(indices, rows, strict=True):
            out[index] = row.cpu()
        report_progress()

    with torch.no_grad():
        for indices in token_batches(model, sequences, max_tokens):
            halve_when_out_of_memory(run, indices)
    return out
