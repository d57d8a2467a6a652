"""A trainer's hold on a vLLM engine: it pauses it, sends weights through vLLM's own calls, and lets it go on.

What came in part or without a number never serves, and nobody who went away leaves the engine paused.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import structlog

from guerdon_services.rollout.engines.vllm_updates import Pause, Updates
from guerdon_services.rollout.engines.vllm_weights import Followed

if TYPE_CHECKING:
    from guerdon_services.rollout.engines.vllm_core import Core

_log = structlog.get_logger(__name__)


class Hold:
    """Everything here is used on the engine's event loop only.

    A pause ends by itself `limit_s` after the last `pause`; no call lasts longer than that either.
    """

    def __init__(self, updates: Updates, followed: Followed, limit_s: float) -> None:
        self._updates = updates
        self._followed = followed
        self._limit_s = limit_s
        #: Ends the pause; None while nobody holds the engine.
        self._timer: asyncio.TimerHandle | None = None
        #: Whether weights have come in part.
        self._half = False
        self._ending: asyncio.Task[None] | None = None

    @property
    def paused(self) -> bool:
        """Whether a trainer holds the engine."""
        return self._timer is not None

    async def pause(self, how: Pause) -> None:
        """Hold the engine until `resume`.

        Raises:
            TimeoutError: what is under way did not end in time; nothing is held then.
            NotReady: there is no engine at the moment.
        """
        if not self.paused:
            await self._updates.seize(how)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._limit_s, self._let_go)

    async def meet(self, call: Callable[["Core"], Awaitable[None]]) -> None:
        """Have the workers meet a trainer's sender; no weight moves, and nothing needs to be paused.

        Raises:
            TimeoutError: they waited for somebody who does not come, doing nothing else; another engine takes over.
            Exception: whatever the call raised.
        """
        core = self._updates.core
        try:
            async with asyncio.timeout(self._limit_s):
                await call(core)
        except TimeoutError:
            await self._updates.replace(core, "a trainer did not come to the meeting with the workers")
            raise

    async def transfer(self, call: Callable[["Core"], Awaitable[None]], *, half: bool) -> None:
        """One of vLLM's calls by which weights come; `half` says whether more must follow before they are whole.

        Raises:
            ValueError: nobody holds the engine, or the pause ended before the call did.
            Exception: whatever the call raised; what had come in part is given up by `resume`.
        """
        if not self.paused:
            raise ValueError("pause the engine first")
        core = self._updates.core
        # During the call too: whoever gives up may resume meanwhile.
        self._updates.touched()
        self._half = True
        async with asyncio.timeout(self._limit_s):
            await call(core)
        if not self.paused or core is not self._updates.core:
            raise ValueError("the pause ended meanwhile, and what was sent was given up")
        self._half = half

    async def transferred(self, version: int, finish: Callable[["Core"], Awaitable[None]]) -> None:
        """The last of the calls: after it nothing that the old weights computed stays, and `version` serves.

        Raises:
            ValueError, Exception: as `transfer`.
        """

        async def whole(core: "Core") -> None:
            await finish(core)
            await core.forget(version)

        await self.transfer(whole, half=False)
        self._followed.sent(version)

    async def resume(self) -> None:
        """The end of a pause. Weights that came in part are given up, with the engine that has them.

        Raises:
            ValueError: nobody holds the engine.
        """
        if self._timer is None:
            raise ValueError("the engine is not paused")
        self._timer.cancel()
        self._timer = None
        half, self._half = self._half, False
        await self._updates.release("a trainer's weights came in part" if half else "")

    def _let_go(self) -> None:
        self._ending = asyncio.create_task(self._forgotten())

    async def _forgotten(self) -> None:
        if not self.paused:
            return
        fault = f"a trainer paused the engine for more than {self._limit_s:g} s"
        self._updates.complain(fault)
        _log.warning("a pause was ended", reason=fault)
        # Its next attempt may give other weights the number of those that it sent, so they are read when published.
        self._followed.unsure()
        await self.resume()
