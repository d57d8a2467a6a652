"""Which version's files a vLLM engine reads when some are torn, refused or removed, with a stand-in for vLLM itself."""

import errno
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from guerdon import weights
from guerdon_services.runtime.scorer import NotReady
from tests.services.rollout.fake_vllm import GROUP, World, publish, tear, until, versions


@pytest.mark.parametrize("recovers", [True, False])
def test_the_old_version_is_read_again_though_its_publisher_removed_it(
    engine_of: Any, world: World, tmp_path: Path, tiny_llama: Path, recovers: bool
) -> None:
    publish(tmp_path, 1, tiny_llama)
    engine = engine_of()
    whole = (weights.version_path(tmp_path, 1) / "model.safetensors").read_bytes()
    publish(tmp_path, 2, tiny_llama)
    engine.refresh()
    for version in (3, 4, 5):
        world.reload_errors += [] if recovers else [RuntimeError("nor this")]
        world.reload_errors.append(RuntimeError("no memory"))
        publish(tmp_path, version, tiny_llama)
        engine.refresh()
        assert engine.state == f"version 2 serves; version {version} was refused: RuntimeError: no memory"
    assert not weights.version_path(tmp_path, 2).exists()
    assert ("reload", 2) in world.calls
    assert len(world.started) == (1 if recovers else 4)
    assert (engine._followed.path / "model.safetensors").read_bytes() == whole
    assert (engine._followed.path / "tokenizer.json").is_file()
    assert versions(engine.generate(GROUP)) == {(2, None)}


def test_without_links_no_version_that_was_refused_takes_the_place_of_one_that_is_gone(
    engine_of: Any, world: World, tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_links(monkeypatch)
    publish(tmp_path, 1, tiny_llama)
    engine = engine_of()
    for version in (2, 3):
        world.reload_errors += [RuntimeError("nor this"), RuntimeError("no memory")]
        publish(tmp_path, version, tiny_llama)
        engine.refresh()
    assert not weights.version_path(tmp_path, 1).exists()
    # Both that are there were refused: there is nothing to serve, until something is published.
    until(lambda: "cannot be started" in engine.state)
    assert len(world.started) == 2
    with pytest.raises(NotReady, match="version 1 is gone"):
        engine.generate(GROUP)
    publish(tmp_path, 4, tiny_llama)
    until(lambda: engine.version == 4)
    assert versions(engine.generate(GROUP)) == {(4, None)}


def without_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that has none."""

    def link(*_: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "no links here")

    monkeypatch.setattr("guerdon_services.rollout.engines.held.os.link", link)


def test_where_the_served_folder_is_gone_a_new_engine_has_the_newest_whole_one(
    engine_of: Any, world: World, tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_links(monkeypatch)
    publish(tmp_path, 1, tiny_llama)
    engine = engine_of()
    assert engine.version == 1
    publish(tmp_path, 3, tiny_llama)
    engine.refresh()
    publish(tmp_path, 4, tiny_llama, tear)
    publish(tmp_path, 5, tiny_llama, tear)
    engine.refresh()
    assert engine.version == 3
    assert not weights.version_path(tmp_path, 3).exists()
    publish(tmp_path, 6, tiny_llama)
    publish(tmp_path, 7, tiny_llama, tear)
    world.cores[-1].dead = True
    until(lambda: len(world.cores) == 2)
    until(lambda: engine.version == 6)
    assert world.cores[-1].version == 6


def test_a_service_that_starts_beside_torn_versions_begins_with_the_newest_whole_one(
    engine_of: Any, world: World, tmp_path: Path, tiny_llama: Path
) -> None:
    publish(tmp_path, 1, tiny_llama, tear)
    with pytest.raises(SafetensorError):
        engine_of()
    assert list(tmp_path.glob(".serving-*")) == []
    publish(tmp_path, 2, tiny_llama)
    publish(tmp_path, 3, tiny_llama, tear)
    engine = engine_of()
    assert engine.state.startswith("version 2 serves; version 3 was refused: SafetensorError: ")
    engine.refresh()
    assert versions(engine.generate(GROUP)) == {(2, None)}
    publish(tmp_path, 4, tiny_llama)
    engine.refresh()
    assert engine.state == "version 4 serves"
    assert len(world.started) == 1


def test_a_version_that_cannot_be_read_for_a_while_is_taken_up_when_it_can(
    engine_of: Any, tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path, 1, tiny_llama)
    engine = engine_of()

    def stale(folder: Path) -> Any:
        # Without its path, which is another one at each look.
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr("guerdon_services.rollout.engines.vllm_weights.tensor_shapes", stale)
    publish(tmp_path, 2, tiny_llama)
    engine.refresh()
    assert "version 1 serves; version 2 was refused: OSError: " in engine.state
    monkeypatch.undo()
    until(lambda: engine.state == "version 2 serves")


def test_without_links_a_version_published_anew_while_it_is_read_never_serves(
    engine_of: Any, world: World, tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_links(monkeypatch)
    engine = engine_of()
    [core] = world.cores
    reload, served = core.reload, list[int]()

    async def meanwhile(path: Path, version: int, *, keep: bool) -> None:
        monkeypatch.setattr(core, "reload", reload)
        await reload(path, version, keep=keep)
        publish(tmp_path, 1, tiny_llama)

    resume = core.resume

    async def counted() -> None:
        served.append(core.version)
        await resume()

    monkeypatch.setattr(core, "reload", meanwhile)
    monkeypatch.setattr(core, "resume", counted)
    publish(tmp_path, 1, tiny_llama)
    until(lambda: engine.version == 1)
    # First the old weights again, then the version that took the other's place.
    assert served == [0, 1]
    assert world.calls.count(("reload", 1)) == 2
