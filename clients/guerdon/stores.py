"""A weights folder at a URL: published versions for services on other machines to follow.

    URL/
      v000000013-3f2a9c…/     one publication; the suffix is a digest of its manifest
        config.json, model.safetensors, tokenizer files
        MANIFEST.json         {"version": 13, "files": {"config.json": {"size": 6, "sha256": "…"}, …}}; written last
      LATEST                  the name of the publication to follow, or @ and the name of the writer who says which
      LATEST-9b1d…            the publication to follow, as that writer says; written when it is complete

Stores of objects have no rename, so a publication is never changed under its name: other contents have another
name, and `LATEST` leads only to complete ones. A reader checks every file against its sha256, so what a store or a
killed writer cut short is never taken for a version.

Of several writers the one that began last is followed. It names itself in `LATEST` once, after its first publication;
from then on each changes its own `LATEST-…` alone, so that an earlier attempt which is still alive, however slow, has
no way to put its weights before readers.

Any URL of fsspec will do: `s3://bucket/prm`, `gs://…`, `file:///shared/prm`, `memory://prm`. Its library has to be
installed (s3fs, gcsfs); credentials and endpoints come from that library's environment variables.
"""

import fcntl
import hashlib
import json
import logging
import os
import posixpath
import re
import shutil
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from guerdon import weights
from guerdon._urls import without_credentials

log = logging.getLogger("guerdon.stores")

_LATEST, _MANIFEST = "LATEST", "MANIFEST.json"
_OVERTAKEN = "another attempt publishes there since; this one stops"
_WRITER = re.compile(r"@([0-9a-f]{32})")
#: In a version that was downloaded: the name of its publication.
_ORIGIN = ".publication"
_NAME = re.compile(r"v(\d{9,18})-([0-9a-f]{32})")
#: Bytes read at a time.
_CHUNK = 8 * 2**20


class StoreError(Exception):
    """What lies at a URL is not what was published there, or cannot be reached."""


class Superseded(StoreError):
    """Another writer began to publish at the URL after this one."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    size: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Manifest(BaseModel):
    """What one publication consists of; file names are relative, with slashes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Annotated[int, Field(ge=0, lt=10**18)]
    files: dict[str, _File]

    @classmethod
    def of(cls, path: Path, version: int, *, leave_out: Collection[str] = ()) -> Self:
        """The manifest of a folder, without the files named in `leave_out`."""
        files = {
            file.relative_to(path).as_posix(): _File(size=file.stat().st_size, sha256=_sha256(file))
            for file in sorted(path.rglob("*"))
            if file.is_file() and file.relative_to(path).as_posix() not in {*leave_out, _ORIGIN, _MANIFEST}
        }
        return cls(version=version, files=files)

    @property
    def text(self) -> str:
        """JSON, always the same for the same files."""
        return json.dumps(self.model_dump(), sort_keys=True)

    @property
    def name(self) -> str:
        """The publication's folder."""
        return f"v{self.version:09d}-{hashlib.sha256(self.text.encode()).hexdigest()[:32]}"


@dataclass(frozen=True)
class Publication:
    """One complete publication at a URL."""

    name: str
    manifest: Manifest


