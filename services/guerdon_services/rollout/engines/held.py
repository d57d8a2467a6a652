"""The files of the versions that an engine serves, under names of its own: their publisher's pruning leaves them.

    FOLDER/                     the weights folder that is followed
      .serving-3f0c.../         one per service that follows it
        lock                    held as long as the service lives
        1/ 2/                   hard links to the files of the versions in use

Links cost no space until the publisher removes a version; then the engine's is the only copy. What a killed service
left is removed by the next one that can take its lock. Where the folder cannot be written to, or the file system has no
hard links or locks, versions are used where they lie, which is logged.
"""

import fcntl
import itertools
import os
import shutil
import uuid
from contextlib import suppress
from pathlib import Path

import structlog

from guerdon import weights

_log = structlog.get_logger(__name__)

_PREFIX, _LOCK = ".serving-", "lock"


class HeldVersions:
    """Holds versions of a weights folder; used by one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own: Path | None = None
        self._lock: int | None = None
        self._numbers = itertools.count(1)
        self._unable = ""

    def hold(self, version: weights.Published, identity: tuple[int, ...]) -> Path | None:
        """A folder with the version's files that stays until `release`; None when the version has been replaced.

        The version's own folder where it cannot be held.
        """
        if self._own is not None and not self._own.exists():
            self.close()  # somebody replaced the weights folder
        try:
            own = self._own or self._open()
            held = own / str(next(self._numbers))
            _link_files(version.path, held)
        except OSError as error:
            if weights.identity(version) != identity:
                return None
            self._say(error)
            return version.path
        if weights.identity(version) != identity:  # the files of two publications may be among the links
            self.release(held)
            return None
        return held

    def holds(self, path: Path) -> bool:
        """Whether a folder is one of those held."""
        return self._own is not None and path.parent == self._own

    def release(self, path: Path) -> None:
        """Give up a version; a folder that is not one of those held stays."""
        if self.holds(path):
            shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """Give up everything."""
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
        self._own = self._lock = None

    def _open(self) -> Path:
        """A folder of our own with a lock that tells the living from the dead."""
        _remove_leftovers(self._folder)
        while self._own is None:
            own = self._folder / f"{_PREFIX}{uuid.uuid4().hex}"
            own.mkdir()
            try:
                lock = _taken(own / _LOCK, os.O_RDWR | os.O_CREAT)
            except FileNotFoundError:
                continue  # somebody who removes leftovers came in between, as below
            except OSError:
                shutil.rmtree(own, ignore_errors=True)
                raise
            if lock is not None and (own / _LOCK).exists():
                self._own, self._lock = own, lock
            elif lock is not None:
                os.close(lock)
        return self._own

    def _say(self, error: OSError) -> None:
        """Once: every version would say the same."""
        if str(error.strerror) != self._unable:
            _log.warning(
                "versions cannot be held, they are used where they lie",
                folder=str(self._folder),
                error=str(error),
            )
        self._unable = str(error.strerror)


def _link_files(source: Path, target: Path) -> None:
    target.mkdir()
    try:
        for file in source.rglob("*"):
            if file.is_file():
                link = target / file.relative_to(source)
                link.parent.mkdir(parents=True, exist_ok=True)
                os.link(file.resolve(), link)
    except OSError:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _remove_leftovers(folder: Path) -> None:
    for leftover in folder.glob(f"{_PREFIX}*"):
        try:
            lock = _taken(leftover / _LOCK, os.O_RDWR)
        except FileNotFoundError:  # killed before it had one
            with suppress(OSError):
                leftover.rmdir()
            continue
        except OSError:  # somebody else's
            continue
        if lock is not None:
            shutil.rmtree(leftover, ignore_errors=True)
            os.close(lock)


def _taken(file: Path, flags: int) -> int | None:
    """A descriptor that holds the lock `file`; None where a living process does.

    Raises:
        OSError: the file system has no locks, or the file cannot be opened.
    """
    descriptor = os.open(file, flags, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
