"""Trainers that hold a vLLM engine and go away, with a stand-in for vLLM: nothing half or doubtful ever serves."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from guerdon_services.rollout.engines.vllm import VllmEngine
from tests.services.rollout.fake_vllm import GROUP, World, publish, until, versions


def on_loop(engine: VllmEngine, work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(engine.call(work))


async def _nothing(core: Any) -> None:
    pass


class Call:
    """One of vLLM's calls, which lasts until it is told to end."""

    def __init__(self) -> None:
        self.began = False
        self.ends = threading.Event()

    async def __call__(self, core: Any) -> None:
        self.began = True
        await asyncio.to_thread(self.ends.wait, 120)


def test_whoever_resumes_under_a_call_gives_up_what_it_sends(
    engine_of: Any, world: World, tiny_llama: Path, pool: ThreadPoolExecutor
) -> None:
    engine = engine_of()
    updates = engine.updates
    for half in (True, False):
        on_loop(engine, updates.pause("abort"))
        call = Call()
        work = updates.transfer(call, half=True) if half else updates.transferred(7, call)
        sending = pool.submit(on_loop, engine, work)
        until(lambda call=call: call.began)
        on_loop(engine, updates.resume())
        assert versions(engine.generate(GROUP)) == {(0, None)}
        call.ends.set()
        with pytest.raises(ValueError, match="the pause ended meanwhile"):
            sending.result()
    # An engine of its own each time: nobody knows what the calls left in those before.
    assert world.started == [tiny_llama] * 3
    assert engine.version == 0
    on_loop(engine, updates.pause("abort"))
    on_loop(engine, updates.resume())
    assert len(world.started) == 3, "nothing half is left from before"


def test_workers_that_wait_for_a_trainer_who_does_not_come_are_replaced(
    engine_of: Any, world: World, tiny_llama: Path
) -> None:
    engine = engine_of(update_limit_s=0.2)

    async def waits(core: Any) -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        on_loop(engine, engine.updates.meet(waits))
    assert world.started == [tiny_llama] * 2
    assert "did not come to the meeting" in engine.state
    on_loop(engine, engine.updates.meet(_nothing))
    assert versions(engine.generate(GROUP)) == {(0, None)}


def test_another_attempt_that_pauses_has_the_whole_time(engine_of: Any) -> None:
    engine = engine_of(update_limit_s=30.0)
    on_loop(engine, engine.updates.pause("abort"))
    first = engine.updates._held
    on_loop(engine, engine.updates.pause("wait"))
    assert first.cancelled()
    assert engine.updates._held.when() > first.when()
    on_loop(engine, engine.updates.resume())


def test_a_version_that_was_sent_and_published_clears_what_went_wrong_before(
    engine_of: Any, tmp_path: Path, tiny_llama: Path
) -> None:
    engine = engine_of()
    on_loop(engine, engine.updates.pause("abort"))
    on_loop(engine, engine.updates.transfer(_nothing, half=True))
    on_loop(engine, engine.updates.resume())
    assert "came in part" in engine.state
    on_loop(engine, engine.updates.pause("abort"))
    on_loop(engine, engine.updates.transferred(1, _nothing))
    on_loop(engine, engine.updates.resume())
    publish(tmp_path, 1, tiny_llama)
    until(lambda: engine.state == "version 1 serves")


def test_what_a_trainer_sent_before_it_forgot_its_pause_is_read_once_published(
    engine_of: Any, world: World, tmp_path: Path, tiny_llama: Path
) -> None:
    engine = engine_of(update_limit_s=0.2)
    on_loop(engine, engine.updates.pause("abort"))
    on_loop(engine, engine.updates.transferred(7, _nothing))
    until(lambda: not engine.updates.paused)
    # By the next attempt: of the same number, and perhaps other weights.
    publish(tmp_path, 7, tiny_llama)
    until(lambda: ("reload", 7) in world.calls)


@pytest.mark.parametrize("step", ["resume", "pause"])
def test_an_engine_that_would_stay_paused_is_not_left_so(
    engine_of: Any, world: World, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    engine = engine_of()
    [core] = world.cores

    async def fails(*_: Any) -> None:
        raise RuntimeError("no answer")

    if step == "resume":
        on_loop(engine, engine.updates.pause("abort"))
        monkeypatch.setattr(core, "resume", fails)
        on_loop(engine, engine.updates.resume())
        assert "did not go on after a pause (RuntimeError: no answer)" in engine.state
        assert len(world.started) == 2
    else:
        monkeypatch.setattr(core, "pause", fails)
        with pytest.raises(RuntimeError):
            on_loop(engine, engine.updates.pause("abort"))
        assert world.calls[-1] == ("resume",)
        assert not engine.updates.paused
    assert versions(engine.generate(GROUP)) == {(0, None)}
