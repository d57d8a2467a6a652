"""A stand-in for vLLM, and what the tests of an engine's life with it share."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from guerdon import weights
from guerdon_services import models
from guerdon_services.rollout.engine import Row, Sampled
from guerdon_services.rollout.engines.vllm import VllmEngine
from guerdon_services.rollout.engines.vllm_updates import EngineDied

ROW = Row(prompt_ids=(60,), max_new_tokens=8, temperature=1.0, top_p=1.0, top_k=0, stop=(), seed=None)
#: What is left of a response that was aborted.
ABORTED = SimpleNamespace(
    finish_reason="abort", stop_reason=None, token_ids=[], logprobs=None, weight_versions=None
)
GROUP = [replace(ROW, seed=seed) for seed in range(4)]


@dataclass
class World:
    """What the stand-ins of one test share."""

    #: Folders that engines were started with.
    started: list[Path] = field(default_factory=list)
    #: Everything asked of engines besides samples.
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    #: Folders of whole models that were read by engines that ran.
    read: list[Path] = field(default_factory=list)
    #: Responses wait while it is clear.
    flow: threading.Event = field(default_factory=threading.Event)
    #: Reasons why the next reloads fail, and why the next starts do.
    reload_errors: list[Exception] = field(default_factory=list)
    start_errors: list[Exception] = field(default_factory=list)
    #: How many engines die while they read.
    deaths: int = 0
    hang: bool = False
    cores: list["FakeCore"] = field(default_factory=list)


class FakeCore:
    """Answers with its version; knows aborting, waiting and dying as vLLM does."""

    context_length = 128

    def __init__(self, world: World, path: Path) -> None:
        self.world = world
        if world.start_errors:
            raise world.start_errors.pop()
        world.started.append(path)
        world.cores.append(self)
        self.version = -1
        self.dead = False
        self.aborts = 0
        self.asked = 0
        self.gauge = SimpleNamespace(full=False, steps=0, preemptions=0)
        self.pids = [-1]

    async def ready(self, version: int) -> None:
        self.version = version

    async def sample(self, row: Row, n: int, end_tokens: frozenset[int]) -> list[Any]:
        self.asked += 1
        began, aborts = self.version, self.aborts
        while not self.world.flow.is_set():
            await asyncio.sleep(0.001)
            if self.dead:
                raise EngineDied("the engine died")
            if self.aborts > aborts:
                return [ABORTED] * n
        spans = [SimpleNamespace(version=str(began))]
        if self.version != began:
            spans.append(SimpleNamespace(version=str(self.version)))
        one = SimpleNamespace(
            finish_reason="length",
            stop_reason=None,
            token_ids=[70] * row.max_new_tokens,
            logprobs=SimpleNamespace(logprobs=[-1.0] * row.max_new_tokens),
            weight_versions=spans,
        )
        return [one] * n

    async def score(self, prompt_ids: Any, token_ids: Any) -> list[float]:
        return [-2.0] * len(token_ids)

    async def pause(self, how: str) -> None:
        self.world.calls.append(("pause", how))
        if how == "abort":
            self.aborts += 1
        if self.world.hang:
            await asyncio.Event().wait()

    async def reload(self, path: Path, version: int, *, keep: bool) -> None:
        self.world.calls.append(("reload", version))
        self.world.read.append(path)
        if self.world.deaths:
            self.world.deaths -= 1
            self.dead = True
            raise EngineDied("the engine died")
        if self.world.reload_errors:
            raise self.world.reload_errors.pop()
        self.version = version

    async def adapt(self, adapter: Path | None, version: int, *, keep: bool) -> None:
        self.world.calls.append(("adapt", None if adapter is None else version))
        if self.world.reload_errors:
            raise self.world.reload_errors.pop()
        self.version = version

    async def forget(self, version: int) -> None:
        self.version = version

    async def resume(self) -> None:
        self.world.calls.append(("resume",))

    def stop(self) -> None:
        self.dead = True


def publish(
    folder: Path, version: int, source: Path, spoil: Callable[[Path], None] = lambda path: None
) -> None:
    def write(path: Path) -> None:
        loaded = models.load(source)
        loaded.model.save_pretrained(path)
        loaded.tokenizer.save_pretrained(path)
        spoil(path)

    weights.publish(folder, version, write)


def until(happened: Callable[[], bool]) -> None:
    """Wait for something that must come, for at most two minutes."""
    for _ in range(12_000):
        if happened():
            return
        threading.Event().wait(0.01)
    pytest.fail("it did not happen within two minutes")


def under_way(world: World, engine: VllmEngine, pool: ThreadPoolExecutor) -> Any:
    """A group that the engine has begun and cannot finish."""
    world.flow.clear()
    before = world.cores[-1].asked
    future = pool.submit(engine.generate, GROUP)
    until(lambda: world.cores[-1].asked >= before + len(GROUP))
    return future


def versions(sampled: list[Sampled]) -> set[tuple[int, int | None]]:
    return {(one.version, one.last_version) for one in sampled}


def tear(path: Path) -> None:
    """What becomes of a version that was not written to its end."""
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
