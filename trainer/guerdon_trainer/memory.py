"""How much memory a step will take: an estimate before anything is loaded, and what there is."""

import os
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from guerdon_trainer.config import RunConfig

#: Bytes of an fp32 number.
_FP32 = 4
#: Numbers that a layer keeps for its gradient, per token: so many hidden sizes and so many intermediate ones. Counted
#: with saved_tensors_hooks on Llama layers: 25.1 hidden sizes where the intermediate one is 4, 19.7 where it is 2.7.
_KEPT_HIDDEN, _KEPT_INTERMEDIATE = 9, 4


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that the trainer's process takes at the peak of a step, by what holds them."""

    parameters: int
    weights: int
    gradients: int
    optimizer: int
    initial: int
    activations: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.gradients + self.optimizer + self.initial + self.activations


def estimate_memory(model: PreTrainedModel, config: RunConfig) -> MemoryEstimate:
    """The estimate for one process: fp32 weights, gradients, AdamW's two moments, activations of a micro-batch.

    A rule of thumb for models with layers like Llama's; other shapes differ.
    """
    sizes = [parameter.numel() for parameter in model.parameters()]
    learned = [parameter.numel() for parameter in model.parameters() if parameter.requires_grad]
    text = model.config.get_text_config()
    number = 2 if config.optimizer.precision == "bf16" else _FP32
    intermediate = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    layer = _KEPT_HIDDEN * text.hidden_size + _KEPT_INTERMEDIATE * intermediate
    per_token = text.num_hidden_layers * layer
    if config.optimizer.gradient_checkpointing:
        # Each layer's input, and one layer at a time whole.
        per_token = text.num_hidden_layers * text.hidden_size + layer
    return MemoryEstimate(
        parameters=sum(sizes),
        weights=_FP32 * sum(sizes),
        gradients=_FP32 * sum(learned),
        optimizer=2 * _FP32 * sum(learned),
        initial=_FP32 * sum(sizes) if config.training.kl_to_initial else 0,
        activations=config.optimizer.micro_batch_tokens * per_token * number,
    )


def available_memory(device: torch.device) -> int:
    """Bytes that are free now, on the device or in main memory."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except FileNotFoundError:
        pass  # no Linux
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
