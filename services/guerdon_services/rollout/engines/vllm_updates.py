"""The life of a vLLM engine: which version it serves, how it takes up another, how it is started again.

At most one update or start runs at a time. While it does, no group begins; what becomes of those that run is the
setting `on_update`. A trainer may also hold the engine itself (`vllm_hold`); then nothing is taken up meanwhile. An
update that fails leaves the old version serving, and the state says so: the old weights are read again, and if that
does not work either, or something hangs, the engine is ended and started with them. Where the engine died under it,
the update is tried again.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import structlog

from guerdon_services.rollout.engines.vllm_weights import Followed, Found, Source, Unfit
from guerdon_services.rollout.settings import RolloutSettings
from guerdon_services.runtime.scorer import NotReady

if TYPE_CHECKING:
    from guerdon_services.rollout.engines.vllm_core import Core

_log = structlog.get_logger(__name__)

#: What pausing does to requests that run: vLLM's words.
Pause = Literal["wait", "abort", "keep"]

#: Seconds until an engine that could not be started is tried again: first, and at most.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
#: A version under which the engine died so often while it was read is given up: it may be what kills it.
_DEATHS = 3


class EngineDied(Exception):
    """The engine's processes ended under a request."""


class Updates:
    """Owns the engine's `core`; everything but `state` and `steps` is used on the event loop only.

    `start` starts an engine with the weights of a folder.
    """

    def __init__(
        self, settings: RolloutSettings, followed: Followed, start: "Callable[[Path], Core]"
    ) -> None:
        self._settings = settings
        self._followed = followed
        self._start = start
        self._core: Core | None = None
        self._lock = asyncio.Lock()
        self._open = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._running = 0
        #: What engines that are gone have counted.
        self._began = self._preempted = 0
        self._pause_s, self._try_at = _FIRST_PAUSE_S, 0.0
        self._broken = "the engine is being started"
        self._refusal = followed.refusal
        #: What the workers have read; None where nobody knows, or a trainer sent it.
        self._loaded: Source | None = None
        #: How often the engine died while it took a version up.
        self._deaths = Counter[tuple[int, ...]]()

    @property
    def core(self) -> "Core":
        """The engine that serves, or served last."""
        assert self._core is not None
        return self._core

    @property
    def steps(self) -> int:
        """Grows with every step of any engine, and with every start."""
        return self._began + (0 if self._core is None else self._core.gauge.steps)

    @property
    def preemptions(self) -> int:
        """How often any engine took a response out of its KV cache to make room."""
        return self._preempted + (0 if self._core is None else self._core.gauge.preemptions)

    @property
    def state(self) -> str:
        """For people: what serves, and what went wrong last."""
        serves = self._broken or f"version {self._followed.version} serves"
        return f"{serves}; {self._refusal}" if self._refusal else serves

    async def start(self) -> None:
        """Start the engine with the latest version.

        Raises:
            Exception: it does not start.
        """
        async with self._lock:
            await self._begin()

    def stop(self) -> None:
        """End the engine."""
        self._broken = "the engine was ended"
        if self._core is not None:
            self._core.stop()

    async def serving(self) -> "Core":
        """The engine, once it takes work.

        Raises:
            NotReady: it could not be started.
        """
        await self._open.wait()
        if self._broken:
            raise NotReady(self._broken)
        return self.core

    @contextmanager
    def running(self) -> Generator[None]:
        """Count a group as under way."""
        self._running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    def died(self) -> None:
        """Somebody noticed that the engine is dead: nothing begins until `revive` has started another."""
        if self.core.dead and not self._broken:
            self._open.clear()

    async def revive(self) -> None:
        """Start the engine again if it is dead; one that could not be started is tried again now and then."""
        if not (self.core.dead or self._broken) or time.monotonic() < self._try_at:
            return
        async with self._lock:
            if self.core.dead or self._broken:
                _log.error("the engine died", version=self._followed.version)
                await self._restart()

    async def take_up(self) -> None:
        """Serve the latest published version, if it is another one and whole.

        Raises:
            ValueError, OSError: the folder cannot be read.
        """
        if self._followed.newer() is None:
            return
        async with self._lock:
            found = self._followed.newer()
            if found is None or self._broken or self.core.dead:
                return
            found = await asyncio.to_thread(self._followed.hold, found)
            if found is None:
                return
            try:
                await asyncio.to_thread(self._followed.check, found)
            except Unfit as error:
                # A file that is not there never comes, whereas a file system may recover.
                away = isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
                self._refuse(found, error, for_good=not away)
                return
            if self._followed.was_sent(found):
                self._followed.taken_up(found)
                self._refusal = ""
                return
            await self._update(found)

    async def seize(self, how: Pause) -> None:
        """Stop sampling and take nothing up until `release`; what runs ends, is aborted or waits, as `how` says.

        Raises:
            TimeoutError: what is under way did not end within `update_limit_s`; everything goes on then.
            NotReady: there is no engine at the moment.
        """
        async with asyncio.timeout(self._settings.update_limit_s):
            await self._lock.acquire()
        try:
            if self._broken or self.core.dead:
                raise NotReady(self._broken or "the engine died")
            await self._stop_sampling(how)
        except BaseException:
            self._lock.release()
            raise

    async def release(self, fault: str = "") -> None:
        """After `seize` sample again: in another engine where `fault` says why this one cannot, or it does not."""
        try:
            fault = fault or await self._not_going_on()
            if fault:
                self.complain(f"{fault}, the engine was started with those before them")
                await self._restart()
            self._open.set()
        finally:
            self._lock.release()

    async def replace(self, core: "Core", fault: str) -> None:
        """Start another engine in the place of `core`, unless that has been done."""
        async with self._lock:
            if core is self.core:
                self.complain(fault)
                await self._restart()

    def complain(self, fault: str) -> None:
        """Say in `state` what went wrong last."""
        self._refusal = fault

    def touched(self) -> None:
        """Others than `take_up` change the engine's weights: from now on nobody knows what it has read."""
        self._loaded = None

    async def _stop_sampling(self, how: Pause) -> None:
        self._open.clear()
        try:
            async with asyncio.timeout(self._settings.update_limit_s):
                if how == "wait":
                    await self._idle.wait()
                await self.core.pause(how)
        except BaseException as error:
            if isinstance(error, Exception):
                await self._not_going_on()  # it may have stopped all the same
            self._open.set()
            raise

    async def _not_going_on(self) -> str:
        """Let the engine sample again; why it does not."""
        try:
            async with asyncio.timeout(self._settings.update_limit_s):
                await self.core.resume()
        except Exception as error:
            return f"the engine did not go on after a pause ({type(error).__name__}: {error})"
        return "the engine died" if self.core.dead else ""

    async def _update(self, found: Found) -> None:
        began = time.monotonic()
        source = self._followed.source_of(found.path)
        self._open.clear()
        try:
            how = await self._quiet(source)
            async with asyncio.timeout(self._settings.update_limit_s):
                await self.core.pause(how)
                await self._read(source, found.version, keep=how == "keep")
                self._followed.was_read(found)
                await self.core.resume()
        except Exception as error:
            self._refuse(found, error, for_good=not self._may_be_chance(found))
            await self._go_back(error)
            return
        finally:
            self._open.set()
        self._followed.taken_up(found)
        self._refusal = ""
        _log.info("weights taken up", version=found.version, seconds=round(time.monotonic() - began, 2))

    def _may_be_chance(self, found: Found) -> bool:
        """Whether the engine died while it took a version up, and not so often that the version must be why."""
        self._deaths[found.identity] += self.core.dead
        return self.core.dead and self._deaths[found.identity] < _DEATHS

    async def _read(self, source: Source, version: int, *, keep: bool) -> None:
        """Have the workers read what they have not got; call while paused."""
        loaded, self._loaded = self._loaded, None
        whole = loaded is None or loaded.model != source.model
        if whole:
            await self.core.reload(source.model, version, keep=keep)
        if source.adapter is not None or not whole:
            await self.core.adapt(source.adapter, version, keep=keep)
        self._loaded = source

    async def _quiet(self, source: Source) -> Pause:
        """See to the groups under way as the policy says; how to pause then."""
        adapted = self._loaded is not None and self._loaded.adapter is not None
        if self._settings.on_update == "keep":
            # vLLM binds a request to having an adapter or to having none.
            return "keep" if adapted == (source.adapter is not None) else "abort"
        if self._settings.on_update == "finish":
            try:
                await asyncio.wait_for(self._idle.wait(), self._settings.update_limit_s)
            except TimeoutError:
                _log.warning("groups did not finish in time, they are sampled anew", groups=self._running)
        return "abort"

    def _refuse(self, found: Found, error: Exception, *, for_good: bool = True) -> None:
        self._followed.refuse(found, for_good=for_good)
        refusal = f"version {found.version} was refused: {type(error).__name__}: {error}"
        if refusal != self._refusal:  # one that is looked at again and again is said once
            serving = self._followed.version
            _log.warning("weights refused", version=found.version, serving=serving, error=str(error))
        self._refusal = refusal

    async def _go_back(self, error: Exception) -> None:
        """After an update that failed half-way: the old weights again, in a new engine if need be."""
        if not (self.core.dead or isinstance(error, TimeoutError)):
            try:
                self._followed.fall_back()
                async with asyncio.timeout(self._settings.update_limit_s):
                    await self._read(self._followed.source, self._followed.version, keep=True)
                    await self.core.resume()
                return
            except Exception as second:
                _log.warning(
                    "the old weights cannot be read again", error=f"{type(second).__name__}: {second}"
                )
        await self._restart()

    async def _restart(self) -> None:
        """A new engine with the version that served; `serving` says so where none can be started."""
        self._open.clear()
        self._broken = "the engine is being started again"
        self.core.stop()
        try:
            self._followed.fall_back()
            self._followed.settle()
            await self._begin()
        except Exception as error:
            self._broken = f"the engine cannot be started: {type(error).__name__}: {error}"
            _log.error("the engine cannot be started", error=str(error), again_in_s=self._pause_s)
            self._try_at = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            self._open.set()

    async def _begin(self) -> None:
        source, version = self._followed.source, self._followed.version
        self._began += 1
        core = self._start(source.model)
        if self._core is not None:
            self._began += self._core.gauge.steps
            self._preempted += self._core.gauge.preemptions
        self._core = core
        self._loaded = Source(source.model)
        try:
            async with asyncio.timeout(self._settings.update_limit_s):
                await self._core.ready(version)
                if source.adapter is not None:
                    await self._read(source, version, keep=True)
        except BaseException:
            self._core.stop()
            raise
        self._broken, self._pause_s = "", _FIRST_PAUSE_S
        self._open.set()
