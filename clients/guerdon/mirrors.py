"""Threads that keep a weights folder and a URL alike: a learner's `Mirror`, and the `Follower` of everybody else.

Neither holds up its process. A store that is away makes them late, which they say, and never wrong.
"""

import logging
import shutil
import threading
import uuid
from collections.abc import Collection
from pathlib import Path

from guerdon import weights
from guerdon.stores import Store, Superseded, link_or_copy

log = logging.getLogger("guerdon.mirrors")

#: Seconds between two attempts: the first pause, twice as long each time, and the longest.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 30.0
#: Names of folders with the files that are on their way up.
_OUTGOING = ".outgoing-"


class Mirror:
    """Uploads the latest version of a weights folder to a URL whenever it changed, until it succeeded.

    Versions that are superseded while another is on its way are skipped. `leave_out` names files that only the
    learner needs. Should another mirror begin at the same URL, in another process too, this one ends.
    """

    def __init__(self, folder: Path, url: str, *, keep_last: int, leave_out: Collection[str] = ()) -> None:
        self._folder = folder
        self._store = Store(url, writer=uuid.uuid4().hex)
        self._keep_last = keep_last
        self._leave_out = leave_out
        self._changed = threading.Event()
        self._stopping = threading.Event()
        self._sent: tuple[int, ...] | None = None
        self._error = ""
        self._superseded = False
        for leftover in folder.glob(f"{_OUTGOING}*"):
            shutil.rmtree(leftover)
        self._thread = threading.Thread(target=self._run, name="weights mirror", daemon=True)
        self._thread.start()
        self.notify()

    def notify(self) -> None:
        """The folder has another latest version."""
        self._changed.set()

    @property
    def version(self) -> int | None:
        """The version that was uploaded last; None before the first."""
        return None if self._sent is None else self._sent[0]

    @property
    def failure(self) -> str:
        """Why the last attempt failed; empty where it did not."""
        return self._error

    @property
    def superseded(self) -> bool:
        """Whether another one publishes at the URL, and this one nothing any more."""
        return self._superseded

    @property
    def is_current(self) -> bool:
        """Whether the URL has the folder's latest version."""
        try:
            return weights.identity(weights.latest(self._folder)) in (None, self._sent)
        except (ValueError, OSError):
            return False

    @property
    def state(self) -> str:
        """For people: where the mirror is, and which version it has."""
        sent = self._sent
        words = f"{self._store.shown} has {'nothing yet' if sent is None else f'version {sent[0]}'}"
        try:
            latest = weights.latest(self._folder)
        except (ValueError, OSError) as error:
            return f"{words}: {error}"
        if latest is None or weights.identity(latest) == sent:
            return words
        why = f": {self._error}" if self._error else ""
        return f"{words}, behind version {latest.version}{why}"

    def close(self, grace_s: float = 10.0) -> None:
        """Upload what is not uploaded, for `grace_s` seconds at most."""
        self._stopping.set()
        self._changed.set()
        self._thread.join(grace_s)
        if self._thread.is_alive():
            log.warning("the mirror ends unfinished: %s", self.state)

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            self._changed.wait()
            self._changed.clear()
            last = self._stopping.is_set()
            if self._send():
                pause_s = _FIRST_PAUSE_S
            else:
                self._stopping.wait(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                self._changed.set()
            done = self._stopping.is_set() and (not self._changed.is_set() or (last and self._error))
            if done or self._superseded:
                return

    def _send(self) -> bool:
        """Whether the URL has the latest version now."""
        outgoing = self._folder / f"{_OUTGOING}{uuid.uuid4().hex}"
        try:
            latest = weights.latest(self._folder)
            identity = weights.identity(latest)
            if latest is None or identity == self._sent:
                return True
            # By another name, for the learner removes old versions however long an upload takes.
            _link_files(latest.path, outgoing)
            self._store.push(outgoing, latest.version, keep_last=self._keep_last, leave_out=self._leave_out)
        except Superseded as error:
            log.error("%s", error)
            self._error, self._superseded = str(error), True
            return False
        except Exception as error:  # every file system has errors of its own
            if str(error) != self._error:
                log.warning("the mirror %s is behind and will be tried again: %r", self._store.shown, error)
            self._error = f"{type(error).__name__}: {error}"
            return False
        finally:
            shutil.rmtree(outgoing, ignore_errors=True)
        if self._error:
            log.info("the mirror %s has version %d again", self._store.shown, latest.version)
        self._sent, self._error = identity, ""
        return True


class Follower:
    """Downloads what a URL says is the latest version into a weights folder, when it begins and from then on."""

    def __init__(self, url: str, folder: Path, *, every_s: float = 0.5, keep_last: int = 2) -> None:
        self._store = Store(url)
        self._folder = folder
        self._every_s = every_s
        self._keep_last = keep_last
        self._stopping = threading.Event()
        self._error = ""
        try:
            self._store.pull(folder, keep_last=keep_last)
        except Exception as error:
            if weights.latest(folder) is None:
                raise
            self._failed(error)
        self._thread = threading.Thread(target=self._run, name="weights follower", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Download no more; what is half there waits for the next start."""
        self._stopping.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        pause_s = self._every_s
        while not self._stopping.wait(pause_s):
            try:
                self._store.pull(self._folder, keep_last=self._keep_last)
            except Exception as error:  # every file system has errors of its own
                self._failed(error)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            if self._error:
                log.info("%s is followed again", self._store.shown)
            self._error, pause_s = "", self._every_s

    def _failed(self, error: Exception) -> None:
        words = f"{type(error).__name__}: {error}"
        if words != self._error:
            log.warning("%s cannot be followed for now: %s", self._store.shown, words)
        self._error = words


def _link_files(source: Path, target: Path) -> None:
    for file in source.rglob("*"):
        if file.is_file():
            copy = target / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(file, copy)
