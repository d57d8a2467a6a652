"""Fixtures of the tests of a vLLM engine's life, with a stand-in for vLLM."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from guerdon_services.rollout.engines.vllm import VllmEngine
from guerdon_services.rollout.settings import RolloutSettings
from tests.services.rollout.fake_vllm import FakeCore, World


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
