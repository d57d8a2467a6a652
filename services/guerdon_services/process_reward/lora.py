"""LoRA: a PRM made of a base that stays and small adapters that learn; without them it is its own reference.

Needs the library peft (extra `process-reward-lora`). arXiv:2106.09685.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from guerdon import lora
from guerdon_services.models import WeightsMismatch
from guerdon_services.runtime.scorer import NotReady

#: Beside the merged weights of a version. Not a safetensors file: whoever loads those takes all of them.
_ADAPTERS = "adapters.pt"


class Adapters:
    """Adapters put into a model; they alone have gradients. Also the `Reference` that the bare base is."""

    version = 0

    def __init__(self, model: PreTrainedModel, *, rank: int, alpha: float, targets: str) -> None:
        try:
            self._adapters = lora.Adapters(cast(nn.Module, model), rank=rank, alpha=alpha, targets=targets)
        except ImportError as error:
            raise NotReady(
                "lora_rank needs the library peft: pip install guerdon-services[process-reward-lora]"
            ) from error
        except ValueError as error:
            raise ValueError(f"lora_targets: {error}") from error
        self._model = model

    def refresh(self) -> None:
        """The base never changes."""

    def close(self) -> None:
        """There is nothing to give up."""

    @contextmanager
    def module(self) -> Iterator[nn.Module]:
        """The model without its adapters."""
        with self._adapters.off():
            yield cast(nn.Module, self._model)

    def save(self, model: PreTrainedModel, folder: Path) -> None:
        """Write the merged model, which any loader reads, and the adapters, which an exact restart needs."""
        model.save_pretrained(folder, state_dict=self._adapters.merged(self._model.state_dict()))
        torch.save({name: tensor.detach() for name, tensor in self._tensors().items()}, folder / _ADAPTERS)

    def read(self, model: PreTrainedModel, folder: Path) -> None:
        """Take up the adapters that `save` wrote; the base stays.

        Raises:
            WeightsMismatch: the folder holds none, or others than this model's; the model is unchanged.
        """
        if not (folder / _ADAPTERS).is_file():
            raise WeightsMismatch(f"{folder} holds no adapters: it was written with lora_rank=0")
        found: dict[str, Tensor] = torch.load(folder / _ADAPTERS, weights_only=True)
        own = self._tensors()
        if {name: t.shape for name, t in found.items()} != {name: t.shape for name, t in own.items()}:
            raise WeightsMismatch(f"{folder} holds adapters of another lora_rank or other lora_targets")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(found[name])

    def _tensors(self) -> dict[str, Tensor]:
        return lora.adapter_tensors(self._model.state_dict())
