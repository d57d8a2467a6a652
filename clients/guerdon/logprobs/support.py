"""Which models can be scored here, and which may be packed: both are tried on an example."""

# pyright: standard

import logging
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from guerdon.logprobs.attention import packed_hidden_states
from guerdon.logprobs.head import output_head
from guerdon.logprobs.packing import pack
from guerdon.logprobs.padding import padded_hidden_states

_log = logging.getLogger(__name__)

#: Two branches at different depths, one of them within a branch.
_EXAMPLE = [(1, 2, 3, 4, 5, 6), (1, 2, 3, 7, 8), (1, 2, 3, 7, 9, 10, 11), (4, 3, 2)]
#: Largest difference of hidden states, as a part of the largest value, that rounding explains.
_ROUNDING = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}
_answers: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def check_head(model: nn.Module) -> None:
    """Refuse a model that makes something else of its hidden states than `head.output_head` does.

    Architectures scale and cap their logits under many names; log-probs without that would be wrong.

    Raises:
        ValueError: names the architecture.
    """
    if not isinstance(model, PreTrainedModel):
        return
    head, _ = output_head(model)
    ids_1L = torch.tensor(_example(model)[:1], device=model.device)
    with torch.no_grad():
        own_LV = model(input_ids=ids_1L, use_cache=False).logits[0]
        hidden_LD = cast(Any, model).base_model(input_ids=ids_1L, use_cache=False).last_hidden_state[0]
        difference = _difference(head(hidden_LD), own_LV)
    if difference > _ROUNDING.get(own_LV.dtype, 1e-3):
        raise ValueError(f"{type(model).__name__} makes its logits in a way that is not supported")


def packs(model: nn.Module, longest: int) -> bool:
    """Whether sequences of up to `longest` tokens may be packed: tried once per model, on an example."""
    if not isinstance(model, PreTrainedModel):
        return False
    window = _window(cast(Any, model).config.get_text_config())
    if window is not None and longest > window:
        return False
    if model not in _answers:
        _answers[model] = _try(model)
    return _answers[model]


def _window(config: Any) -> int | None:
    """How far back every layer sees at least; None when all see everything, 0 for layers of another kind."""
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - {"full_attention", "sliding_attention"}:
        return 0
    if kinds and "sliding_attention" not in kinds:
        return None
    return getattr(config, "sliding_window", None)


def _try(model: PreTrainedModel) -> bool:
    name = type(model).__name__
    try:
        with torch.no_grad():
            example = _example(model)
            row = pack(example)
            packed_ND = packed_hidden_states(model, row)
            packed = [packed_ND[row.indices(index)] for index in range(len(example))]
            padded_BLD = padded_hidden_states(model, example)
    except (TypeError, NotImplementedError, ValueError, KeyError, AttributeError) as error:
        _log.warning("prefixes are not shared: %s takes no packed row (%s)", name, error)
        return False
    difference = max(
        _difference(row_LD, padded_BLD[index, : len(row_LD)]) for index, row_LD in enumerate(packed)
    )
    if difference > _ROUNDING.get(padded_BLD.dtype, 1e-3):
        _log.warning("prefixes are not shared: a packed row of %s differs by %.1e", name, difference)
        return False
    return True


def _example(model: PreTrainedModel) -> list[tuple[int, ...]]:
    """In the words of a vocabulary of any size."""
    size = cast(nn.Embedding, model.get_input_embeddings()).num_embeddings
    return [tuple(token % size for token in ids) for ids in _EXAMPLE]


def _difference(first: Tensor, second: Tensor) -> float:
    return float((first.float() - second.float()).abs().max() / second.float().abs().max())
