"""Fixtures of the tests of a vLLM engine: a model that it runs, and an engine with a stand-in for vLLM."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from guerdon_services import models
from guerdon_services.rollout.engines.vllm import VllmEngine
from guerdon_services.rollout.settings import RolloutSettings
from tests.services.rollout.fake_vllm import FakeCore, World


@pytest.fixture(scope="module")
def folder(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with heads as large as vLLM's CPU kernels want them, whose output head is its embedding.

    vLLM keeps a packed copy of such a head on CPUs, which its own reload forgets.
    """
    folder = tmp_path_factory.mktemp("llama32")
    tokenizer = models.load_tokenizer(tiny_llama)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        tie_word_embeddings=True,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def world() -> World:
    world = World()
    world.flow.set()
    return world


@pytest.fixture
def engine_of(tiny_llama: Path, tmp_path: Path, world: World) -> Iterator[Callable[..., VllmEngine]]:
    opened: list[VllmEngine] = []

    def build(**settings: Any) -> VllmEngine:
        chosen = RolloutSettings(model=tiny_llama, weights_dir=tmp_path, **settings)
        opened.append(VllmEngine(chosen, cast(Any, lambda path: FakeCore(world, path))))
        return opened[-1]

    yield build
    world.flow.set()
    for engine in opened:
        engine.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool
