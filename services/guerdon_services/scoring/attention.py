"""Attention within a packed row, as an attention implementation that transformers' models call by name.

Each tail attends to the spans of its own sequence, one call of torch's fused kernel per tail: nothing that the mask
would hide is computed. Shape suffixes: H heads, G key heads, N tokens of the row, n of one tail, C of its context,
K size of a head.
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
            packed_masks=[_mask(tail, parameter) for tail in row.tails],
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


def _mask(tail: Tail, like: Tensor) -> Tensor | None:
    """What is added to a tail's scores, shape (n, C + n); None where plain causal attention is meant."""
    if not tail.context:
        return None
    own, seen = tail.end - tail.start, sum(end - start for start, end in tail.context)
    hidden = torch.ones(own, seen + own, dtype=torch.bool, device=like.device).triu(seen + 1)
    return torch.zeros_like(hidden, dtype=like.dtype).masked_fill_(hidden, float("-inf"))


def _packed_attention(
    module: nn.Module,
    query_1HNK: Tensor,
    key_1GNK: Tensor,
    value_1GNK: Tensor,
    attention_mask: object,
    *,
    packed_tails: Sequence[Tail],
    packed_masks: Sequence[Tensor | None],
    scaling: float | None = None,
    dropout: float = 0.0,
    **others: object,
) -> tuple[Tensor, None]:
    """What `AttentionInterface` asks for: the output, shape (1, N, H, K), and no weights."""
    if others.get("softcap") is not None or others.get("position_bias") is not None:
        raise NotImplementedError("packed attention knows neither a soft cap nor a position bias")
    outputs = [
        scaled_dot_product_attention(
            query_1HNK[:, :, tail.start : tail.end],
            _seen(key_1GNK, tail),
            _seen(value_1GNK, tail),
            attn_mask=mask,
            is_causal=mask is None,
            dropout_p=dropout,
            scale=scaling,
            enable_gqa=query_1HNK.shape[1] != key_1GNK.shape[1],
        )
        for tail, mask in zip(packed_tails, packed_masks, strict=True)
    ]
    return torch.cat([output.transpose(1, 2) for output in outputs], dim=1), None


def _seen(states_1GNK: Tensor, tail: Tail) -> Tensor:
    own = states_1GNK[:, :, tail.start : tail.end]
    if not tail.context:
        return own
    return torch.cat([*(states_1GNK[:, :, start:end] for start, end in tail.context), own], dim=2)


AttentionInterface.register(_NAME, _packed_attention)
