"""What the tests of integrations share: settings out of the way, connections closed, a service that fails on demand."""

import importlib
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from guerdon import background
from guerdon.testing import StubService
from guerdon.types import Result, Sample, Status, failed
from guerdon_services.runtime.process import running
from guerdon_services.runtime.scorer import Batching, ScoreJob, Scorer, ScorerOptions, ScorerSettings
from guerdon_services.runtime.settings import Address, RuntimeSettings

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


class JudgeScorer(Scorer[ScorerSettings, ScorerOptions]):
    """The same as a service of its own, with the routes of other trainers."""

    name: ClassVar[str] = "judge"
    version: ClassVar[str] = "1"
    options_type: ClassVar[type[ScorerOptions]] = ScorerOptions

    def __init__(self) -> None:
        super().__init__(ScorerSettings())
        self.batching = Batching(max_wait_ms=0.0)

    def score(self, batch: Sequence[ScoreJob[ScorerOptions]]) -> list[Result]:
        return [self._one(job.sample) for job in batch]

    def _one(self, sample: Sample) -> Result:
        judged = judge(sample)
        return (
            judged
            if isinstance(judged, Result)
            else Result(status=Status.OK, value=judged, reason="compared")
        )


@pytest.fixture
async def judge_url() -> AsyncIterator[str]:
    """The URL of a service that judges."""
    async with running(JudgeScorer(), RuntimeSettings(http=Address("127.0.0.1", 0), drain_s=10.0)) as process:
        assert process.url is not None
        yield process.url


#: Where `make peers` puts packages that are tested with and not installed with the rest (peers.txt).
PEERS = Path(sys.prefix) / "peers"
_PEERS = frozenset(
    {
        "aiohttp",
        "areal",
        "openai",
        "openrlhf",
        "omegaconf",
        "pydantic_config",
        "ray",
        "skyrl_gym",
        "verifiers",
        "verl",
    }
)


class Absent(ModuleType):
    """A module that a peer imports and its reward path does not use: every class it is asked for is there, empty."""

    def __getattr__(self, name: str) -> Any:
        if not name[0].isupper():
            raise AttributeError(name)
        return type(name, (BaseModel,), {"__module__": self.__name__})


class Peers:
    """Imports a peer's modules as they are, without what stands around them: Ray, CUDA kernels, web stacks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def __call__(
        self, name: str, *, bare: tuple[str, ...] = (), absent: tuple[str | ModuleType, ...] = ()
    ) -> ModuleType:
        """The module; skips the test where its package is not there.

        The `__init__` of `bare` packages is not run. `absent` modules are empty, or stand in for those of their name.
        """
        if not (PEERS / name.partition(".")[0]).exists():
            pytest.skip(f"{name} comes with `make peers`")
        # At the end: wheels of verl and NeMo Gym bring packages called `tests` and `scripts`.
        self._patch.setattr(sys, "path", [*sys.path, str(PEERS)])
        for package in bare:
            module = Absent(package)
            module.__path__ = [str(PEERS / package.replace(".", "/"))]
            self._place(module)
        for one in absent:
            self._place(Absent(one) if isinstance(one, str) else one)
        return importlib.import_module(name)

    def _place(self, module: ModuleType) -> None:
        self._patch.setitem(sys.modules, module.__name__, module)
        parent, _, child = module.__name__.rpartition(".")
        if parent in sys.modules:
            self._patch.setattr(sys.modules[parent], child, module, raising=False)


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peers]:
    """Imports peers; what they loaded is gone after the test."""
    before = set(sys.modules)
    yield Peers(monkeypatch)
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in _PEERS:
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
