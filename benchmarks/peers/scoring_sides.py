"""Log-probs of given responses: the way of the public code, and ours.

Shape suffixes: B rows, L padded row length, V vocabulary, T response tokens of one row.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from guerdon_services.scoring import ScoredSequence, token_logprobs

Side = Callable[[nn.Module, Sequence[ScoredSequence]], list[Tensor]]
OURS, PEER = "guerdon", "padded, full logits"


def padded_full_logits(model: nn.Module, sequences: Sequence[ScoredSequence]) -> list[Tensor]:
    """As PRIME's and verl's reference path, RLPR and VeriFree do: a padded batch, all logits, fp32 log-softmax."""
    rows = 8 if len(sequences) % 8 == 0 and _same_prompts(sequences[:8]) else 4
    return [
        logps_T
        for start in range(0, len(sequences), rows)
        for logps_T in _one_batch(model, sequences[start : start + rows])
    ]


def _same_prompts(sequences: Sequence[ScoredSequence]) -> bool:
    return all(sequence.prompt_ids == sequences[0].prompt_ids for sequence in sequences)


def _one_batch(model: nn.Module, sequences: Sequence[ScoredSequence]) -> list[Tensor]:
    device = next(model.parameters()).device
    ids_BL = torch.zeros(len(sequences), max(map(len, sequences)), dtype=torch.long)
    mask_BL = torch.zeros_like(ids_BL)
    for row, sequence in enumerate(sequences):
        ids_BL[row, : len(sequence)] = torch.tensor(sequence.ids)
        mask_BL[row, : len(sequence)] = 1
    ids_BL = ids_BL.to(device)
    with torch.no_grad():
        logits_BLV = cast(Any, model)(
            input_ids=ids_BL, attention_mask=mask_BL.to(device), use_cache=False
        ).logits
        logps_BLV = torch.log_softmax(logits_BLV.float(), dim=-1)
        logps_BL = logps_BLV[:, :-1].gather(-1, ids_BL[:, 1:, None]).squeeze(-1)
    return [
        logps_BL[row, len(sequence.prompt_ids) - 1 : len(sequence) - 1].clone()
        for row, sequence in enumerate(sequences)
    ]


def ours(model: nn.Module, sequences: Sequence[ScoredSequence]) -> list[Tensor]:
    """What both model scorers call."""
    return token_logprobs(model, sequences)


SIDES: dict[str, Side] = {PEER: padded_full_logits, OURS: ours}
