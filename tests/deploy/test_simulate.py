"""The simulation against what can be reckoned by hand."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).parents[2] / "benchmarks/simulate.py"


def load() -> Any:
    spec = importlib.util.spec_from_file_location("simulate", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["simulate"] = module
    spec.loader.exec_module(module)
    return module


simulate = load()

#: No randomness, and nothing but what a test adds costs time.
PLAIN = simulate.Setup(
    steps=1,
    groups=1,
    group_size=4,
    tokens_mean=100,
    tokens_sigma=0,
    rollout_slots=1,
    token_s=0.01,
    math_s=0,
    prm_replicas=0,
    train_s=10,
    client_s=0,
    redis_s=0,
    worker_s=0,
)


def figures(**changes: Any) -> Any:
    return simulate.figures(simulate.Run(simulate.replace(PLAIN, **changes)).go())


def test_one_slot_samples_one_after_the_other() -> None:
    found = figures()
    assert found.step_s == pytest.approx(4 * 100 * 0.01 + 10)
    assert found.trainer_idle == pytest.approx(4 / 14)
    assert found.rollouts_min == pytest.approx(60 * 4 / 14)
    # The last of four waits for three.
    assert (found.p99_s["rollout"], found.waiting["rollout"]) == (pytest.approx(3.0), 3)


def test_every_slot_is_used() -> None:
    assert figures(rollout_slots=4).step_s == pytest.approx(1 + 10)
    assert figures(rollout_slots=2).step_s == pytest.approx(2 + 10)


def test_the_parts_of_a_request_add_up() -> None:
    # One rollout: client, Redis, worker, and back, then the same for its verification.
    found = figures(group_size=1, client_s=0.2, redis_s=0.4, worker_s=0.8, math_s=1.6)
    assert found.step_s == pytest.approx(1 + (0.2 + 0.4 + 0.8) + (0.2 + 0.4 + 0.8 + 1.6) + 10)


def test_work_ahead_hides_behind_training() -> None:
    in_turn = figures(steps=4, publish_s=0)
    ahead = figures(steps=4, publish_s=0, ahead=1)
    assert in_turn.step_s == pytest.approx(14)
    # But for the first, whose rollouts nobody trains beside; the second's are done behind them.
    assert ahead.step_s == pytest.approx((4 + 4 * 10) / 4)


def test_groups_in_flight_are_bounded() -> None:
    wide = figures(groups=8, rollout_slots=32)
    narrow = figures(groups=8, rollout_slots=32, in_flight=2)
    assert (wide.step_s, narrow.step_s) == (pytest.approx(1 + 10), pytest.approx(4 * 1 + 10))


def test_redis_holds_what_is_open_and_a_minute_of_results() -> None:
    run = simulate.Run(simulate.replace(PLAIN, groups=3)).go()
    [held] = run.bytes
    assert sum(change for _, change in held) == pytest.approx(0)
    assert simulate.figures(run).peak_bytes > 12 * 1200
    sharded = figures(groups=3, shards=3, shard_by="group")
    assert sharded.peak_bytes == pytest.approx(simulate.figures(run).peak_bytes / 3, rel=0.2)


def test_the_same_seed_is_the_same_run() -> None:
    def once(seed: int) -> float:
        return figures(tokens_sigma=0.7, groups=5, rollout_slots=3, seed=seed).step_s

    assert once(1) == once(1) != once(2)


def test_words_change_a_setup() -> None:
    assert simulate.changed(PLAIN, ["shards=4", "train_s=2.5", "shard_by=group"]) == simulate.replace(
        PLAIN, shards=4, train_s=2.5, shard_by="group"
    )
    for wrong in ("shard=4", "shards=many"):
        with pytest.raises(SystemExit):
            simulate.changed(PLAIN, [wrong])
