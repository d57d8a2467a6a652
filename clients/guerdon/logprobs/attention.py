"""Attention within a packed row, as an attention implementation that transformers' models call by name.

Each tail attends to the spans of its own sequence, a block of rows at a time, by torch's fused kernel: hardly anything
that a mask would hide is computed, and no mask is larger than a block. Shape suffixes: H heads, G key heads, N tokens
of the row, C of a tail and its context, n of a block, K size of a head.
"""

# pyright: standard

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from guerdon.logprobs.packing import PackedRow

_NAME = "guerdon_packed"
#: Rows of one call: enough for the kernel to be fast.
_ROWS = 256


def packed_hidden_states(model: nn.Module, row: PackedRow) -> Tensor:
    """Last hidden states of the row's tokens, shape (N, D)."""
    device = next(model.parameters()).device
    trunk = cast(Any, model).base_model
    with _attention(model, _NAME):
        output = trunk(
            input_ids=torch.tensor([row.ids], device=device),
            position_ids=torch.tensor([row.positions], device=device),
            use_cache=False,
            packed_view=_View(row),
        )
    return output.last_hidden_state[0]


def same_attention(model: nn.Module) -> AbstractContextManager[None]:
    """Within it the model attends as it does where this is called; for whoever repeats a layer's forward later."""
    return _attention(model, cast(Any, model).config.get_text_config()._attn_implementation)


@contextmanager
def _attention(model: nn.Module, name: str) -> Iterator[None]:
    """The model's layers look up their attention in its configuration at every call."""
    config = cast(Any, model).config.get_text_config()
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before


class _View:
    """Who sees what in a row, worked out once for all layers.

    The row is cut wherever a tail or a part of it that others see begins or ends: all layers split their keys there,
    once, so that the gradients of a piece that many tails see are added up piece by piece.
    """

    def __init__(self, row: PackedRow) -> None:
        spans = [span for tail in row.tails for span in (*tail.context, (tail.start, tail.end))]
        cuts = sorted({0, len(row.ids), *(index for span in spans for index in span)})
        number = {cut: index for index, cut in enumerate(cuts)}
        self.pieces = [after - before for before, after in pairwise(cuts)]
        self.tails = [tail.end - tail.start for tail in row.tails]
        #: Per tail: the pieces of its context and of itself, in order, and the size of the context.
        self.seen = [
            [
                piece
                for start, end in (*tail.context, (tail.start, tail.end))
                for piece in range(number[start], number[end])
            ]
            for tail in row.tails
        ]
        self.before = [sum(end - start for start, end in tail.context) for tail in row.tails]
        self._masks: dict[tuple[int, int], Tensor] = {}

    def mask(self, rows: int, seen: int, like: Tensor) -> Tensor | None:
        """What is added to a block's scores, shape (rows, seen + rows): a row sees no later row of the block.

        Blocks of siblings and all layers share it; None where nothing is hidden.
        """
        if rows == 1:
            return None
        mask = self._masks.get((rows, seen))
        if mask is None:
            later = torch.full((rows, rows), float("-inf"), dtype=like.dtype, device=like.device)
            mask = torch.cat([later.new_zeros(rows, seen), later.triu(1)], dim=1)
            self._masks[rows, seen] = mask
        return mask


def _packed_attention(
    module: nn.Module,
    query_1HNK: Tensor,
    key_1GNK: Tensor,
    value_1GNK: Tensor,
    attention_mask: object,
    *,
    packed_view: _View,
    scaling: float | None = None,
    dropout: float = 0.0,
    **others: object,
) -> tuple[Tensor, None]:
    """What `AttentionInterface` asks for: the output, shape (1, N, H, K), and no weights."""
    if others.get("softcap") is not None or others.get("position_bias") is not None:
        raise NotImplementedError("packed attention knows neither a soft cap nor a position bias")
    keys, values = key_1GNK.split(packed_view.pieces, dim=2), value_1GNK.split(packed_view.pieces, dim=2)
    queries = query_1HNK.split(packed_view.tails, dim=2)
    outputs: list[Tensor] = []
    for query_1HTK, pieces, before in zip(queries, packed_view.seen, packed_view.before, strict=True):
        seen_1GCK, values_1GCK = (
            torch.cat([of[piece] for piece in pieces], dim=2) if len(pieces) > 1 else of[pieces[0]]
            for of in (keys, values)
        )
        for query_1HnK in query_1HTK.split(_ROWS, dim=2):
            rows = query_1HnK.shape[2]
            output_1HnK = scaled_dot_product_attention(
                query_1HnK,
                seen_1GCK[:, :, : before + rows],
                values_1GCK[:, :, : before + rows],
                attn_mask=packed_view.mask(rows, before, query_1HnK),
                dropout_p=dropout,
                scale=scaling,
                enable_gqa=query_1HNK.shape[1] != key_1GNK.shape[1],
            )
            outputs.append(output_1HnK.transpose(1, 2))
            before += rows
    return torch.cat(outputs, dim=1), None


AttentionInterface.register(_NAME, _packed_attention)
