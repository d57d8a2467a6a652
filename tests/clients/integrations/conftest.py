"""What the tests of integrations share: settings out of the way, connections closed, a service that fails on demand."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from guerdon import background
from guerdon.testing import StubService
from guerdon.types import Result, Sample, Status, failed

#: Responses that get no reward, and why.
FAILURES = {
    "timeout": Status.TIMEOUT,
    "overloaded": Status.OVERLOADED,
    "unavailable": Status.UNAVAILABLE,
    "internal": Status.INTERNAL_ERROR,
    "invalid": Status.INVALID_INPUT,
}


def judge(sample: Sample) -> Result | float:
    """1 for a right answer; a failure for the responses of that name."""
    for word, status in FAILURES.items():
        if word in (sample.response or ""):
            return failed(status, f"{word}, said the test")
    return float(any(reference in (sample.response or "") for reference in sample.references))


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubService]:
    """A service, which the environment names; failures are final after a moment."""
    for name in ("SERVICE", "OPTIONS", "REWARDS", "TOKEN", "COLUMNS"):
        monkeypatch.delenv(f"GUERDON_{name}", raising=False)
    with StubService(judge) as service:
        monkeypatch.setenv("GUERDON_URL", service.url)
        monkeypatch.setenv("GUERDON_RETRIES", "0")
        yield service
        background.stop()


#: Where `make peers` puts packages that are tested with and not installed with the rest.
PEERS = Path(sys.prefix) / "peers"


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Imports a peer's package; skips the test where it is not there."""
    before = set(sys.modules)

    def load(name: str) -> ModuleType:
        monkeypatch.syspath_prepend(PEERS)
        return pytest.importorskip(name, reason=f"{name} comes with `make peers`")

    yield load
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in {"skyrl_gym", "openrlhf"}:
            del sys.modules[name]


@pytest.fixture
def tiny_llama(tmp_path: Path) -> Path:
    """A folder with a random Llama and a tokenizer of one token per byte."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate([*alphabet, "<end>", "<pad>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    torch.manual_seed(0)
    sizes: Any = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(vocabulary), max_position_embeddings=64, **sizes))
    folder = tmp_path / "llama"
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>").save_pretrained(
        folder
    )
    return folder
