"""Versions that an engine holds outlive their publisher's pruning, and go when nobody serves them."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from guerdon import weights
from guerdon_services.rollout.engines import held as module
from guerdon_services.rollout.engines.held import HeldVersions


def publish(folder: Path, version: int) -> weights.Published:
    def write(path: Path) -> None:
        (path / "config.json").write_text(f"{version}")
        (path / "more").mkdir()
        (path / "more" / "template.jinja").write_text(f"template {version}")

    return weights.publish(folder, version, write)


def hold(held: HeldVersions, published: weights.Published) -> Path:
    identity = weights.identity(published)
    assert identity is not None
    path = held.hold(published, identity)
    assert path is not None
    return path


def own_folders(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob(".serving-*"))


def test_what_is_held_outlives_pruning_and_takes_no_space_before(tmp_path: Path) -> None:
    held = HeldVersions(tmp_path)
    first = publish(tmp_path, 1)
    path = hold(held, first)
    assert (path / "config.json").samefile(first.path / "config.json")
    for version in (2, 3):
        publish(tmp_path, version)
    assert not first.path.exists()
    assert (path / "config.json").read_text() == "1"
    assert (path / "more" / "template.jinja").read_text() == "template 1"
    assert [one.version for one in weights.published(tmp_path)] == [2, 3], "no version of the folder"

    second = hold(held, weights.published(tmp_path)[-1])
    held.release(path)
    assert not path.exists()
    assert (second / "config.json").read_text() == "3"
    held.close()
    assert own_folders(tmp_path) == []


def test_the_same_number_published_anew_is_held_beside_the_old_one(tmp_path: Path) -> None:
    held = HeldVersions(tmp_path)
    old = hold(held, publish(tmp_path, 1))
    replaced = weights.published(tmp_path)[0]
    identity = weights.identity(replaced)
    assert identity is not None
    anew = publish(tmp_path, 1)
    assert held.hold(replaced, identity) is None, "what was found is there no more"
    new = hold(held, anew)
    assert old != new
    assert not (new / "config.json").samefile(old / "config.json")
    held.close()


_HOLDER = """
import runpy, sys, time
from pathlib import Path
from guerdon import weights
module = runpy.run_path(sys.argv[2])  # alone: the package around it imports torch
latest = weights.latest(Path(sys.argv[1]))
print(module["HeldVersions"](Path(sys.argv[1])).hold(latest, weights.identity(latest)), flush=True)
time.sleep(600)
"""


def test_what_a_killed_service_left_is_removed_by_the_next_and_a_living_ones_is_not(tmp_path: Path) -> None:
    latest = publish(tmp_path, 1)
    services = [
        subprocess.Popen(
            [sys.executable, "-c", _HOLDER, str(tmp_path), str(module.__file__)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    killed = services[0]
    try:
        paths = [Path(service.stdout.readline().strip()) for service in services if service.stdout]
        assert [(path / "config.json").read_text() for path in paths] == ["1", "1"]
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        (tmp_path / ".serving-killed-before-its-lock").mkdir()
        held = HeldVersions(tmp_path)
        path = hold(held, latest)
        assert own_folders(tmp_path) == sorted([paths[1].parent.name, path.parent.name])
        held.close()
        assert own_folders(tmp_path) == [paths[1].parent.name]
    finally:
        for service in services:
            service.kill()
            service.communicate()


@pytest.mark.parametrize("call", ["os.link", "Path.mkdir", "fcntl.flock"])
def test_where_versions_cannot_be_held_they_are_used_where_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    published = [publish(tmp_path, version) for version in (1, 2)]
    held = HeldVersions(tmp_path)
    monkeypatch.setattr(f"guerdon_services.rollout.engines.held.{call}", refused)
    assert [hold(held, one) for one in published] == [one.path for one in published]
    monkeypatch.undo()
    held.release(published[0].path)
    assert published[0].path.exists()
    held.close()
    assert own_folders(tmp_path) == []


def test_in_a_folder_that_was_replaced_versions_are_held_again(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    held = HeldVersions(folder)
    hold(held, publish(folder, 1))
    shutil.rmtree(folder)
    path = hold(held, publish(folder, 1))
    for version in (2, 3):
        publish(folder, version)
    assert (path / "config.json").read_text() == "1"
    held.close()
    assert own_folders(folder) == []
