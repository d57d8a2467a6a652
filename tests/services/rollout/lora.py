"""LoRA adapters as peft writes them, made without it: the environment of vLLM's tests has no whole peft."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from guerdon_services import models

#: What an adapter of these tests changes.
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write_adapter(
    path: Path, base: Path, *, seed: int, rank: int = 4, alpha: float = 8.0, size: float = 0.05
) -> None:
    """An adapter of every linear layer in the blocks of the model in `base`; entries are normal, of this size."""
    torch.manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, module in models.load(base).model.named_modules():
        if isinstance(module, nn.Linear) and name.endswith(TARGETS):
            tensors[f"base_model.model.{name}.lora_A.weight"] = torch.randn(rank, module.in_features) * size
            tensors[f"base_model.model.{name}.lora_B.weight"] = torch.randn(module.out_features, rank) * size
    path.mkdir(exist_ok=True)
    save_file(tensors, path / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": TARGETS, "bias": "none"}
    (path / "adapter_config.json").write_text(json.dumps(config))


@contextmanager
def merged(model: nn.Module, adapter: Path) -> Iterator[None]:
    """Within it an adapter is added to the model's weights: W + alpha / rank B A."""
    config = json.loads((adapter / "adapter_config.json").read_text())
    tensors = load_file(adapter / "adapter_model.safetensors")
    modules = dict(model.named_modules())
    before: dict[str, Tensor] = {}
    with torch.no_grad():
        for name in {name.removesuffix(".lora_A.weight") for name in tensors if ".lora_A." in name}:
            layer = modules[name.removeprefix("base_model.model.")]
            assert isinstance(layer, nn.Linear)
            before[name] = layer.weight.clone()
            delta = tensors[f"{name}.lora_B.weight"] @ tensors[f"{name}.lora_A.weight"]
            layer.weight += config["lora_alpha"] / config["r"] * delta
        yield
        for name, weight in before.items():
            layer = modules[name.removeprefix("base_model.model.")]
            assert isinstance(layer, nn.Linear)
            layer.weight.copy_(weight)
