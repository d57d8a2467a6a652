"""The life of a vLLM engine, with a stand-in for vLLM itself: updates, failures in them, deaths, mixed groups.

What the real one does with the same calls is in test_vllm.py, which `make test-vllm` runs.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from guerdon_services import models
from guerdon_services.rollout.engines.vllm import VllmEngine
from guerdon_services.rollout.service import RolloutGenerator
from guerdon_services.rollout.settings import RolloutSettings
from guerdon_services.runtime.scorer import NotReady
from tests.services.rollout.fake_vllm import (
    GROUP,
    ROW,
    FakeCore,
    World,
    publish,
    tear,
    under_way,
    until,
    versions,
)


def test_a_published_version_is_taken_up_unasked(
    engine_of: Any, world: World, tmp_path: Path, tiny_llama: Path
) -> None:
    engine = engine_of()
    assert versions(engine.generate(GROUP)) == {(0, None)}
    publish(tmp_path, 1, tiny_llama)
    until(lambda: engine.version == 1)
    assert versions(engine.generate(GROUP)) == {(1, None)}
    assert world.started == [tiny_llama], "without another start"
    publish(tmp_path, 2, tiny_llama)
    engine.refresh()
    assert (engine.version, engine.versions().current, engine.state) == (2, 2, "version 2 serves")


def test_finish_waits_for_what_is_under_way(
    engine_of: Any, world: World, tmp_path: Path, tiny_llama: Path, pool: ThreadPoolExecutor
) -> None:
    engine = engine_of(on_update="finish")
    old = under_way(world, engine, pool)
    publish(tmp_path, 1, tiny_llama)
    refresh = pool.submit(engine.refresh)
    new = pool.submit(engine.generate, GROUP)
    assert not world.calls
    world.flow.set()
    assert versions(old.result()) == {(0, None)}
    refresh.result()
    assert engine.version == 1
    # It came before or after the engine began to wait, and is whole in either case.
    assert versions(new.result()) in ({(0, None)}, {(1, None)})


def test_finish_does_not_wait_for_ever(
    engine_of: Any, world: World, tmp_path: Path, tiny_llama: Path, pool: ThreadPoolExecutor
) -> None:
    engine = engine_of(on_update="finish", update_limit_s=0.05)
    stuck = under_way(world, engine, pool)
    publish(tmp_path, 1, tiny_llama)
    until(lambda: engine.version == 1)
    assert ("pause", "abort") in world.calls
    world.flow.set()
    assert versions(stuck.result()) == {(1, None)}, "sampled anew"


def test_restart_samples_what_is_under_way_anew(
    engine_of: Any, world: World, tmp_path: Path, tiny_llama: Path, pool: ThreadPoolExecutor
) -> None:
    engine = engine_of(on_update="restart")
    group = under_way(world, engine, pool)
    publish(tmp_path, 1, tiny_llama)
    until(lambda: engine.version == 1)
    world.flow.set()
    assert versions(group.result()) == {(1, None)}


def test_keep_goes_on_and_says_so(
    engine_of: Any, world: World, tmp_path: Path, tiny_llama: Path, pool: ThreadPoolExecutor
) -> None:
    engine = engine_of(on_update="keep")
    group = under_way(world, engine, pool)
    publish(tmp_path, 1, tiny_llama)
    until(lambda: engine.version == 1)
    world.flow.set()
    assert versions(group.result()) == {(0, 1)}
    assert world.calls == [("pause", "keep"), ("reload", 1), ("resume",)]


def _other_shape(path: Path) -> None:
    (path / "model.safetensors").write_bytes(b"")
    config = models.load(path.parent / "whole").model.config
    config.update({"intermediate_size": 32})
    type(models.load(path.parent / "whole").model)(config).save_pretrained(path)


@pytest.mark.parametrize(("spoil", "why"), [(tear, "SafetensorError"), (_other_shape, "WeightsMismatch")])
def test_a_version_that_is_not_whole_is_refused_and_the_state_says_so(
    engine_of: Any, world: World, tmp_path: Path, tiny_llama: Path, spoil: Any, why: str
) -> None:
    (tmp_path / "whole").symlink_to(tiny_llama)
    engine = engine_of()
    publish(tmp_path, 1, tiny_llama, spoil)
    engine.refresh()
    assert engine.state.startswith(f"version 0 serves; version 1 was refused: {why}: ")
    assert not world.calls
    publish(tmp_path, 2, tiny_llama)
    engine.refresh()
    assert engine.state == "version 2 serves"


def test_an_update_that_fails_half_way_leaves_the_old_version_serving(
    engine_of: Any, world: World, tmp_path: Path, tiny_llama: Path
) -> None:
    engine = engine_of()
    world.reload_errors.append(RuntimeError("no memory"))
    publish(tmp_path, 1, tiny_llama)
    engine.refresh()
    assert engine.state == "version 0 serves; version 1 was refused: RuntimeError: no memory"
    assert world.calls[-3:] == [("reload", 1), ("reload", 0), ("resume",)]
    assert versions(engine.generate(GROUP)) == {(0, None)}
    assert len(world.started) == 1


@pytest.mark.parametrize("hang", [False, True])
def test_an_engine_that_cannot_go_back_or_hangs_is_started_again(
    engine_of: Any, world: World, tmp_path: Path, tiny_llama: Path, hang: bool
) -> None:
    engine = engine_of(update_limit_s=0.2)
    world.hang = hang
    world.reload_errors += [RuntimeError("nor this"), RuntimeError("no memory")]
    publish(tmp_path, 1, tiny_llama)
    engine.refresh()
    assert engine.version == 0
    assert world.started == [tiny_llama, tiny_llama]
    assert world.cores[0].dead
    assert engine.state.startswith("version 0 serves; version 1 was refused: ")
    world.hang = False
    world.reload_errors.clear()
    assert versions(engine.generate(GROUP)) == {(0, None)}


@pytest.mark.parametrize("deaths", [1, 2, 3])
def test_a_version_under_which_the_engine_died_is_tried_again_but_not_for_ever(
    engine_of: Any, world: World, tmp_path: Path, tiny_llama: Path, deaths: int
) -> None:
    engine = engine_of()
    world.deaths = deaths
    publish(tmp_path, 1, tiny_llama)
    refused = "version 0 serves; version 1 was refused: EngineDied: the engine died"
    until(lambda: len(world.cores) == 1 + deaths)
    until(lambda: engine.state == (refused if deaths == 3 else "version 1 serves"))
    for _ in range(3):
        engine.refresh()
    assert [call for call in world.calls if call[0] == "reload"] == [("reload", 1)] * min(deaths + 1, 3)
    assert versions(engine.generate(GROUP)) == {(engine.version, None)}
    publish(tmp_path, 2, tiny_llama)
    until(lambda: engine.state == "version 2 serves")


def test_a_dead_engine_is_started_again_and_nothing_is_lost(
    engine_of: Any, world: World, tiny_llama: Path, pool: ThreadPoolExecutor
) -> None:
    engine = engine_of()
    group = under_way(world, engine, pool)
    world.cores[-1].dead = True
    until(lambda: len(world.cores) == 2)
    world.flow.set()
    assert versions(group.result()) == {(0, None)}
    assert len(group.result()) == len(GROUP)


def test_a_group_that_kills_every_engine_is_unavailable(
    engine_of: Any, world: World, pool: ThreadPoolExecutor
) -> None:
    engine = engine_of()
    world.flow.clear()
    group = pool.submit(engine.generate, GROUP)
    for life in range(3):
        until(lambda life=life: len(world.cores) == life + 1 and world.cores[-1].asked == len(GROUP))
        world.cores[-1].dead = True
    with pytest.raises(NotReady, match="died 3 times"):
        group.result()


def test_an_engine_that_cannot_be_started_again_is_unavailable_until_it_can(
    engine_of: Any, world: World, pool: ThreadPoolExecutor
) -> None:
    engine = engine_of()
    world.start_errors += [RuntimeError("no memory")]
    group = under_way(world, engine, pool)
    world.cores[-1].dead = True
    with pytest.raises(NotReady, match="cannot be started: RuntimeError: no memory"):
        group.result()
    world.flow.set()
    until(lambda: engine.state == "version 0 serves")
    assert versions(engine.generate(GROUP)) == {(0, None)}


def test_a_model_that_does_not_run_is_said_at_once(engine_of: Any, world: World) -> None:
    world.start_errors.append(RuntimeError("head_dim=8"))
    with pytest.raises(RuntimeError, match=r"vLLM does not run .*head_dim=8"):
        engine_of()


def test_raw_logprobs_cost_a_forward_only_where_they_differ(engine_of: Any) -> None:
    engine = engine_of()
    rows = [replace(ROW, temperature=t, raw_logprobs=True) for t in (0.0, 1.0, 0.5)]
    assert [one.raw_logprobs[0] for one in engine.generate(rows)] == [-1.0, -1.0, -2.0]
    assert engine.generate([ROW])[0].raw_logprobs == []


def test_equal_rows_without_a_seed_are_one_request(engine_of: Any, world: World) -> None:
    engine = engine_of()
    assert len(engine.generate([ROW] * 5)) == 5
    assert world.cores[0].asked == 1
    engine.generate(GROUP)
    assert world.cores[0].asked == 1 + len(GROUP)


def test_groups_wait_while_the_cache_is_full(engine_of: Any, world: World, pool: ThreadPoolExecutor) -> None:
    engine = engine_of()
    world.cores[0].gauge.full = True
    group = pool.submit(engine.generate, GROUP)
    assert world.cores[0].asked == 0
    world.cores[0].gauge.full = False
    assert len(group.result()) == len(GROUP)


def test_end_tokens_are_those_of_the_generation_config(
    tiny_llama: Path, tmp_path: Path, world: World
) -> None:
    model = tmp_path / "model"
    loaded = models.load(tiny_llama)
    loaded.model.save_pretrained(model)
    loaded.tokenizer.save_pretrained(model)
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    engine = VllmEngine(RolloutSettings(model=model), cast(Any, lambda path: FakeCore(world, path)))
    assert engine._end_tokens == {5, 6}
    engine.close()


def test_preemptions_are_counted_over_all_lives(
    engine_of: Any, world: World, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = RolloutGenerator(RolloutSettings(model=tiny_llama))
    registry = CollectorRegistry()
    for collector in service.collectors():
        registry.register(collector)
    name = "guerdon_rollout_preemptions_total"
    assert registry.get_sample_value(name) is None
    engine = engine_of()
    monkeypatch.setattr(service, "_engine", engine)
    world.cores[-1].gauge.preemptions = 3
    assert registry.get_sample_value(name) == 3
    world.start_errors += [RuntimeError("no memory")]
    world.cores[-1].dead = True
    until(lambda: not world.start_errors)
    assert registry.get_sample_value(name) == 3, "not again for a start that failed"
    until(lambda: engine.state == "version 0 serves" and len(world.cores) == 2)
    world.cores[-1].gauge.preemptions = 2
    assert registry.get_sample_value(name) == 5


def test_equal_greedy_rows_are_asked_for_one_by_one(engine_of: Any, world: World) -> None:
    # vLLM refuses several greedy responses in one request.
    engine = engine_of()
    engine.generate([ROW] * 3)
    assert world.cores[-1].asked == 1
    engine.generate([replace(ROW, temperature=0.0)] * 3)
    assert world.cores[-1].asked == 4
