"""Log-probs of responses under a causal model; differentiable when gradients are enabled.

Shape suffixes: N response tokens of all sequences, n distinct ones.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from guerdon.logprobs.attention import packed_hidden_states
from guerdon.logprobs.head import target_logprobs
from guerdon.logprobs.packing import pack, packed_batches
from guerdon.logprobs.padding import padded_batches, padded_hidden_states
from guerdon.logprobs.sequences import ScoredSequence
from guerdon.logprobs.support import packs


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
    """Log-probs (nats, fp32) of each sequence's response tokens, in order, by one forward.

    Raises:
        ValueError: a prompt is empty.
    """
    if not sequences:
        return []
    logps_N, _ = flat_logprobs(model, sequences, temperature=temperature)
    return list(torch.split(logps_N, [len(sequence.response_ids) for sequence in sequences]))


def flat_logprobs(
    model: nn.Module, sequences: Sequence[ScoredSequence], *, temperature: float, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Log-probs (nats, fp32) of the response tokens, sequence after sequence, and the entropies there, each (N,).

    Without `entropy` there are none. Logits are divided by `temperature` first.

    Raises:
        ValueError: a prompt is empty.
    """
    if not all(sequence.prompt_ids for sequence in sequences):
        raise ValueError("a scored sequence needs at least one prompt token")
    run = _packed if packs(model, _longest(sequences)) else _padded
    return run(model, sequences, temperature, entropy)


def _packed(
    model: nn.Module, sequences: Sequence[ScoredSequence], temperature: float, entropy: bool
) -> tuple[Tensor, Tensor | None]:
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
    logps_n, entropies_n = target_logprobs(
        model, hidden_ND[steps_n2[:, 0]], steps_n2[:, 1], temperature, entropy=entropy
    )
    chosen_N = torch.tensor(place_N, dtype=torch.long, device=logps_n.device)
    return logps_n[chosen_N], None if entropies_n is None else entropies_n[chosen_N]


def _padded(
    model: nn.Module, sequences: Sequence[ScoredSequence], temperature: float, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    hidden_BLD = padded_hidden_states(model, [sequence.ids for sequence in sequences])
    rows = [
        hidden_BLD[row, len(sequence.prompt_ids) - 1 : len(sequence) - 1]
        for row, sequence in enumerate(sequences)
    ]
    targets_N = torch.tensor(
        [token for sequence in sequences for token in sequence.response_ids],
        dtype=torch.long,
        device=hidden_BLD.device,
    )
    return target_logprobs(model, torch.cat(rows), targets_N, temperature, entropy=entropy)


def _longest(sequences: Sequence[ScoredSequence]) -> int:
    return max(map(len, sequences), default=0)
