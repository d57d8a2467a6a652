"""One event loop in a thread of this process, for code that is called from anywhere.

Trainers call reward functions from worker threads, from event loops of their own, from loops that live for one
call, and in forked processes. Connections belong to one loop; this is it.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

#: How long connections may take to close when the process ends, in seconds.
_CLOSE_S = 2.0


class Background:
    """An event loop in a daemon thread; `on_close` is awaited at its end."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._last: list[Callable[[], Awaitable[None]]] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="guerdon", daemon=True)
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine; the caller goes on."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def on_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Await `close()` before the loop ends."""
        self._last.append(close)

    def close(self) -> None:
        """Cancel what runs, close what was opened, and end the thread."""
        if self._loop.is_closed():
            return
        try:
            self.start(self._finish()).result(_CLOSE_S)
        except TimeoutError:
            return  # a daemon: it ends with the process
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_S)
        if not self._thread.is_alive():
            self._loop.close()

    async def _finish(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for close in reversed(self._last):
            await close()
        await self._loop.shutdown_asyncgens()


_lock = threading.Lock()
_current: Background | None = None


def background() -> Background:
    """This process's loop; started when first needed."""
    global _current
    with _lock:
        if _current is None:
            _current = Background()
        return _current


def run_here(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result; blocks, also inside a running event loop. An interrupt cancels it."""
    future = background().start(coroutine)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def run_there(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result, awaited on the caller's loop while it runs on this process's. Cancelling cancels it."""
    return await asyncio.wrap_future(background().start(coroutine))


@atexit.register
def stop() -> None:
    """End this process's loop; the next call starts another."""
    global _current
    with _lock:
        ended, _current = _current, None
    if ended is not None:
        ended.close()


def _forget() -> None:
    """In a forked child: the thread did not come along, nor are its connections ours to use."""
    global _current, _lock
    _lock, _current = threading.Lock(), None


os.register_at_fork(after_in_child=_forget)
