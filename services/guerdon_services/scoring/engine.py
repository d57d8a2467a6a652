"""Log-probs of responses under a causal model, with and without gradients.

Shape suffixes: N response tokens of all sequences, T response tokens of one.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from guerdon_services.scoring.attention import packed_hidden_states
from guerdon_services.scoring.head import target_logprobs
from guerdon_services.scoring.memory import halve_when_out_of_memory
from guerdon_services.scoring.packing import pack, packed_batches
from guerdon_services.scoring.padding import padded_batches, padded_hidden_states
from guerdon_services.scoring.sequences import ScoredSequence
from guerdon_services.scoring.support import packs


def token_logprobs(
    model: nn.Module,
    sequences: Sequence[ScoredSequence],
    *,
    temperature: float = 1.0,
    max_tokens: int = 16_384,
) -> list[Tensor]:
    """Log-probs (nats, fp32, shape (T,)) of each sequence's response tokens, without gradients, in order.

    `max_tokens` bounds the tokens of one forward; a batch that does not fit in memory is halved.

    Raises:
        NotReady: memory is too short for a single sequence.
    """
    out: list[Tensor] = [torch.empty(0)] * len(sequences)

    def run(indices: list[int]) -> None:
        rows = batch_logprobs(model, [sequences[i] for i in indices], temperature=temperature)
        for index, row in zip(indices, rows, strict=True):
            out[index] = row.cpu()

    with torch.no_grad():
        for indices in token_batches(model, sequences, max_tokens):
            halve_when_out_of_memory(run, indices)
    return out


def token_batches(model: nn.Module, sequences: Sequence[ScoredSequence], max_tokens: int) -> list[list[int]]:
    """Indices of the non-empty responses in batches for `batch_logprobs`, of at most `max_tokens` tokens.

    A sequence longer than that gets a batch of its own. The order is fixed by the sequences.
    """
    filled = [index for index, sequence in enumerate(sequences) if sequence.response_ids]
    ids = [sequences[index].ids for index in filled]
    batches = (packed_batches if packs(model, _longest(sequences)) else padded_batches)(ids, max_tokens)
    return [[filled[index] for index in batch] for batch in batches]


def batch_logprobs(
    model: nn.Module, sequences: Sequence[ScoredSequence], *, temperature: float
) -> list[Tensor]:
    """The same for one batch in one forward; differentiable when gradients are enabled.

    Raises:
        ValueError: a prompt is empty.
    """
    if not sequences:
        return []
    if not all(sequence.prompt_ids for sequence in sequences):
        raise ValueError("a scored sequence needs at least one prompt token")
    predicting = _packed if packs(model, _longest(sequences)) else _padded
    targets_N = torch.tensor([token for sequence in sequences for token in sequence.response_ids])
    hidden_ND = predicting(model, sequences)
    logps_N = target_logprobs(model, hidden_ND, targets_N.to(hidden_ND.device), temperature)
    return list(logps_N.split([len(sequence.response_ids) for sequence in sequences]))


def _packed(model: nn.Module, sequences: Sequence[ScoredSequence]) -> Tensor:
    """The hidden states that predict the response tokens, shape (N, D), sequence after sequence."""
    # Nothing is predicted from the last token: it need not be computed.
    row = pack([sequence.ids[:-1] for sequence in sequences])
    hidden_ND = packed_hidden_states(model, row)
    # The hidden state at a position predicts the token after it.
    predicting = [
        position
        for index, sequence in enumerate(sequences)
        for position in row.indices(index)[len(sequence.prompt_ids) - 1 :]
    ]
    return hidden_ND[torch.tensor(predicting, dtype=torch.long, device=hidden_ND.device)]


def _padded(model: nn.Module, sequences: Sequence[ScoredSequence]) -> Tensor:
    hidden_BLD = padded_hidden_states(model, [sequence.ids for sequence in sequences])
    rows = [
        hidden_BLD[row, len(sequence.prompt_ids) - 1 : len(sequence) - 1]
        for row, sequence in enumerate(sequences)
    ]
    return torch.cat(rows)


def _longest(sequences: Sequence[ScoredSequence]) -> int:
    return max(map(len, sequences), default=0)
