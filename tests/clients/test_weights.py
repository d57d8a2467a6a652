"""The versioned weights folder: readers see whole versions or nothing, in both directions."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from guerdon import weights
from tests.waiting import until


def text(content: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "model.safetensors").write_text(content)

    return write


def content(folder: Path) -> str:
    latest = weights.latest(folder)
    assert latest is not None
    return (latest.path / "model.safetensors").read_text()


def test_the_latest_version_is_the_one_published_last(tmp_path: Path) -> None:
    assert weights.latest(tmp_path / "none") is None
    for version in (0, 1, 2):
        published = weights.publish(tmp_path, version, text(f"weights {version}"))
        assert published == weights.latest(tmp_path)
        assert content(tmp_path) == f"weights {version}"
    assert [each.version for each in weights.published(tmp_path)] == [1, 2]


def test_going_back_and_publishing_anew(tmp_path: Path) -> None:
    for version in (4, 5):
        weights.publish(tmp_path, version, text(f"first {version}"))
    weights.set_latest(tmp_path, 4)
    assert content(tmp_path) == "first 4"
    weights.publish(tmp_path, 5, text("second 5"))
    assert content(tmp_path) == "second 5"
    # A version older than those that are kept is published all the same.
    weights.publish(tmp_path, 1, text("back to 1"))
    assert content(tmp_path) == "back to 1"


def test_other_names_in_the_folder_are_no_versions(tmp_path: Path) -> None:
    weights.publish(tmp_path, 1, text("one"))
    for name in ("v\u00b2", "v\u0663", "v1", "vnext", "v000000002x"):
        (tmp_path / name).mkdir()
    (tmp_path / "v000000009").write_text("a file")
    assert [one.version for one in weights.published(tmp_path)] == [1]
    (tmp_path / "LATEST").write_text("soon")
    with pytest.raises(ValueError, match="'soon', which is no version"):
        weights.latest(tmp_path)


def test_who_may_read_the_folder_may_read_its_files(tmp_path: Path) -> None:
    """safetensors writes files that only their owner can read, and followers may run as somebody else."""

    def write(folder: Path) -> None:
        (folder / "deeper").mkdir()
        for name in ("model.safetensors", "deeper/more.safetensors"):
            (folder / name).write_text("weights")
            (folder / name).chmod(0o600)

    path = weights.publish(tmp_path, 1, write).path
    readers = path.stat().st_mode & 0o444
    for name in ("model.safetensors", "deeper/more.safetensors"):
        assert (path / name).stat().st_mode & 0o444 == readers


def test_what_cannot_be_written_leaves_the_old_version(tmp_path: Path) -> None:
    weights.publish(tmp_path, 1, text("one"))

    def fail(folder: Path) -> None:
        (folder / "model.safetensors").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        weights.publish(tmp_path, 2, fail)
    assert content(tmp_path) == "one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["LATEST", "v000000001"]


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep_last"):
        weights.publish(tmp_path, 1, text("x"), keep_last=0)
    with pytest.raises(FileNotFoundError, match="no version 7"):
        weights.set_latest(tmp_path, 7)
    (tmp_path / "LATEST").write_text("7\n")
    assert weights.latest(tmp_path) is None


WRITER = """
import sys, time
from pathlib import Path
from guerdon import weights

def write(folder):
    (folder / "model.safetensors").write_text("half")
    print("writing", flush=True)
    time.sleep(60)

weights.publish(Path(sys.argv[1]), 2, write)
"""


def test_a_writer_that_was_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    weights.publish(tmp_path, 1, text("one"))
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        os.kill(writer.pid, signal.SIGKILL)
    assert content(tmp_path) == "one"
    assert any(path.name.startswith(".tmp-") for path in tmp_path.iterdir())
    weights.publish(tmp_path, 2, text("two"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["LATEST", "v000000001", "v000000002"]


READER = """
import sys
from pathlib import Path
from guerdon import weights

print("reading", flush=True)
while True:
    latest = weights.latest(Path(sys.argv[1]))
    if latest is None:
        continue
    try:
        texts = {(latest.path / name).read_text() for name in ("a", "b")}
    except FileNotFoundError:
        continue  # pruned meanwhile: the reader looks again
    assert len(texts) == 1, texts
    if texts == {"100"}:
        break
"""


def test_a_reader_never_sees_two_versions_mixed(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        for name in ("a", "b"):
            (folder / name).write_text(str(version))

    command = [sys.executable, "-c", READER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reading\n"  # from the first version on
        for version in range(101):
            weights.publish(tmp_path, version, write)
        try:
            until(lambda: reader.poll() is not None)
        finally:
            reader.kill()
    assert reader.returncode == 0
