"""Which models may be packed: those whose packed row gives the log-probs of their own forward."""

from typing import Any, cast
from weakref import WeakKeyDictionary

import structlog
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from guerdon_services.scoring.attention import packed_hidden_states
from guerdon_services.scoring.packing import pack
from guerdon_services.scoring.padding import padded_hidden_states

_log = structlog.get_logger(__name__)

#: Two branches at different depths, one of them within a branch.
_EXAMPLE = [(1, 2, 3, 4, 5, 6), (1, 2, 3, 7, 8), (1, 2, 3, 7, 9, 10, 11), (4, 3, 2)]
#: Largest difference of hidden states, as a part of the largest value, that rounding explains.
_ROUNDING = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}
_answers: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


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
            row = pack(_EXAMPLE)
            packed_ND = packed_hidden_states(model, row)
            packed = [packed_ND[row.indices(index)] for index in range(len(_EXAMPLE))]
            padded_BLD = padded_hidden_states(model, _EXAMPLE)
    except (TypeError, NotImplementedError, ValueError, KeyError, AttributeError) as error:
        _log.warning("prefixes are not shared: the model takes no packed row", model=name, error=str(error))
        return False
    difference = max(
        _difference(row_LD, padded_BLD[index, : len(row_LD)]) for index, row_LD in enumerate(packed)
    )
    if difference > _ROUNDING.get(padded_BLD.dtype, 1e-3):
        _log.warning("prefixes are not shared: a packed row differs", model=name, difference=difference)
        return False
    return True


def _difference(first: Tensor, second: Tensor) -> float:
    return float((first.float() - second.float()).abs().max() / second.float().abs().max())
