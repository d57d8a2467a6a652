"""Weights at a URL: what a store does wrong makes readers late, never wrong."""

import threading
import uuid
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import s3_server
from fsspec.implementations.memory import MemoryFileSystem

from guerdon import mirrors, stores, weights
from guerdon.mirrors import Follower, Mirror
from guerdon.stores import Manifest, Store, StoreError
from tests.waiting import PATIENCE_S, until


class Lost(OSError):
    """The store is away."""


class FaultyFileSystem(MemoryFileSystem):
    """Objects in memory; its call number `fails_at` fails, and a write then leaves half an object."""

    protocol = "faulty"
    store: dict[str, Any] = {}
    pseudo_dirs = [""]
    fails_at: int | None = None
    calls = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("faulty://", "memory://"))

    @classmethod
    def fault(cls) -> bool:
        cls.calls += 1
        return cls.fails_at is not None and cls.calls > cls.fails_at

    def pipe_file(self, path: str, value: bytes, *args: Any, **kwargs: Any) -> None:
        if self.fault():
            super().pipe_file(path, value[: len(value) // 2])
            raise Lost(path)
        super().pipe_file(path, value)

    def put_file(self, lpath: str, rpath: str, *args: Any, **kwargs: Any) -> None:
        data = Path(lpath).read_bytes()
        if self.fault():
            super().pipe_file(rpath, data[: len(data) // 2])
            raise Lost(rpath)
        super().pipe_file(rpath, data)

    def cat_file(self, path: str, *args: Any, **kwargs: Any) -> bytes:
        if self.fault():
            raise Lost(path)
        return super().cat_file(path, *args, **kwargs)

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        if self.fault():
            raise Lost(path)
        return super().info(path, **kwargs)

    def open(self, path: str, mode: str = "rb", *args: Any, **kwargs: Any) -> Any:
        if self.fault():
            raise Lost(path)
        return super().open(path, mode, *args, **kwargs)


@pytest.fixture
def faulty() -> Generator[str]:
    """The URL of a store that does as `FaultyFileSystem.fails_at` says."""
    fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)
    FaultyFileSystem.store.clear()
    FaultyFileSystem.fails_at, FaultyFileSystem.calls = None, 0
    yield f"faulty://{uuid.uuid4().hex}"
    FaultyFileSystem.fails_at = None


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty place."""
    return f"file://{tmp_path}/store" if request.param == "file" else f"memory://{uuid.uuid4().hex}/prm"


def write(folder: Path, version: int, words: str, *, keep_last: int = 10) -> weights.Published:
    def files(path: Path) -> None:
        (path / "model.safetensors").write_text(words * 1000)
        (path / "deep").mkdir()
        (path / "deep" / "tokenizer.json").write_text(words)
        (path / "optimizer.pt").write_text("not for others")

    return weights.publish(folder, version, files, keep_last=keep_last)


def content(folder: Path) -> tuple[int, str] | None:
    latest = weights.latest(folder)
    if latest is None:
        return None
    try:
        words = (latest.path / "deep" / "tokenizer.json").read_text()
        assert (latest.path / "model.safetensors").read_text() == words * 1000
    except FileNotFoundError:
        assert weights.latest(folder) != latest
        return content(folder)  # a thread that follows made newer ones meanwhile
    assert not (latest.path / "optimizer.pt").exists()
    return latest.version, words


def push(url: str, published: weights.Published, **given: Any) -> stores.Publication:
    return Store(url).push(published.path, published.version, leave_out=["optimizer.pt"], **given)


def test_what_is_pushed_is_pulled(url: str, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    assert Store(url).pull(there) is None
    for version in (1, 2, 3):
        push(url, write(here, version, f"w{version}"))
        pulled = Store(url).pull(there)
        assert pulled == weights.latest(there)
        assert content(there) == (version, f"w{version}")
        assert Store(url).pull(there) is None
    assert [one.version for one in weights.published(there)] == [2, 3]
    assert not list(there.glob(".part-*"))


def test_readers_follow_back_and_to_versions_made_anew(url: str, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for version in (1, 2):
        push(url, write(here, version, f"w{version}"))
        Store(url).pull(there)
    push(url, weights.Published(1, weights.version_path(here, 1)))
    assert Store(url).pull(there) is not None
    assert content(there) == (1, "w1")
    push(url, write(here, 2, "another"))
    Store(url).pull(there)
    assert content(there) == (2, "another")


@pytest.mark.parametrize("text", ["rubbish", ""])
def test_a_damaged_latest_is_written_anew(url: str, tmp_path: Path, text: str) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    push(url, write(here, 1, "w1"))
    Store(url).pull(there)
    (there / "LATEST").write_text(text)
    assert Store(url).pull(there) is not None
    assert content(there) == (1, "w1")


def test_a_mirror_says_that_its_folder_is_damaged(url: str, tmp_path: Path) -> None:
    here = tmp_path / "here"
    write(here, 1, "w1")
    mirror = Mirror(here, url, keep_last=2)
    until(lambda: mirror.state.endswith("has version 1"))
    (here / "LATEST").write_text("rubbish")
    assert "has version 1: " in mirror.state
    assert "'rubbish'" in mirror.state
    mirror.close()


def test_what_was_removed_in_part_is_uploaded_anew(url: str, tmp_path: Path) -> None:
    """Whoever removed a version was killed; the next attempt goes on from a checkpoint of that one."""
    fs, root = fsspec.core.url_to_fs(url)
    for version, gone in enumerate(("model.safetensors", "deep/tokenizer.json", "MANIFEST.json")):
        made = write(tmp_path / "here", version, f"w{version}")
        publication = push(url, made)
        fs.rm(f"{root}/{publication.name}/{gone}")
        push(url, made)
        Store(url).pull(tmp_path / "there")
        assert content(tmp_path / "there") == (version, f"w{version}")


def test_only_the_newest_are_kept(url: str, tmp_path: Path) -> None:
    for version in (1, 2, 3, 4):
        push(url, write(tmp_path / "here", version, f"w{version}"), keep_last=2)
    fs, root = fsspec.core.url_to_fs(url)
    names = sorted(entry.rsplit("/", 1)[-1][:10] for entry in fs.ls(root, detail=False))
    assert names == ["LATEST", "v000000003", "v000000004"]


def test_a_failure_at_any_call_leaves_readers_with_whole_versions(faulty: str, tmp_path: Path) -> None:
    here = tmp_path / "here"
    push(faulty, write(here, 1, "old"))
    new = write(here, 2, "new")
    call = 0
    for call in range(1000):
        there = tmp_path / str(call)
        push(faulty, weights.Published(1, weights.version_path(here, 1)), keep_last=1)
        FaultyFileSystem.fails_at, FaultyFileSystem.calls = call, 0
        failed = False
        try:
            push(faulty, new)
        except OSError:
            failed = True
        FaultyFileSystem.fails_at = None
        Store(faulty).pull(there)
        # Half a LATEST leads nowhere: whoever has a version keeps it, and a new reader has none yet.
        assert content(there) in ((1, "old"), (2, "new"), None)
        push(faulty, new)
        Store(faulty).pull(there)
        assert content(there) == (2, "new")
        if not failed:
            break
    assert call > 5


def test_a_download_goes_on_where_it_stopped(faulty: str, tmp_path: Path) -> None:
    push(faulty, write(tmp_path / "here", 1, "new"))
    there = tmp_path / "there"
    name = Store(faulty).latest()
    half = there / f".part-{name}" / "model.safetensors"
    half.parent.mkdir(parents=True)
    half.write_text("new" * 400)
    stale = there / ".part-v000000000-of-another-time"
    stale.mkdir()
    call = 0
    for call in range(100):
        FaultyFileSystem.fails_at, FaultyFileSystem.calls = call, 0
        try:
            Store(faulty).pull(there)
        except OSError:
            assert content(there) is None
            continue
        break
    assert call > 3
    assert content(there) == (1, "new")
    assert not list(there.glob(".part-*"))


def damaged_file(root: Path) -> None:
    (root / "model.safetensors").write_text("wen" * 1000)


def torn_file(root: Path) -> None:
    (root / "model.safetensors").write_text("new" * 500)


def longer_file(root: Path) -> None:
    (root / "model.safetensors").write_text("new" * 1001)


def torn_manifest(root: Path) -> None:
    path = root / "MANIFEST.json"
    path.write_text(path.read_text()[:-20])


def changed_manifest(root: Path) -> None:
    path = root / "MANIFEST.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 7'))


@pytest.mark.parametrize("damage", [damaged_file, torn_file, longer_file, torn_manifest, changed_manifest])
def test_what_is_not_as_published_is_never_taken_up(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    url, there = f"file://{tmp_path}/store", tmp_path / "there"
    publication = push(url, write(tmp_path / "here", 1, "new"))
    damage(tmp_path / "store" / publication.name)
    for _ in range(2):
        with pytest.raises(StoreError):
            Store(url).pull(there)
        assert content(there) is None


def test_a_manifest_does_not_reach_beyond_its_folder(tmp_path: Path) -> None:
    root = tmp_path / "store"
    manifest = Manifest.model_validate(
        {"version": 1, "files": {"../../evil": {"size": 0, "sha256": "0" * 64}}}
    )
    (root / manifest.name).mkdir(parents=True)
    (root / manifest.name / "MANIFEST.json").write_text(manifest.text)
    (root / "LATEST").write_text(manifest.name)
    with pytest.raises(StoreError, match="evil"):
        Store(f"file://{root}").pull(tmp_path / "there")
    assert not (tmp_path / "evil").exists()


def test_one_process_downloads_for_all_that_share_a_folder(tmp_path: Path) -> None:
    url, there = f"file://{tmp_path}/store", tmp_path / "there"
    push(url, write(tmp_path / "here", 1, "new"))
    with stores._alone(there) as alone:
        assert alone
        assert Store(url).pull(there) is None
    assert Store(url).pull(there) is not None


def test_urls_that_cannot_be_used_are_named() -> None:
    with pytest.raises(StoreError, match="nosuch"):
        Store("nosuch://bucket/prm")
    assert Store("memory://user:secret@host/prm?key=secret").shown == "memory://host/prm"
    assert [stores.is_url(one) for one in ("s3://a", "/a", Path("/a"), None)] == [True, False, False, False]


def test_a_mirror_follows_the_folder_and_a_follower_the_url(url: str, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    write(here, 1, "w1")
    mirror = Mirror(here, url, keep_last=2, leave_out=["optimizer.pt"])
    until(lambda: mirror.state.endswith("has version 1"))
    follower = Follower(url, there, every_s=0.01)
    assert content(there) == (1, "w1")
    for version in range(2, 12):
        write(here, version, f"w{version}", keep_last=1)
        mirror.notify()
    mirror.close()
    until(lambda: content(there) == (11, "w11"))
    follower.close()
    assert not list(here.glob(".outgoing-*"))


def test_a_mirror_that_ends_as_its_version_is_removed_uploads_the_newer_one(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, begun, mirror = mirrors._link_files, threading.Event(), None

    def removed_meanwhile(source: Path, target: Path) -> None:
        if not begun.is_set():
            begun.set()
            until(lambda: mirror is not None and mirror._stopping.is_set())
        link(source, target)
        if not source.is_dir():
            raise FileNotFoundError(source)

    monkeypatch.setattr(mirrors, "_link_files", removed_meanwhile)
    write(tmp_path / "here", 1, "w1")
    mirror = Mirror(tmp_path / "here", url, keep_last=2, leave_out=["optimizer.pt"])
    assert begun.wait(PATIENCE_S)
    write(tmp_path / "here", 2, "w2", keep_last=1)
    mirror.close(PATIENCE_S)
    Store(url).pull(tmp_path / "there")
    assert content(tmp_path / "there") == (2, "w2")


def test_a_store_that_is_away_makes_the_mirror_late_and_loses_nothing(
    faulty: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mirrors, "_FIRST_PAUSE_S", 0.01)
    here, there = tmp_path / "here", tmp_path / "there"
    write(here, 1, "w1")
    FaultyFileSystem.fails_at = 0
    mirror = Mirror(here, faulty, keep_last=2, leave_out=["optimizer.pt"])
    until(lambda: "behind version 1: Lost" in mirror.state)
    # Old versions leave the folder however late the mirror is.
    for version in (2, 3, 4):
        write(here, version, f"w{version}", keep_last=1)
        mirror.notify()
    assert "has nothing yet" in mirror.state
    FaultyFileSystem.fails_at = None
    until(lambda: mirror.state.endswith("has version 4"))
    mirror.close()
    Store(faulty).pull(there)
    assert content(there) == (4, "w4")
    assert "behind" in caplog.text


def test_a_follower_outlives_its_store(faulty: str, tmp_path: Path) -> None:
    there = tmp_path / "there"
    FaultyFileSystem.fails_at = 0
    with pytest.raises(Lost):
        Follower(faulty, there)  # nothing is known: better no service than one with other weights
    FaultyFileSystem.fails_at = None
    push(faulty, write(tmp_path / "here", 1, "w1"))
    Follower(faulty, there).close()
    FaultyFileSystem.fails_at = 0
    follower = Follower(faulty, there, every_s=0.01)  # what was downloaded before serves meanwhile
    assert content(there) == (1, "w1")
    FaultyFileSystem.fails_at = None
    push(faulty, write(tmp_path / "here", 2, "w2"))
    until(lambda: content(there) == (2, "w2"))
    follower.close()


def test_an_s3_server(tmp_path: Path) -> None:
    """The same over HTTP against a server that speaks S3."""
    with s3_server.bucket() as url:
        test_what_is_pushed_is_pulled(f"{url}/runs/prm", tmp_path / "a")
        test_readers_follow_back_and_to_versions_made_anew(f"{url}/runs/other", tmp_path / "b")
        test_only_the_newest_are_kept(f"{url}/runs/third", tmp_path / "c")
        test_a_mirror_follows_the_folder_and_a_follower_the_url(f"{url}/x", tmp_path / "d")
        test_what_was_removed_in_part_is_uploaded_anew(f"{url}/y", tmp_path / "e")


def test_a_file_system_that_connects_at_once_and_cannot_is_a_store_error() -> None:
    class Away(MemoryFileSystem):
        protocol = "guerdon-away"

        def __init__(self, *args: Any, **settings: Any) -> None:
            raise RuntimeError("no route")

    fsspec.register_implementation("guerdon-away", Away)
    with pytest.raises(StoreError, match=r"^guerdon-away://bucket: RuntimeError: no route"):
        Store("guerdon-away://user:secret@bucket")
