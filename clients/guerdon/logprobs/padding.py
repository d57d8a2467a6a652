"""The plain way to run several sequences at once: rows of similar lengths, padded at the right.

For models that cannot take a packed row. Shape suffixes: B rows, L padded row length, D hidden size.
"""

# pyright: standard

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn


def padded_hidden_states(model: nn.Module, sequences: Sequence[Sequence[int]]) -> Tensor:
    """Last hidden states, shape (B, L, D); those of padding are meaningless."""
    device = next(model.parameters()).device
    length = max(map(len, sequences))
    ids_BL = torch.zeros(len(sequences), length, dtype=torch.long)
    valid_BL = torch.zeros(len(sequences), length, dtype=torch.long)
    for row, ids in enumerate(sequences):
        ids_BL[row, : len(ids)] = torch.tensor(ids)
        valid_BL[row, : len(ids)] = 1
    positions_BL = torch.arange(length).expand_as(ids_BL)
    trunk = cast(Any, model).base_model
    return trunk(
        input_ids=ids_BL.to(device),
        attention_mask=valid_BL.to(device),
        position_ids=positions_BL.to(device),
        use_cache=False,
    ).last_hidden_state


def padded_batches(sequences: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
    """Indices in batches of similar length, at most `max_tokens` padded tokens each.

    A sequence longer than `max_tokens` gets a batch of its own.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(sequences)), key=lambda i: (-len(sequences[i]), i)):
        if batches and (len(batches[-1]) + 1) * len(sequences[batches[-1][0]]) <= max_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches
