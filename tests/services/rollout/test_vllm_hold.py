"""Trainers that hold a vLLM engine, send weights and go away, with a stand-in for vLLM: nothing half serves."""

import asyncio
import math
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from guerdon_services.rollout.engines.vllm import VllmEngine
from guerdon_services.runtime.scorer import NotReady
from tests.services.rollout.fake_vllm import GROUP, World, publish, under_way, until, versions


def on_loop(engine: VllmEngine, work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(engine.call(work))


async def _nothing(core: Any) -> None:
    core.world.calls.append(("sent",))


async def _broken(core: Any) -> None:
    raise RuntimeError("the trainer is gone")


class Call:
    """One of vLLM's calls, which lasts until it is told to end."""

    def __init__(self) -> None:
        self.began = False
        self.ends = threading.Event()

    async def __call__(self, core: Any) -> None:
        self.began = True
        await asyncio.to_thread(self.ends.wait, 120)


def test_a_trainer_sends_weights_itself(
    engine_of: Any, world: World, tmp_path: Path, tiny_llama: Path, pool: ThreadPoolExecutor
) -> None:
    engine = engine_of()
    hold = engine.hold
    with pytest.raises(ValueError, match="pause the engine first"):
        on_loop(engine, hold.transfer(_nothing, half=True))
    on_loop(engine, hold.pause("abort"))
    assert hold.paused
    waiting = pool.submit(engine.generate, GROUP)
    publish(tmp_path, 1, tiny_llama)
    on_loop(engine, hold.transfer(_nothing, half=True))
    on_loop(engine, hold.transferred(7, _nothing))
    assert not waiting.done()
    assert engine.version == 7, "the folder's version waits"
    on_loop(engine, hold.resume())
    waiting.result()
    until(lambda: engine.version == 1)
    with pytest.raises(ValueError, match="not paused"):
        on_loop(engine, hold.resume())


def test_what_a_trainer_sent_is_not_read_again_when_it_is_published(
    engine_of: Any, world: World, tmp_path: Path, tiny_llama: Path
) -> None:
    engine = engine_of()
    hold = engine.hold
    on_loop(engine, hold.pause("wait"))
    on_loop(engine, hold.transferred(1, _nothing))
    on_loop(engine, hold.resume())
    publish(tmp_path, 1, tiny_llama)
    until(lambda: engine._followed.newer() is None)
    assert ("reload", 1) not in world.calls
    # From here on it is a version like any other: a new engine has it, and the same number anew is read.
    world.cores[-1].dead = True
    until(lambda: len(world.cores) == 2)
    assert versions(engine.generate(GROUP)) == {(1, None)}
    publish(tmp_path, 1, tiny_llama)
    until(lambda: ("reload", 1) in world.calls)


def test_weights_that_came_in_part_are_given_up(engine_of: Any, world: World, tiny_llama: Path) -> None:
    engine = engine_of()
    hold = engine.hold
    on_loop(engine, hold.pause("keep"))
    on_loop(engine, hold.transfer(_nothing, half=True))
    with pytest.raises(RuntimeError, match="the trainer is gone"):
        on_loop(engine, hold.transferred(7, _broken))
    on_loop(engine, hold.resume())
    assert world.started == [tiny_llama, tiny_llama]
    assert engine.version == 0
    assert "came in part" in engine.state
    assert versions(engine.generate(GROUP)) == {(0, None)}


def test_after_a_death_weights_that_a_trainer_sent_are_not_claimed(engine_of: Any, world: World) -> None:
    engine = engine_of()
    on_loop(engine, engine.hold.pause("abort"))
    on_loop(engine, engine.hold.transferred(7, _nothing))
    on_loop(engine, engine.hold.resume())
    assert versions(engine.generate(GROUP)) == {(7, None)}
    world.cores[-1].dead = True
    until(lambda: len(world.cores) == 2)
    assert versions(engine.generate(GROUP)) == {(0, None)}


def test_a_forgotten_pause_ends_by_itself(engine_of: Any, world: World) -> None:
    engine = engine_of(update_limit_s=0.2)
    on_loop(engine, engine.hold.pause("abort"))
    assert versions(engine.generate(GROUP)) == {(0, None)}
    assert "paused the engine for more than 0.2 s" in engine.state


def test_whoever_resumes_under_a_call_gives_up_what_it_sends(
    engine_of: Any, world: World, tiny_llama: Path, pool: ThreadPoolExecutor
) -> None:
    engine = engine_of()
    hold = engine.hold
    for half in (True, False):
        on_loop(engine, hold.pause("abort"))
        call = Call()
        work = hold.transfer(call, half=True) if half else hold.transferred(7, call)
        sending = pool.submit(on_loop, engine, work)
        until(lambda call=call: call.began)
        on_loop(engine, hold.resume())
        assert versions(engine.generate(GROUP)) == {(0, None)}
        call.ends.set()
        with pytest.raises(ValueError, match="the pause ended meanwhile"):
            sending.result()
    # An engine of its own each time: nobody knows what the calls left in those before.
    assert world.started == [tiny_llama] * 3
    assert engine.version == 0
    on_loop(engine, hold.pause("abort"))
    on_loop(engine, hold.resume())
    assert len(world.started) == 3, "nothing half is left from before"


def test_workers_that_wait_for_a_trainer_who_does_not_come_are_replaced(
    engine_of: Any, world: World, tiny_llama: Path
) -> None:
    engine = engine_of(update_limit_s=0.2)

    async def waits(core: Any) -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        on_loop(engine, engine.hold.meet(waits))
    assert world.started == [tiny_llama] * 2
    assert "did not come to the meeting" in engine.state
    on_loop(engine, engine.hold.meet(_nothing))
    assert versions(engine.generate(GROUP)) == {(0, None)}


def test_another_attempt_that_pauses_has_the_whole_time(engine_of: Any) -> None:
    engine = engine_of(update_limit_s=30.0)
    on_loop(engine, engine.hold.pause("abort"))
    first = engine.hold._timer
    on_loop(engine, engine.hold.pause("wait"))
    assert first.cancelled()
    assert engine.hold._timer.when() > first.when()
    on_loop(engine, engine.hold.resume())


def test_a_version_that_was_sent_and_published_clears_what_went_wrong_before(
    engine_of: Any, tmp_path: Path, tiny_llama: Path
) -> None:
    engine = engine_of()
    on_loop(engine, engine.hold.pause("abort"))
    on_loop(engine, engine.hold.transfer(_nothing, half=True))
    on_loop(engine, engine.hold.resume())
    assert "came in part" in engine.state
    on_loop(engine, engine.hold.pause("abort"))
    on_loop(engine, engine.hold.transferred(1, _nothing))
    on_loop(engine, engine.hold.resume())
    publish(tmp_path, 1, tiny_llama)
    until(lambda: engine.state == "version 1 serves")


def test_what_a_trainer_sent_before_it_forgot_its_pause_is_read_once_published(
    engine_of: Any, world: World, tmp_path: Path, tiny_llama: Path
) -> None:
    engine = engine_of(update_limit_s=0.2)
    on_loop(engine, engine.hold.pause("abort"))
    on_loop(engine, engine.hold.transferred(7, _nothing))
    until(lambda: not engine.hold.paused)
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
        on_loop(engine, engine.hold.pause("abort"))
        monkeypatch.setattr(core, "resume", fails)
        on_loop(engine, engine.hold.resume())
        assert "did not go on after a pause (RuntimeError: no answer)" in engine.state
        assert len(world.started) == 2
    else:
        monkeypatch.setattr(core, "pause", fails)
        with pytest.raises(RuntimeError):
            on_loop(engine, engine.hold.pause("abort"))
        assert world.calls[-1] == ("resume",)
        assert not engine.hold.paused
    assert versions(engine.generate(GROUP)) == {(0, None)}


def test_a_trainer_that_pauses_a_dead_engine_sends_no_group_to_it(
    engine_of: Any, world: World, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of()
    updates = engine._updates
    monkeypatch.setattr(updates, "_try_at", math.inf)  # it does not come back yet
    group = under_way(world, engine, pool)
    world.cores[0].dead = True
    until(lambda: not updates._open.is_set())
    let_in: list[bool] = []
    for _ in range(3):
        with pytest.raises(NotReady, match="the engine died"):
            on_loop(engine, engine.hold.pause("abort"))
        let_in.append(updates._open.is_set())
    world.flow.set()
    monkeypatch.undo()
    assert let_in == [False] * 3
    assert versions(group.result()) == {(0, None)}
    assert world.cores[0].asked == len(GROUP)
