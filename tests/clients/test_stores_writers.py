"""Two attempts of one run at one URL: whoever began last is followed, whatever the earlier one still does."""

import contextlib
import uuid
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
import s3_server
from fsspec.implementations.memory import MemoryFileSystem
from test_stores import content, until, write

from guerdon import mirrors, weights
from guerdon.mirrors import Mirror
from guerdon.stores import Store, StoreError, Superseded


class WatchedFileSystem(MemoryFileSystem):
    """Objects in memory; before its call number `at`, `happens` is done."""

    protocol = "watched"
    store: dict[str, Any] = {}
    pseudo_dirs = [""]
    at: int | None = None
    calls = 0
    happens: ClassVar[list[Callable[[], object]]] = []

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("watched://", "memory://"))

    @classmethod
    def count(cls) -> None:
        cls.calls += 1
        if cls.at == cls.calls:
            cls.at = None
            for one in cls.happens:
                one()

    def pipe_file(self, path: str, value: bytes, *args: Any, **kwargs: Any) -> None:
        self.count()
        super().pipe_file(path, value)

    def put_file(self, lpath: str, rpath: str, *args: Any, **kwargs: Any) -> None:
        self.count()
        super().pipe_file(rpath, Path(lpath).read_bytes())

    def cat_file(self, path: str, *args: Any, **kwargs: Any) -> bytes:
        self.count()
        return super().cat_file(path, *args, **kwargs)

    def exists(self, path: str, **kwargs: Any) -> bool:
        self.count()
        return super().exists(path, **kwargs)

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        self.count()
        return super().ls(path, detail=detail, **kwargs)

    def rm(self, path: str, *args: Any, **kwargs: Any) -> None:
        self.count()
        super().rm(path, *args, **kwargs)

    def open(self, path: str, mode: str = "rb", *args: Any, **kwargs: Any) -> Any:
        self.count()
        return super().open(path, mode, *args, **kwargs)


