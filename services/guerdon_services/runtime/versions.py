"""Waits for versions of a service's weights, and has an idle service take up new ones."""

import asyncio
from contextlib import suppress

import structlog

from guerdon_services.runtime.lane import Lane
from guerdon_services.runtime.scorer import Versioned

log = structlog.get_logger(__name__)

#: Seconds between two looks: while somebody waits, and while nobody does.
_AWAITED_S, _IDLE_S = 0.02, 0.5


class VersionWatch:
    """Looks for new weights between batches; lives on the event loop."""

    def __init__(self, service: Versioned, lane: Lane) -> None:
        self._service = service
        self._lane = lane
        self._waiting: dict[asyncio.Future[bool], int] = {}
        self._awaited = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._error = ""

    def start(self) -> None:
        """Begin to look."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._look())

    def stop(self) -> None:
        """Look no more; whoever waits is told that the version did not come."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        for future in self._waiting:
            if not future.done():
                future.set_result(False)

    async def reached(self, version: int, timeout_s: float) -> bool:
        """Whether the service serves `version`, or a newer one, within so many seconds."""
        if self._served(version):
            return True
        if self._task is None:
            return False
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[future] = version
        self._awaited.set()
        try:
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            return self._served(version)
        finally:
            del self._waiting[future]

    def _served(self, version: int) -> bool:
        current = self._service.model_version
        return current is not None and current >= version

    async def _look(self) -> None:
        while True:
            try:
                await self._lane.call_when_free(self._service.refresh)
                self._error = ""
            except Exception as error:
                if str(error) != self._error:
                    log.warning("new weights cannot be taken up", error=f"{type(error).__name__}: {error}")
                self._error = str(error)
            for future, version in self._waiting.items():
                if not future.done() and self._served(version):
                    future.set_result(True)
            self._awaited.clear()
            with suppress(TimeoutError):
                if self._waiting:
                    await asyncio.sleep(_AWAITED_S)
                else:
                    await asyncio.wait_for(self._awaited.wait(), _IDLE_S)
