"""A kill before any step on the file system leaves the old weights or the new ones: folders, mirrors, downloads."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

_PREFACE = """
import shutil, sys
from pathlib import Path
from crashing import crashes
from guerdon import weights
from guerdon.stores import Store
import guerdon.stores

root = Path(sys.argv[1])

def text(content):
    def write(path):
        (path / "a").write_text(content)
        (path / "deep").mkdir()
        (path / "deep" / "b").write_text(content)
    return write

def content(folder):
    latest = weights.latest(folder)
    if latest is None:
        return None
    texts = {(latest.path / name).read_text() for name in ("a", "deep/b")}
    assert len(texts) == 1, texts
    return latest.version, texts.pop()

def clean(folder):
    return sorted(path.name for path in folder.iterdir() if path.name[0] != ".") and not [
        path.name for path in folder.iterdir() if path.name.startswith((".tmp-", ".old-", ".part-"))
    ]

def every_step(prepare, work, check):
    seen = set()
    for step in range(10_000):
        folder = root / str(step)
        prepare(folder)
        killed = crashes(step, lambda: work(folder))
        seen.add(check(folder, killed))
        if not killed:
            break
    print(step, sorted(seen))
    assert step >= 4
    return seen
"""

_PUBLISH = """
def prepare(folder):
    for version in (1, 2, 3):
        weights.publish(folder, version, text(f"old {version}"))

def work(folder):
    weights.publish(folder, NEW, text("new"))

def check(folder, killed):
    found = content(folder)
    assert found in ((3, "old 3"), (NEW, "new")), found
    assert killed or found == (NEW, "new")
    weights.publish(folder, NEW, text("again"))
    assert content(folder) == (NEW, "again")
    assert clean(folder)
    return found

assert len(every_step(prepare, work, check)) == 2
"""

_BACK = """
def prepare(folder):
    for version in (1, 2):
        weights.publish(folder, version, text(f"old {version}"))

def check(folder, killed):
    found = content(folder)
    assert found in ((2, "old 2"), (1, "old 1")), found
    assert killed or found == (1, "old 1")
    return found

assert len(every_step(prepare, lambda folder: weights.set_latest(folder, 1), check)) == 2
"""

_PUSH = """
def store(folder):
    return Store(f"file://{folder}/store")

def prepare(folder):
    for version, words in ((1, "old"), (2, "new")):
        weights.publish(folder / f"local{version}", version, text(words))
    store(folder).push(folder / "local1" / "v000000001", 1)

def work(folder):
    store(folder).push(folder / "local2" / "v000000002", 2, keep_last=1)

def check(folder, killed):
    store(folder).pull(folder / "there")
    found = content(folder / "there")
    assert found in ((1, "old"), (2, "new")), found
    assert killed or found == (2, "new")
    work(folder)
    store(folder).pull(folder / "there")
    assert content(folder / "there") == (2, "new")
    assert sorted(path.name[:10] for path in (folder / "store").iterdir()) == ["LATEST", "v000000002"]
    return found

assert len(every_step(prepare, work, check)) == 2
"""

_PULL = """
def store(folder):
    return Store(f"file://{folder}/store")

def prepare(folder):
    for version, words in ((1, "old"), (VERSION, "new")):
        weights.publish(folder / words, version, text(words))
    store(folder).push(weights.latest(folder / "old").path, 1)
    store(folder).pull(folder / "there")
    store(folder).push(weights.latest(folder / "new").path, VERSION)

def work(folder):
    store(folder).pull(folder / "there")

def check(folder, killed):
    found = content(folder / "there")
    assert found in ((1, "old"), (VERSION, "new")), found
    assert killed or found == (VERSION, "new")
    work(folder)
    assert content(folder / "there") == (VERSION, "new")
    store(folder).push(weights.latest(folder / "old").path, 1)
    work(folder)
    assert content(folder / "there") == (1, "old")
    assert clean(folder / "there") or VERSION == 2  # back to a version that is kept: nothing is downloaded
    return found

assert len(every_step(prepare, work, check)) == 2
"""


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param("NEW = 4\n" + _PUBLISH, id="publish"),
        pytest.param("NEW = 3\n" + _PUBLISH, id="publish the latest anew"),
        pytest.param("NEW = 2\n" + _PUBLISH, id="publish an older one anew"),
        pytest.param(_BACK, id="go back"),
        pytest.param(_PUSH, id="upload"),
        pytest.param("VERSION = 2\n" + _PULL, id="download"),
        pytest.param("VERSION = 1\n" + _PULL, id="download a version made anew"),
    ],
)
def test_a_kill_before_any_step_leaves_old_or_new(tmp_path: Path, scenario: str) -> None:
    finished = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(HERE)!r})\n{_PREFACE}{scenario}",
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