class Store:
    """The publications at one URL; for one thread at a time.

    A `writer` (32 hexadecimal digits, never used before) takes the URL over with its first push, and keeps it until
    another one does. Without one, whoever pushed last is followed.
    """

    def __init__(self, url: str, *, writer: str = "") -> None:
        try:
            fsspec: Any = import_module("fsspec")
        except ImportError as error:
            raise StoreError(f"{url}: pip install 'guerdon[remote]' to use weights at a URL") from error
        self.shown = without_credentials(url)
        try:
            # What was listed a moment ago says nothing about a writer elsewhere.
            self._fs, self._root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise StoreError(f"{self.shown}: {error}") from error
        except Exception as error:  # some connect when they are made, each with errors of its own
            raise StoreError(f"{self.shown}: {type(error).__name__}: {error}") from error
        self._local = "file" in self._fs.protocol
        self._uploaded: set[str] = set()
        self._writer = writer
        self._began = False
        self._before: str | None = None
        self._known: set[str] = set()

    def latest(self) -> str | None:
        """The name of the publication to follow; None where nothing was published yet.

        Raises:
            OSError: the store cannot be reached.
        """
        return self._name_by(self._read(_LATEST))

    def _name_by(self, latest: str) -> str | None:
        """What `LATEST` leads to, given what it says."""
        writer = _WRITER.fullmatch(latest)
        name = self._read(f"{_LATEST}-{writer[1]}") if writer else latest
        # Half a name, where a store does not write in one go and its writer was killed: nothing new so far.
        return name if _NAME.fullmatch(name) else None

    def _read(self, name: str) -> str:
        """A short text; empty where there is none."""
        try:
            return self._fs.cat_file(self._at(name)).decode(errors="replace").strip()
        except FileNotFoundError:
            return ""

    def push(
        self, path: Path, version: int, *, keep_last: int = 2, leave_out: Collection[str] = ()
    ) -> Publication:
        """Upload a version, make it the one to follow, and remove all but the `keep_last` newest.

        May be repeated after any failure: what has arrived is not sent again by this object. Versions newer than
        this one are removed too; they belong to a past that was left.

        Raises:
            OSError: the store cannot be reached, or a file of `path` vanished.
            StoreError: a file did not arrive whole, or was removed by another writer.
            Superseded: another writer has taken the URL over.
        """
        self._go_on()
        manifest = Manifest.of(path, version, leave_out=leave_out)
        name = manifest.name
        if not self._is_whole(name, manifest):
            for file, wanted in manifest.files.items():
                self._upload(path / file, self._at(name, file), wanted.size)
            self._write(self._at(name, _MANIFEST), manifest.text)
        self._lead_to(name)
        self._uploaded.clear()
        if not self._is_whole(name, manifest):  # by one who began in between, and took it for a dead one's
            raise StoreError(f"{self.shown}: {name} was removed while it was uploaded")
        self._prune(name, version, keep_last)
        return Publication(name, manifest)

    def _is_whole(self, name: str, manifest: Manifest) -> bool:
        """Whether it is there; one that was killed while he removed it may have left the manifest."""
        try:
            sizes = [self._fs.info(self._at(name, file))["size"] for file in (_MANIFEST, *manifest.files)]
        except FileNotFoundError:
            return False
        return sizes[1:] == [wanted.size for wanted in manifest.files.values()]

    def _go_on(self) -> None:
        """Whoever has begun goes on only while nobody began after him."""
        if not self._began:
            return
        says = self._read(_LATEST)
        if says not in ("", f"@{self._writer}"):
            raise Superseded(f"{self.shown}: {_OVERTAKEN}")
        self._began = says != ""  # somebody emptied the store: from the beginning

    def _lead_to(self, name: str) -> None:
        if not self._writer:
            if self._read(_LATEST) != name:
                self._write(self._at(_LATEST), f"{name}\n")
            return
        self._write(self._at(f"{_LATEST}-{self._writer}"), f"{name}\n")
        self._go_on()
        if not self._began:
            self._begin()

    def _begin(self) -> None:
        """Take over. Where it is tried again, somebody who took over in between came later."""
        says, own = self._read(_LATEST), f"@{self._writer}"
        if says != own:
            if self._before not in (None, says) and _WRITER.fullmatch(says):
                raise Superseded(f"{self.shown}: {_OVERTAKEN}")
            self._before = says
            self._write(self._at(_LATEST), f"{own}\n")
        self._began, self._before = True, None

    def _upload(self, source: Path, target: str, size: int) -> None:
        if target in self._uploaded:
            return
        if self._local:  # elsewhere folders need no making, and making one may make a bucket
            self._fs.makedirs(posixpath.dirname(target), exist_ok=True)
        self._fs.put_file(str(source), target)
        arrived = self._fs.info(target)["size"]
        if arrived != size:
            raise StoreError(f"{self.shown}: {arrived} of {size} bytes of {target} arrived")
        self._uploaded.add(target)

    def _write(self, target: str, text: str) -> None:
        if not self._local:  # an object appears whole or not at all
            self._fs.pipe_file(target, text.encode())
            return
        path = Path(target)
        # What the text leads to must outlive a power cut before the text does.
        (weights.sync_files if path.name == _MANIFEST else weights.sync_folder)(path.parent)
        temporary = path.with_name(f".tmp-{path.name}")
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        weights.sync_folder(path.parent)

    def _prune(self, current: str, version: int, keep_last: int) -> None:
        """Remove what is neither current nor among the `keep_last`; readers never depend on it.

        A writer removes what he found when he began, what earlier ones said of it too, and what he published.
        """
        try:
            names = {posixpath.basename(entry.rstrip("/")) for entry in self._fs.ls(self._root, detail=False)}
            if self._writer:
                self._known = (self._known or names) | {current}
                names &= self._known
            found = {name: int(match[1]) for name in names if (match := _NAME.fullmatch(name))}
            older = [name for name in sorted(found, key=found.__getitem__)[::-1] if found[name] < version]
            complete = [name for name in older if self._fs.exists(self._at(name, _MANIFEST))]
            said = {name for name in names if name.startswith(f"{_LATEST}-")} - {f"{_LATEST}-{self._writer}"}
            for name in (set(found) - {current, *complete[: keep_last - 1]}) | said:
                self._go_on()  # what is listed may be of one who has begun since
                self._fs.rm(self._at(name), recursive=True)
        except OSError as error:
            log.warning("an old version could not be removed from %s: %s", self.shown, error)

    def manifest(self, name: str) -> Manifest:
        """What a publication consists of.

        Raises:
            StoreError: the manifest is not the one that its name was made from.
            OSError: it is not there (removed meanwhile), or the store cannot be reached.
        """
        try:
            manifest = Manifest.model_validate_json(self._fs.cat_file(self._at(name, _MANIFEST)))
        except ValidationError as error:
            raise StoreError(f"{self.shown}: {name}/{_MANIFEST} cannot be read: {error}") from error
        if manifest.name != name:
            raise StoreError(f"{self.shown}: {name}/{_MANIFEST} was changed after it was published")
        return manifest

    def pull(self, folder: Path, *, keep_last: int = 2) -> weights.Published | None:
        """Bring the weights folder `folder` to what the URL says; None when it is there, or nothing is published.

        Files arrive beside the versions and are checked; only then does the version appear. A download that was
        interrupted, by a kill too, goes on where it stopped. Of several processes that share a folder one
        downloads, and for the others this returns None.

        Raises:
            StoreError: a file is not what was published.
            OSError: the store cannot be reached, or a publication was removed meanwhile.
        """
        says = self._read(_LATEST)
        name = self._name_by(says)
        if name is None:
            self._still(says)  # else what it led to may have been removed
        if name is None or name == _origin_of_latest(folder):
            return None
        with _alone(folder) as alone:
            if not alone or name == _origin_of_latest(folder):
                return None
            return self._fetch(name, says, folder, keep_last)

    def _fetch(self, name: str, says: str, folder: Path, keep_last: int) -> weights.Published:
        manifest = self.manifest(name)
        here = weights.Published(manifest.version, weights.version_path(folder, manifest.version))
        if name == _origin(here):  # back to a version that is still kept
            self._still(says)
            weights.set_latest(folder, manifest.version)
            return here
        staging = folder / f".part-{name}"
        for superseded in folder.glob(".part-*"):
            if superseded != staging:
                shutil.rmtree(superseded)
        for file, wanted in manifest.files.items():
            self._download(self._at(name, file), _inside(staging, file), wanted)
        self._still(says)

        def write(path: Path) -> None:
            for file in manifest.files:
                target = path / file
                target.parent.mkdir(parents=True, exist_ok=True)
                link_or_copy(staging / file, target)
            (path / _ORIGIN).write_text(name)

        published = weights.publish(folder, manifest.version, write, keep_last=keep_last)
        shutil.rmtree(staging)
        return published

    def _still(self, says: str) -> None:
        """Refuse what `LATEST` led to when it is another writer's now."""
        if _WRITER.fullmatch(says) and self._read(_LATEST) != says:
            raise StoreError(f"{self.shown}: another attempt began to publish there just now")

    def _download(self, source: str, target: Path, wanted: _File) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("ab") as out:
            begun = out.tell()
            if begun < wanted.size:
                with self._fs.open(source, "rb") as remote:
                    remote.seek(begun)
                    shutil.copyfileobj(remote, out, _CHUNK)
        if target.stat().st_size != wanted.size or _sha256(target) != wanted.sha256:
            target.unlink()  # from the beginning next time
            raise StoreError(f"{self.shown}: {source} is not what was published")

    def _at(self, *names: str) -> str:
        return posixpath.join(self._root, *names)


def is_url(location: object) -> bool:
    """Whether weights at `location` are reached through a `Store`; else it is a folder of this machine."""
    return isinstance(location, str) and "://" in location


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file that nobody changes another name; a copy where the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _origin_of_latest(folder: Path) -> str | None:
    """None where nothing was downloaded, or nobody can tell: then it is downloaded again."""
    with suppress(ValueError, OSError):
        latest = weights.latest(folder)
        return None if latest is None else _origin(latest)
    return None


def _origin(published: weights.Published) -> str | None:
    with suppress(OSError):
        return (published.path / _ORIGIN).read_text()
    return None


def _inside(folder: Path, name: str) -> Path:
    """`name` below `folder`: a manifest must not reach elsewhere."""
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts or not parts.parts or "\\" in name:
        raise StoreError(f"a manifest names the file {name!r}")
    return folder / parts


@contextmanager
def _alone(folder: Path) -> Generator[bool]:
    """Whether this is the only process that writes to a folder of downloaded versions."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
