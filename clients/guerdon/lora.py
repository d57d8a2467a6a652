"""Low-rank adapters in a causal model: a base that stays and small matrices that learn; the extra guerdon[lora].

Without its adapters the model is what it was before, so no second copy of the base is needed. arXiv:2106.09685.
"""

# pyright: standard

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from guerdon.fingerprint import BASE, fingerprint

_NAME = "default"  # peft's own name for the only adapter


class Adapters:
    """Adapters put into a model; they alone have gradients.

    Raises:
        ImportError: peft is not installed.
        ValueError: the model has no module of the names in `targets`.
    """

    def __init__(self, model: nn.Module, *, rank: int, alpha: float, targets: str | list[str]) -> None:
        try:
            from peft import LoraConfig, inject_adapter_in_model
            from peft.tuners.tuners_utils import BaseTunerLayer
        except ImportError as error:
            raise ImportError("adapters need the library peft: pip install guerdon[lora]") from error

        settings = LoraConfig(
            r=rank, lora_alpha=cast(int, alpha), target_modules=targets, lora_dropout=0.0, bias="none"
        )
        inject_adapter_in_model(settings, model)
        self._settings = settings
        self._layers: dict[str, Any] = {
            name: layer for name, layer in model.named_modules() if isinstance(layer, BaseTunerLayer)
        }
        model.eval()

    @contextmanager
    def off(self) -> Iterator[None]:
        """Within it the model is the bare base."""
        self._enable(False)
        try:
            yield
        finally:
            self._enable(True)

    def merged(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state of the plain model, from the whole state of this one: adapters added to their layers' weights."""
        merged: dict[str, Tensor] = {}
        for name, tensor in state.items():
            path, wrapped, leaf = name.partition(".base_layer.")
            if ".lora_" in name:
                continue
            if wrapped and leaf == "weight":
                tensor = tensor + self._delta(path, state).to(tensor.dtype)
            merged[f"{path}.{leaf}" if wrapped else name] = tensor
        return merged

    def write(self, state: Mapping[str, Tensor], folder: Path, base: Path) -> None:
        """The adapters of a whole state as peft's folder, with the fingerprint of the model that they are put on."""
        from safetensors.torch import save_file

        tensors = {
            f"base_model.model.{name.replace(f'.{_NAME}.', '.')}": tensor.detach().cpu().contiguous()
            for name, tensor in adapter_tensors(state).items()
        }
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        settings = copy(self._settings)
        settings.base_model_name_or_path = str(base)
        # By their whole names: a pattern may mean other modules to another reader.
        settings.target_modules = sorted(self._layers)
        settings.inference_mode = True
        settings.save_pretrained(str(folder))
        (folder / BASE).write_text(fingerprint(base))

    def _delta(self, path: str, state: Mapping[str, Tensor]) -> Tensor:
        """What the adapters of a layer add to its weight; peft's own needs weights that are not sharded."""
        layer = self._layers[path]
        with torch.no_grad():
            product = state[f"{path}.lora_B.{_NAME}.weight"] @ state[f"{path}.lora_A.{_NAME}.weight"]
            return (product.T if getattr(layer, "fan_in_fan_out", False) else product) * layer.scaling[_NAME]

    def _enable(self, enabled: bool) -> None:
        for layer in self._layers.values():
            layer.enable_adapters(enabled)


def adapter_tensors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those of a model's state that belong to adapters."""
    return {name: tensor for name, tensor in state.items() if ".lora_" in name}
