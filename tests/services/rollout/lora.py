"""LoRA adapters as peft writes them, made without it: the environment of vLLM's tests has no whole peft."""

import json
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


def write_merged(path: Path, base: Path, adapter: Path) -> None:
    """The model of `base` with an adapter added to its weights: W + alpha / rank B A."""
    loaded = models.load(base)
    config = json.loads((adapter / "adapter_config.json").read_text())
    tensors = load_file(adapter / "adapter_model.safetensors")
    modules = dict(loaded.model.named_modules())
    with torch.no_grad():
        for name in {name.removesuffix(".lora_A.weight") for name in tensors if ".lora_A." in name}:
            delta = tensors[f"{name}.lora_B.weight"] @ tensors[f"{name}.lora_A.weight"]
            layer = modules[name.removeprefix("base_model.model.")]
            assert isinstance(layer, nn.Linear)
            layer.weight += config["lora_alpha"] / config["r"] * delta
    loaded.model.save_pretrained(path)
    loaded.tokenizer.save_pretrained(path)
