"""Log-probs of responses under a causal model, with and without gradients.

Shape suffixes: N response tokens of all sequences, n distinct ones, T response tokens of one.
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
        OutOfMemory: memory is too short for a single sequence.
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
    logprobs = _packed if packs(model, _longest(sequences)) else _padded
    logps_N = logprobs(model, sequences, temperature)
    return list(logps_N.split([len(sequence.response_ids) for sequence in sequences]))


def _packed(model: nn.Module, sequences: Sequence[ScoredSequence], temperature: float) -> Tensor:
    """Log-probs of the response tokens, shape (N,), sequence after sequence."""
    # Nothing is predicted from the last token: it need not be computed.
    row = pack([sequence.ids[:-1] for sequence in sequences])
    hidden_ND = packed_hidden_states(model, row)
    # The hidden state at a position predicts the token after it. What sequences share is predicted once: thousands
    # of equal ones fit in a short row, and their logits would not.
    places: dict[tuple[int, int], int] = {}
    place_N = [
        places.setdefault(step, len(places))
        for index, sequence in enumerate(sequences)
        for step in zip(
            row.indices(index)[len(sequence.prompt_ids) - 1 :], sequence.response_ids, strict=True
        )
    ]
    steps_n2 = torch.tensor(list(places), dtype=torch.long, device=hidden_ND.device).view(-1, 2)
    logps_n = target_logprobs(model, hidden_ND[steps_n2[:, 0]], steps_n2[:, 1], temperature)
    return logps_n[torch.tensor(place_N, dtype=torch.long, device=logps_n.device)]


def _padded(model: nn.Module, sequences: Sequence[ScoredSequence], temperature: float) -> Tensor:
    hidden_BLD = padded_hidden_states(model, [sequence.ids for sequence in sequences])
    rows = [
        hidden_BLD[row, len(sequence.prompt_ids) - 1 : len(sequence) - 1]
        for row, sequence in enumerate(sequences)
    ]
    targets_N = torch.tensor(
        [token for sequence in sequences for token in sequence.response_ids], device=hidden_BLD.device
    )
    return target_logprobs(model, torch.cat(rows), targets_N, temperature)


def _longest(sequences: Sequence[ScoredSequence]) -> int:
    return max(map(len, sequences), default=0)
