"""A trainer that everybody took for dead: what it publishes at a URL reaches nobody once another attempt has begun."""

import math
from pathlib import Path

import pytest

from guerdon import weights
from guerdon.stores import Store, StoreError
from guerdon_trainer import weights_mirror
from guerdon_trainer.weights_mirror import PolicyMirror


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, nothing is said of waiting."""
    monkeypatch.setattr(weights_mirror, "_SILENT_S", math.inf)


def publish(folder: Path, version: int, words: str) -> None:
    def write(path: Path) -> None:
        (path / "config.json").write_text(words)

    weights.publish(folder, version, write)


def followed(url: str, folder: Path) -> str:
    """What a service on another machine serves then."""
    Store(url).pull(folder)
    latest = weights.latest(folder)
    assert latest is not None
    return (latest.path / "config.json").read_text()


def test_an_attempt_that_lives_after_all_ends_and_reaches_nobody(tmp_path: Path) -> None:
    url, there = f"file://{tmp_path}/store", tmp_path / "there"
    said: list[str] = []
    publish(tmp_path / "old", 3, "old 3")
    with PolicyMirror(tmp_path / "old", url, said.append) as old:
        assert followed(url, there) == "old 3"
        # The next attempt goes on from a checkpoint of version 2.
        publish(tmp_path / "new", 2, "new 2")
        with PolicyMirror(tmp_path / "new", url, said.append) as new:
            assert followed(url, there) == "new 2"
            publish(tmp_path / "old", 4, "old 4")
            old.published(4)
            old._mirror._thread.join(60)
            assert followed(url, there) == "new 2"
            publish(tmp_path / "new", 3, "new 3")
            new.published(3)
        assert followed(url, there) == "new 3"
        with pytest.raises(StoreError, match="another attempt publishes there since"):
            old.published(5)
        assert said == []
    assert followed(url, there) == "new 3"


def test_an_attempt_that_was_overtaken_does_not_wait_for_its_last_version(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    said: list[str] = []
    publish(tmp_path / "old", 1, "old 1")
    with PolicyMirror(tmp_path / "old", url, said.append) as old:
        publish(tmp_path / "new", 1, "new 1")
        PolicyMirror(tmp_path / "new", url, said.append).__exit__(None, None, None)
        publish(tmp_path / "old", 2, "old 2")
        old.published(2)
    assert len(said) == 1
    assert "the run ends before its mirror is complete" in said[0]
    assert followed(url, tmp_path / "there") == "new 1"
