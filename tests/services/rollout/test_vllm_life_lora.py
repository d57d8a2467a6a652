"""LoRA adapters in the life of a vLLM engine, with a stand-in for vLLM itself; the real one is in test_vllm_lora.py."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from guerdon import weights
from guerdon_services.rollout.engines.vllm import VllmEngine
from guerdon_services.rollout.settings import RolloutSettings
from tests.services.rollout.fake_vllm import GROUP, FakeCore, World, publish, under_way, until, versions
from tests.services.rollout.lora import write_adapter


def publish_adapter(folder: Path, version: int, base: Path, *, rank: int = 2) -> None:
    weights.publish(folder, version, lambda path: write_adapter(path, base, seed=version, rank=rank))


def test_adapters_are_put_on_the_first_model_and_nothing_else_is_read(
    engine_of: Any, world: World, tmp_path: Path, tiny_llama: Path
) -> None:
    engine = engine_of(max_lora_rank=2)
    for version in (1, 2):
        publish_adapter(tmp_path, version, tiny_llama)
        engine.refresh()
        assert versions(engine.generate(GROUP)) == {(version, None)}
    publish(tmp_path, 3, tiny_llama)
    engine.refresh()
    publish_adapter(tmp_path, 4, tiny_llama)
    engine.refresh()
    assert (engine.version, engine.state) == (4, "version 4 serves")
    read = [call for call in world.calls if call[0] in ("adapt", "reload")]
    assert read == [("adapt", 1), ("adapt", 2), ("reload", 3), ("reload", 4), ("adapt", 4)]
    assert world.read[-1] == tiny_llama, "version 4 is not on version 3"
    assert world.started == [tiny_llama]


def test_an_adapter_that_fails_half_way_leaves_the_old_one_serving(
    engine_of: Any, world: World, tmp_path: Path, tiny_llama: Path
) -> None:
    engine = engine_of(max_lora_rank=2)
    publish_adapter(tmp_path, 1, tiny_llama)
    engine.refresh()
    world.reload_errors.append(RuntimeError("one of the workers"))
    publish_adapter(tmp_path, 2, tiny_llama)
    engine.refresh()
    assert engine.state == "version 1 serves; version 2 was refused: RuntimeError: one of the workers"
    assert world.calls[-4:] == [("adapt", 2), ("reload", 1), ("adapt", 1), ("resume",)]
    assert versions(engine.generate(GROUP)) == {(1, None)}


def test_a_new_engine_has_the_adapter_again_though_its_publisher_removed_it(
    engine_of: Any, world: World, tmp_path: Path, tiny_llama: Path
) -> None:
    publish_adapter(tmp_path, 1, tiny_llama)
    engine = engine_of(max_lora_rank=2)
    assert world.calls == [("adapt", 1)]
    assert versions(engine.generate(GROUP)) == {(1, None)}
    for version in (2, 3):
        publish_adapter(tmp_path, version, tiny_llama, rank=3)
        engine.refresh()
        assert f"version {version} was refused: ValueError: its rank is 3" in engine.state
    assert not weights.version_path(tmp_path, 1).exists()
    world.cores[-1].dead = True
    until(lambda: len(world.cores) == 2)
    assert versions(engine.generate(GROUP)) == {(1, None)}
    assert world.started == [tiny_llama, tiny_llama]
    assert world.calls == [("adapt", 1), ("adapt", 1)]


@pytest.mark.parametrize("first", [True, False])
def test_without_max_lora_rank_an_adapter_is_refused_by_name(
    engine_of: Any, world: World, tmp_path: Path, tiny_llama: Path, first: bool
) -> None:
    why = "it is an adapter, and the service was started without max_lora_rank"
    if first:
        publish_adapter(tmp_path, 1, tiny_llama)
        with pytest.raises(ValueError, match=why):
            engine_of()
        assert list(tmp_path.glob(".serving-*")) == []
        return
    engine = engine_of()
    publish_adapter(tmp_path, 1, tiny_llama)
    engine.refresh()
    assert engine.state == f"version 0 serves; version 1 was refused: ValueError: {why}"
    assert not world.calls


@pytest.mark.parametrize("first", [True, False])
def test_an_adapter_wants_one_model_to_be_put_on(
    world: World, tmp_path: Path, tiny_llama: Path, first: bool
) -> None:
    def open_it() -> VllmEngine:
        settings = RolloutSettings(model=tmp_path, max_lora_rank=2)
        return VllmEngine(settings, cast(Any, lambda path: FakeCore(world, path)))

    why = "it is an adapter, and the setting `model` names no single model to put it on"
    if first:
        publish_adapter(tmp_path, 1, tiny_llama)
        with pytest.raises(ValueError, match=why):
            open_it()
        return
    publish(tmp_path, 1, tiny_llama)
    engine = open_it()
    publish_adapter(tmp_path, 2, tiny_llama)
    engine.refresh()
    assert engine.state == f"version 1 serves; version 2 was refused: ValueError: {why}"
    engine.close()


@pytest.mark.parametrize("adapted", [False, True])
def test_keep_samples_anew_where_an_adapter_comes_or_goes(
    engine_of: Any, world: World, tmp_path: Path, tiny_llama: Path, pool: ThreadPoolExecutor, adapted: bool
) -> None:
    engine = engine_of(on_update="keep", max_lora_rank=2)
    if adapted:
        publish_adapter(tmp_path, 1, tiny_llama)
        engine.refresh()
    group = under_way(world, engine, pool)
    (publish if adapted else publish_adapter)(tmp_path, 2, tiny_llama)
    until(lambda: engine.version == 2)
    world.flow.set()
    assert versions(group.result()) == {(2, None)}


def test_keep_goes_on_from_adapter_to_adapter(
    engine_of: Any, world: World, tmp_path: Path, tiny_llama: Path, pool: ThreadPoolExecutor
) -> None:
    engine = engine_of(on_update="keep", max_lora_rank=2)
    publish_adapter(tmp_path, 1, tiny_llama)
    engine.refresh()
    group = under_way(world, engine, pool)
    publish_adapter(tmp_path, 2, tiny_llama)
    until(lambda: engine.version == 2)
    world.flow.set()
    assert versions(group.result()) == {(1, 2)}
