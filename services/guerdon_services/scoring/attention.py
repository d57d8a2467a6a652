"""Attention within a packed row, as an attention implementation that transformers' models call by name.

Each tail attends to the spans of its own sequence, a block of rows at a time, by torch's fused kernel: hardly anything
that a mask would hide is computed, and no mask is larger than a block. Shape suffixes: H heads, G key heads, N tokens
of the row, C of a tail and its context, n of a block, K size of a head.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from guerdon_services.scoring.packing import PackedRow, Tail

_NAME = "guerdon_packed"
#: Rows of one call: enough for the kernel to be fast.
_ROWS = 256


def packed_hidden_states(model: nn.Module, row: PackedRow) -> Tensor:
    """Last hidden states of the row's tokens, shape (N, D)."""
    parameter = next(model.parameters())
    trunk = cast(Any, model).base_model
    with _attention(model):
        output = trunk(
            input_ids=torch.tensor([row.ids], device=parameter.device),
            position_ids=torch.tensor([row.positions], device=parameter.device),
            use_cache=False,
            packed_tails=row.tails,
            packed_masks=_Masks(parameter),
        )
    return output.last_hidden_state[0]


@contextmanager
def _attention(model: nn.Module) -> Iterator[None]:
    """The model's layers look up their attention in its configuration at every call."""
    config = cast(Any, model).config.get_text_config()
    before = config._attn_implementation
    config._attn_implementation = _NAME
    try:
        yield
    finally:
        config._attn_implementation = before


class _Masks:
    """What is added to the scores of a block, by shape: blocks of siblings and all layers share them."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._made: dict[tuple[int, int], Tensor] = {}

    def of(self, rows: int, seen: int) -> Tensor | None:
        """Shape (rows, seen + rows): a row sees all that is `seen`, and of the block itself no later row."""
        if rows == 1:
            return None
        mask = self._made.get((rows, seen))
        if mask is None:
            later = torch.full((rows, rows), float("-inf"), dtype=self._like.dtype, device=self._like.device)
            mask = torch.cat([later.new_zeros(rows, seen), later.triu(1)], dim=1)
            self._made[rows, seen] = mask
        return mask


def _packed_attention(
    module: nn.Module,
    query_1HNK: Tensor,
    key_1GNK: Tensor,
    value_1GNK: Tensor,
    attention_mask: object,
    *,
    packed_tails: Sequence[Tail],
    packed_masks: _Masks,
    scaling: float | None = None,
    dropout: float = 0.0,
    **others: object,
) -> tuple[Tensor, None]:
    """What `AttentionInterface` asks for: the output, shape (1, N, H, K), and no weights."""
    if others.get("softcap") is not None or others.get("position_bias") is not None:
        raise NotImplementedError("packed attention knows neither a soft cap nor a position bias")
    outputs: list[Tensor] = []
    for tail in packed_tails:
        seen_1GCK, values_1GCK = _seen(key_1GNK, tail), _seen(value_1GNK, tail)
        before = seen_1GCK.shape[2] - (tail.end - tail.start)
        for start in range(tail.start, tail.end, _ROWS):
            rows = min(_ROWS, tail.end - start)
            mask = packed_masks.of(rows, before)
            output_1HnK = scaled_dot_product_attention(
                query_1HNK[:, :, start : start + rows],
                seen_1GCK[:, :, : before + rows],
                values_1GCK[:, :, : before + rows],
                attn_mask=mask,
                dropout_p=dropout,
                scale=scaling,
                enable_gqa=query_1HNK.shape[1] != key_1GNK.shape[1],
            )
            outputs.append(output_1HnK.transpose(1, 2))
            before += rows
    return torch.cat(outputs, dim=1), None


def _seen(states_1GNK: Tensor, tail: Tail) -> Tensor:
    """The tail's context and itself."""
    spans = [*tail.context, (tail.start, tail.end)]
    pieces = [states_1GNK[:, :, start:end] for start, end in spans]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=2)


AttentionInterface.register(_NAME, _packed_attention)
