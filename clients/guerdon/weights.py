"""The versioned weights folder: how a learner hands its weights to the services that follow it.

    FOLDER/
      v000000012/     a Hugging Face model folder (config.json, model.safetensors, tokenizer files)
      v000000013/
      LATEST          the version to serve, as text; replaced atomically after its folder is complete

A version folder is written under a temporary name, made durable and renamed, so a reader sees all of it or
nothing, also after a kill or a power cut. Readers follow `LATEST` in both directions: it goes back when a learner
restarts from a checkpoint. A folder has one writer at a time, which removes what an earlier one left when it was
killed. No tensor is touched here; `guerdon.mirrors` carries such a folder to a URL and back.
"""

import os
import re
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_LATEST = "LATEST"
_NUMBER = re.compile(r"[0-9]{1,19}")
_FOLDER = re.compile(r"v([0-9]{9,19})")


@dataclass(frozen=True)
class Published:
    """One complete version in a weights folder."""

    version: int
    path: Path


def version_path(folder: Path, version: int) -> Path:
    """Where `version` lies, whether or not it exists."""
    return folder / f"v{version:09d}"


def publish(folder: Path, version: int, write: Callable[[Path], None], *, keep_last: int = 2) -> Published:
    """Write a version with `write(path)`, make it the latest, and remove all but the `keep_last` newest.

    A version that is already there is replaced: a learner that resumed from a checkpoint publishes it anew.

    Raises:
        ValueError: `keep_last` is less than 1.
    """
    if keep_last < 1:
        raise ValueError(f"keep_last must be at least 1, not {keep_last}")
    folder.mkdir(parents=True, exist_ok=True)
    for abandoned in folder.glob(".tmp-*"):
        shutil.rmtree(abandoned)
    temporary = folder / f".tmp-{uuid.uuid4().hex}"
    temporary.mkdir()
    try:
        write(temporary)
        _open_to_readers(temporary)
        sync_files(temporary)
        final = version_path(folder, version)
        if final.exists():
            _set_aside(final)
        os.rename(temporary, final)
        # Durable before anything names it: a file system may keep the later of two renames and lose the first.
        sync_folder(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    set_latest(folder, version)
    for replaced in folder.glob(".old-*"):
        _remove(replaced)
    for old in published(folder)[:-keep_last]:
        if old.version != version:
            _remove(old.path)
    return Published(version, final)


def set_latest(folder: Path, version: int) -> None:
    """Make an existing version the one to serve.

    Raises:
        FileNotFoundError: the folder holds no such version.
    """
    if not version_path(folder, version).is_dir():
        raise FileNotFoundError(f"no version {version} in {folder}")
    temporary = folder / f".tmp-{uuid.uuid4().hex}"
    temporary.mkdir()
    try:
        with (temporary / _LATEST).open("w") as file:
            file.write(f"{version}\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary / _LATEST, folder / _LATEST)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync_folder(folder)


def latest(folder: Path) -> Published | None:
    """The version to serve, or None when nothing was published yet.

    Raises:
        ValueError: `LATEST` holds something else than a version; nothing here writes such a file.
    """
    try:
        text = (folder / _LATEST).read_text(errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{folder / _LATEST} holds {text[:40]!r}, which is no version")
    version = int(text)
    path = version_path(folder, version)
    # While a version is published anew, or when its writer was killed at that: the one that stood there.
    for candidate in (path, _aside(path), path):
        if candidate.is_dir():
            return Published(version, candidate)
    return None


def identity(published: Published | None) -> tuple[int, ...] | None:
    """What changes when a version is published, also when the same number is published anew; None without one."""
    if published is None:
        return None
    try:
        stat = published.path.stat()
    except FileNotFoundError:  # replaced since it was found: the next look will see the new one
        return None
    return published.version, stat.st_ino, stat.st_mtime_ns


def published(folder: Path) -> list[Published]:
    """Every complete version, oldest first."""
    if not folder.is_dir():
        return []
    versions = [
        Published(int(match[1]), path)
        for path in folder.iterdir()
        if (match := _FOLDER.fullmatch(path.name)) and path.is_dir()
    ]
    return sorted(versions, key=lambda published: published.version)


def sync_files(folder: Path) -> None:
    """Make a folder durable with all that it holds."""
    for path in folder.rglob("*"):
        if path.is_dir():
            sync_folder(path)
        elif path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open_to_readers(folder: Path) -> None:
    """Whoever may read the folder may read its files: safetensors writes them for their owner alone."""
    for path in folder.rglob("*"):
        allowed = path.parent.stat().st_mode & 0o444
        if path.is_file() and allowed & ~path.stat().st_mode:
            path.chmod(path.stat().st_mode | allowed)


def _aside(path: Path) -> Path:
    return path.with_name(f".old-{path.name}")


def _set_aside(path: Path) -> None:
    aside = _aside(path)
    if aside.exists():
        _remove(aside)
    os.rename(path, aside)


def _remove(path: Path) -> None:
    # Renamed first: a reader either finds the whole version or none of it.
    doomed = path.with_name(f".tmp-{uuid.uuid4().hex}")
    os.rename(path, doomed)
    shutil.rmtree(doomed)
