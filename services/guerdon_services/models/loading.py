"""Load a causal language model from a Hugging Face folder, and read other weights into it.

Everything is fp32: GSPO's clip range (3e-4) is below the spacing of bf16 log-probs.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.conversion_mapping import get_model_conversion_mapping


class WeightsMismatch(Exception):
    """A weights folder does not hold exactly the tensors of the model that should take them."""


class HalfRead(Exception):
    """Some tensors of a model were replaced and others were not: it must not answer."""


@dataclass(frozen=True)
class LanguageModel:
    """A causal model in evaluation mode and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @property
    def vocabulary_size(self) -> int:
        """Number of rows of the input embedding; ids from here on cannot be embedded."""
        return cast(nn.Embedding, self.model.get_input_embeddings()).num_embeddings

    @property
    def context_length(self) -> int | None:
        """The longest sequence the model was built for, in tokens; None when its configuration names none."""
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None)


def load(folder: Path, *, device: str = "cpu") -> LanguageModel:
    """Load model (fp32, evaluation mode) and tokenizer from a Hugging Face folder, without any download.

    Raises:
        FileNotFoundError: `folder` holds no config.json.
    """
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"no model in {folder}: it holds no config.json")
    model = cast(
        PreTrainedModel,
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True),
    )
    cast(nn.Module, model).to(device).eval()
    return LanguageModel(model, load_tokenizer(folder))


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a Hugging Face folder, as its files describe it.

    AutoTokenizer goes by the model's architecture first: beside a Qwen2 it puts Qwen's own pre-tokeniser into
    any tokenizer. One that names the generic class is taken as its tokenizer.json says.
    """
    configuration = folder / "tokenizer_config.json"
    named = json.loads(configuration.read_text()).get("tokenizer_class") if configuration.is_file() else None
    generic = named in ("TokenizersBackend", "PreTrainedTokenizerFast")
    return (PreTrainedTokenizerFast if generic else AutoTokenizer).from_pretrained(
        folder, local_files_only=True
    )


def set_threads(threads: int) -> None:
    """Let torch use `threads` CPU threads in this process; on a shared host more than one costs CPU."""
    torch.set_num_threads(threads)


def device_memory(device: str) -> dict[str, int]:
    """Bytes of a GPU's memory: what tensors hold, what this process has taken, what is free.

    Empty on a CPU, before this process has used the GPU (asking must not be its first use), and once it is lost.
    """
    if torch.device(device).type != "cuda" or not torch.cuda.is_initialized():
        return {}
    try:
        free, _ = torch.cuda.mem_get_info(device)
        allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    except RuntimeError:
        return {}
    return {"allocated": allocated, "reserved": reserved, "free": free}


def read_weights(model: PreTrainedModel, folder: Path) -> None:
    """Copy the safetensors of `folder` into `model`, after checking that all of them fit.

    Raises:
        WeightsMismatch: a tensor is missing, unknown, or of another shape; the model is unchanged.
        SafetensorError, OSError: a file is torn or missing; the model is unchanged.
        HalfRead: reading failed in the middle.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise WeightsMismatch(f"no safetensors file in {folder}")
    if get_model_conversion_mapping(model, add_legacy=False):
        _read_converted(model, folder)
        return
    # With tied weights several names share one tensor, and the file holds only one of them.
    targets = {name: tensor for name, tensor in model.named_parameters(remove_duplicate=False)}
    targets |= {name: tensor for name, tensor in model.named_buffers() if name in model.state_dict()}
    handles = [safe_open(file, framework="pt") for file in files]
    found: set[int] = set()
    for handle in handles:
        for name in handle.keys():  # noqa: SIM118  (not a mapping)
            shape = tuple(handle.get_slice(name).get_shape())
            if name not in targets or shape != tuple(targets[name].shape):
                raise WeightsMismatch(f"{folder}: the model has no tensor {name!r} of shape {shape}")
            found.add(id(targets[name]))
    missing = [name for name, tensor in targets.items() if id(tensor) not in found]
    if missing:
        raise WeightsMismatch(f"{folder} lacks {missing[0]!r} and {len(missing) - 1} more tensors")
    try:
        with torch.no_grad():
            for handle in handles:
                for name in handle.keys():  # noqa: SIM118
                    targets[name].copy_(handle.get_tensor(name))
    except Exception as error:
        raise HalfRead(f"{folder}: {error}") from error


def _read_converted(model: PreTrainedModel, folder: Path) -> None:
    """`read_weights` for a model whose files name other tensors than its modules, as those of many mixtures of experts.

    transformers converts them, which takes the memory of a second model.
    """
    answer: Any = type(model).from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, output_loading_info=True
    )
    loaded, info = cast(tuple[PreTrainedModel, dict[str, Any]], answer)
    odd = [*info["missing_keys"], *info["unexpected_keys"], *info["mismatched_keys"]]
    source, target = loaded.state_dict(), model.state_dict()
    odd += [name for name in target if name not in source or source[name].shape != target[name].shape]
    if odd:
        raise WeightsMismatch(
            f"{folder}: {len(odd)} tensors are not those of the model, {odd[0]!r} among them"
        )
    try:
        with torch.no_grad():
            for name, tensor in target.items():
                tensor.copy_(source[name])
    except Exception as error:
        raise HalfRead(f"{folder}: {error}") from error