@pytest.fixture
def watched() -> Generator[Callable[[], str]]:
    """Makes the URL of another empty store that does as `WatchedFileSystem.at` says."""
    fsspec.register_implementation("watched", WatchedFileSystem, clobber=True)

    def empty() -> str:
        WatchedFileSystem.store.clear()
        return f"watched://{uuid.uuid4().hex}"

    yield empty
    WatchedFileSystem.at = None


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty place."""
    return f"file://{tmp_path}/store" if request.param == "file" else f"memory://{uuid.uuid4().hex}/policy"


class Attempt:
    """A writer with a weights folder of its own."""

    def __init__(self, url: str, folder: Path) -> None:
        self.store = Store(url, writer=uuid.uuid4().hex)
        self.folder = folder

    def publish(self, version: int, words: str) -> None:
        write(self.folder, version, words)
        self.push(version)

    def push(self, version: int) -> None:
        path = weights.version_path(self.folder, version)
        self.store.push(path, version, leave_out=["optimizer.pt"])


def attempts(
    watched: Callable[[], str], tmp_path: Path
) -> Generator[tuple[int, str, Path, Attempt, Attempt]]:
    """Two attempts at a URL of their own, for each number of a call; what reads may use the folder too."""
    for call in range(1, 1000):
        url, folder = watched(), tmp_path / str(call)
        yield call, url, folder, Attempt(url, folder / "old"), Attempt(url, folder / "new")


def overtake(new: Attempt, call: int) -> None:
    """From now on `new` publishes its version 2 before the call of that number."""
    WatchedFileSystem.happens = [lambda: new.publish(2, "new 2")]
    WatchedFileSystem.at, WatchedFileSystem.calls = call, 0


def test_of_two_attempts_the_later_one_is_followed(url: str, tmp_path: Path) -> None:
    there = tmp_path / "there"
    old, new = Attempt(url, tmp_path / "old"), Attempt(url, tmp_path / "new")
    for version in (1, 2, 3):
        old.publish(version, f"old {version}")
    Store(url).pull(there)
    assert content(there) == (3, "old 3")
    # It goes back to a checkpoint, and gives the same numbers to other weights.
    new.publish(2, "new 2")
    for _ in range(2):
        with pytest.raises(Superseded, match="another attempt publishes there since"):
            old.publish(4, "old 4")
        Store(url).pull(there)
        assert content(there) == (2, "new 2")
    new.publish(3, "new 3")
    Store(url).pull(there)
    assert content(there) == (3, "new 3")
    fs, root = fsspec.core.url_to_fs(url)
    names = sorted(entry.rsplit("/", 1)[-1][:10] for entry in fs.ls(root, detail=False))
    assert names == ["LATEST", f"LATEST-{new.store._writer}"[:10], "v000000002", "v000000003"]


def test_an_attempt_that_is_overtaken_at_any_call_reaches_no_reader(
    watched: Callable[[], str], tmp_path: Path
) -> None:
    """The earlier one is held up anywhere in a push, the later one publishes meanwhile, and the earlier one goes on."""
    reached = 0
    for call, url, folder, old, new in attempts(watched, tmp_path):
        for version in (2, 3):
            old.publish(version, f"old {version}")
        Store(url).pull(folder / "there")
        overtake(new, call)
        with contextlib.suppress(Superseded):
            old.publish(4, "old 4")
        if WatchedFileSystem.at is not None:
            break
        reached += 1
        for reader in ("there", "fresh"):
            Store(url).pull(folder / reader)
            assert content(folder / reader) == (2, "new 2"), call
        with pytest.raises(Superseded):
            old.publish(5, "old 5")
        new.publish(3, "new 3")
        Store(url).pull(folder / "there")
        assert content(folder / "there") == (3, "new 3")
    assert reached > 10


def test_an_attempt_that_is_overtaken_as_it_begins_leaves_readers_with_whole_versions(
    watched: Callable[[], str], tmp_path: Path
) -> None:
    reached = 0
    for call, url, folder, old, new in attempts(watched, tmp_path):
        overtake(new, call)
        try:
            old.publish(4, "old 4")
        except Superseded:
            pass
        except StoreError:
            old.push(4)  # as a mirror does
        if WatchedFileSystem.at is not None:
            break
        reached += 1
        store = Store(url)
        name = store.latest()
        assert name is not None, call
        store.manifest(name)
        store.pull(folder / "there")
        assert content(folder / "there") in ((2, "new 2"), (4, "old 4")), call
    assert reached > 10


def test_a_reader_that_is_overtaken_takes_nothing_of_the_earlier_attempt(
    watched: Callable[[], str], tmp_path: Path
) -> None:
    refused = 0
    for call, url, folder, old, new in attempts(watched, tmp_path):
        old.publish(3, "old 3")
        overtake(new, call)
        try:
            Store(url).pull(folder / "there")
        except (StoreError, OSError):
            refused += 1
            assert content(folder / "there") is None
        else:  # that nothing is published would have a service begin with the initial weights
            assert content(folder / "there") is not None, call
        overtaken = WatchedFileSystem.at is None
        WatchedFileSystem.at = None
        Store(url).pull(folder / "there")
        if not overtaken:
            assert content(folder / "there") == (3, "old 3")
            break
        assert content(folder / "there") == (2, "new 2")
    assert refused > 3


def test_a_reader_that_is_overtaken_does_not_go_back_to_what_it_still_has(
    watched: Callable[[], str], tmp_path: Path
) -> None:
    reached = 0
    for call, url, folder, old, new in attempts(watched, tmp_path):
        for version in (3, 4):
            old.publish(version, f"old {version}")
            Store(url).pull(folder / "there")
        old.push(3)
        overtake(new, call)
        with contextlib.suppress(StoreError, OSError):
            Store(url).pull(folder / "there")
        if WatchedFileSystem.at is not None:
            break
        reached += 1
        assert content(folder / "there") in ((4, "old 4"), (2, "new 2")), call
    assert reached > 2


def test_taking_over_may_fail_and_be_tried_again(watched: Callable[[], str], tmp_path: Path) -> None:
    url = watched()
    old, new = Attempt(url, tmp_path / "old"), Attempt(url, tmp_path / "new")
    write_text = old.store._write

    def cut_off(target: str, text: str) -> None:
        write_text(target, text)
        if target.endswith("/LATEST"):
            raise OSError("no answer")

    old.store._write = cut_off
    with pytest.raises(OSError, match="no answer"):
        old.publish(1, "old 1")
    # It has taken over without knowing it; that it is tried again takes nothing from the one who came between.
    new.publish(1, "new 1")
    with pytest.raises(Superseded):
        old.publish(2, "old 2")
    Store(url).pull(tmp_path / "there")
    assert content(tmp_path / "there") == (1, "new 1")


def test_what_an_earlier_release_left_is_taken_over(url: str, tmp_path: Path) -> None:
    """It named no writers: `LATEST` led to a publication."""
    for version in (1, 2, 3):
        Store(url).push(write(tmp_path / "old", version, f"old {version}").path, version)
    new = Attempt(url, tmp_path / "new")
    new.publish(2, "new 2")
    Store(url).pull(tmp_path / "there")
    assert content(tmp_path / "there") == (2, "new 2")
    # Should it be alive and publish, the newer release ends, and says so.
    Store(url).push(write(tmp_path / "old", 4, "old 4").path, 4, leave_out=["optimizer.pt"])
    with pytest.raises(Superseded):
        new.publish(3, "new 3")


def test_a_store_that_was_emptied_is_filled_anew(watched: Callable[[], str], tmp_path: Path) -> None:
    url = watched()
    attempt = Attempt(url, tmp_path / "here")
    attempt.publish(1, "w1")
    WatchedFileSystem.store.clear()
    attempt.publish(2, "w2")
    Store(url).pull(tmp_path / "there")
    assert content(tmp_path / "there") == (2, "w2")


def test_a_mirror_ends_when_another_begins(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mirrors, "_FIRST_PAUSE_S", 0.01)
    old, new, there = tmp_path / "old", tmp_path / "new", tmp_path / "there"
    write(old, 1, "old 1")
    first = Mirror(old, url, keep_last=2, leave_out=["optimizer.pt"])
    until(lambda: first.is_current)
    write(new, 1, "new 1")
    second = Mirror(new, url, keep_last=2, leave_out=["optimizer.pt"])
    until(lambda: second.is_current)
    write(old, 2, "old 2")
    assert not first.superseded
    first.notify()
    until(lambda: first.superseded)
    assert "another attempt publishes there since; this one stops" in first.state
    assert caplog.text.count("this one stops") == 1
    first._thread.join(60)
    assert not first._thread.is_alive()
    write(new, 2, "new 2")
    second.notify()
    until(lambda: second.is_current)
    for mirror in (first, second):
        mirror.close()
    Store(url).pull(there)
    assert content(there) == (2, "new 2")


def test_the_same_over_s3(tmp_path: Path) -> None:
    with s3_server.bucket() as url:
        test_of_two_attempts_the_later_one_is_followed(f"{url}/runs/policy", tmp_path)
