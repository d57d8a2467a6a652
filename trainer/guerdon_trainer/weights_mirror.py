"""Keeps a URL alike to the run's weights folder, for services that share no volume with the trainer.

`guerdon.mirrors` uploads in the background: a version is published when it is in the folder, whatever becomes of the
store. Only two moments wait: the beginning, for what an earlier attempt left at the URL may have the numbers that
this one will give, which whoever follows the URL would take for these; and the end, for the last version.
"""

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from guerdon.mirrors import Mirror
from guerdon.stores import StoreError

#: Seconds that an upload may take where training waits for it.
_UPLOAD_S = 3600.0
#: Seconds that a store which cannot be reached is tried again at those moments.
_AWAY_S = 60.0
_LOOK_EVERY_S = 0.05
#: Seconds after which people are told what is waited for.
_SILENT_S = 5.0
#: Versions kept at the URL, as in the folder.
_KEEP_LAST = 2


class PolicyMirror:
    """The policy's versions at a URL. Opening it waits until the version that is published is there.

    Leaving it after an error uploads what it can in a few seconds; else it waits for the newest version, or says
    which one is missing.

    Raises:
        StoreError: no store can be at this URL, nothing can be uploaded there, or a later attempt has taken it over.
    """

    def __init__(self, folder: Path, url: str, say: Callable[[str], None]) -> None:
        self._say = say
        #: How many versions the URL lacked when the newest one was published.
        self.behind = 0
        self._mirror = Mirror(folder, url, keep_last=_KEEP_LAST)
        try:
            if not self._wait():
                raise StoreError(f"weights.mirror_url: {self._mirror.state}")
        except BaseException:
            self._mirror.close(grace_s=0)
            raise

    def published(self, version: int) -> None:
        """The folder has another version.

        Raises:
            StoreError: a later attempt publishes at the URL. Services follow that one: here is nothing left to do.
        """
        if self._mirror.superseded:
            raise StoreError(f"weights.mirror_url: {self._mirror.state}")
        sent = self._mirror.version
        self.behind = version if sent is None else max(0, version - 1 - sent)
        self._mirror.notify()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self._wait():
            self._say(f"the run ends before its mirror is complete: {self._mirror.state}")
        self._mirror.close()

    def _wait(self) -> bool:
        """Wait until the URL has the newest version; not for ever where the store fails."""
        began, said = time.monotonic(), False
        fails_since: float | None = None
        while not self._mirror.is_current:
            now = time.monotonic()
            if now - began >= _SILENT_S and not said:
                self._say(f"waiting for the mirror: {self._mirror.state}")
                said = True
            fails_since = (fails_since or now) if self._mirror.failure else None
            if now - began > _UPLOAD_S or (fails_since is not None and now - fails_since >= _AWAY_S):
                return False
            if self._mirror.superseded:
                return False
            time.sleep(_LOOK_EVERY_S)
        return True
