"""Tiny models built on the spot, for every service that has one."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)


class TableModel(nn.Module):
    """Logits at a position are the table row of the token there; refuses more than `fits` tokens at a time."""

    def __init__(self, table: list[list[float]]) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.tensor(table))
        self.config = SimpleNamespace(get_text_config=SimpleNamespace)
        self.fits = 10**9

    def base_model(self, *, input_ids: Tensor, **_: Any) -> SimpleNamespace:
        if input_ids.numel() > self.fits:
            raise torch.OutOfMemoryError("too many tokens for this test")
        return SimpleNamespace(last_hidden_state=self.table[input_ids])

    def get_output_embeddings(self) -> nn.Linear:
        size = self.table.shape[0]
        identity = nn.Linear(size, size, bias=False)
        nn.init.eye_(identity.weight).requires_grad_(False)
        return identity


@pytest.fixture
def table_model() -> Callable[[list[list[float]]], TableModel]:
    """Makes the model that most public vectors were computed with."""
    return TableModel


_TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    # Larger than transformers' default of 0.02: log-probs should differ visibly from uniform.
    "initializer_range": 0.3,
}


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with only two merges (` 7` and `>` + newline), an end token, and a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate([*alphabet, "Ġ7", ">Ċ"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("Ġ", "7"), (">", "Ċ")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    fast.chat_template = _TEMPLATE
    return fast


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random Llama (untied head) and a byte-level tokenizer."""
    return _save(tmp_path_factory.mktemp("llama"), lambda v: LlamaForCausalLM(_llama(v)))


@pytest.fixture(scope="session")
def tiny_qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random Qwen2 (tied embeddings) and a byte-level tokenizer."""
    return _save(tmp_path_factory.mktemp("qwen2"), lambda v: Qwen2ForCausalLM(_qwen2(v)))


def _llama(vocabulary: int) -> LlamaConfig:
    return LlamaConfig(vocab_size=vocabulary, tie_word_embeddings=False, **_SIZES)


def _qwen2(vocabulary: int) -> Qwen2Config:
    return Qwen2Config(vocab_size=vocabulary, tie_word_embeddings=True, **_SIZES)


def _save(folder: Path, build: Callable[[int], LlamaForCausalLM | Qwen2ForCausalLM]) -> Path:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tokenizer = byte_tokenizer()
    build(len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
