"""The simulation against what can be reckoned by hand."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
run: Any = importlib.import_module("simulation.run")
setup: Any = importlib.import_module("simulation.setup")

#: No randomness, and nothing but what a test adds costs time.
PLAIN = setup.Setup(
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
    read_token_s=0,
    write_token_s=0,
    publish_s=0,
)


def figures(**changes: Any) -> Any:
    return run.figures(run.Run(replace(PLAIN, **changes)).go())


def test_one_slot_samples_one_after_the_other() -> None:
    found = figures()
    assert found.step_s == pytest.approx(4 * 100 * 0.01 + 10)
    assert found.trainer_idle == pytest.approx(4 / 14)
    assert found.rollouts_min == pytest.approx(60 * 4 / 14)
    # The four are one entry of the queue, which no pod kept waiting; each is verified by itself.
    assert (found.p99_s["rollout"], found.entries["rollout"]) == (0, 1)
    assert figures(math_s=1).entries["math"] == 4


def test_every_slot_is_used() -> None:
    assert figures(rollout_slots=4).step_s == pytest.approx(1 + 10)
    assert figures(rollout_slots=2).step_s == pytest.approx(2 + 10)


def test_the_parts_of_a_request_add_up() -> None:
    # One rollout: client, Redis, worker, and back, then the same for its verification.
    found = figures(group_size=1, client_s=0.2, redis_s=0.4, worker_s=0.8, math_s=1.6)
    assert found.step_s == pytest.approx(1 + (0.2 + 0.4 + 0.8) + (0.2 + 0.4 + 0.8 + 1.6) + 10)


def test_work_ahead_hides_behind_training() -> None:
    in_turn = figures(steps=4)
    ahead = figures(steps=4, ahead=1)
    assert in_turn.step_s == pytest.approx(14)
    # But for the first, whose rollouts nobody trains beside; the second's are done behind them.
    assert ahead.step_s == pytest.approx((4 + 4 * 10) / 4)


def test_groups_in_flight_are_bounded() -> None:
    wide = figures(groups=8, rollout_slots=32)
    narrow = figures(groups=8, rollout_slots=32, in_flight=2)
    assert (wide.step_s, narrow.step_s) == (pytest.approx(1 + 10), pytest.approx(4 * 1 + 10))


def test_redis_holds_what_is_open_and_a_minute_of_results() -> None:
    once = run.Run(replace(PLAIN, groups=3)).go()
    [held] = once.bytes
    assert sum(change for _, change in held) == pytest.approx(0)
    assert run.figures(once).peak_bytes > 12 * 1200
    sharded = figures(groups=3, shards=3, shard_by="group")
    assert sharded.peak_bytes == pytest.approx(run.figures(once).peak_bytes / 3, rel=0.2)


def test_nothing_is_asked_while_it_learns() -> None:
    # The first that is taken makes room for a third; the fourth is asked when the first step is learned.
    found = figures(steps=2, groups=2, ahead=1, in_flight=2, rollout_slots=8)
    assert found.step_s == pytest.approx((1 + 10 + 1 + 10) / 2)
    tight = figures(steps=2, groups=2, ahead=1, in_flight=1, rollout_slots=8)
    assert tight.step_s == pytest.approx((2 + 10 + 2 + 10) / 2)
    wide = figures(steps=2, groups=2, ahead=1, in_flight=4, rollout_slots=16)
    assert wide.step_s == pytest.approx((1 + 10 + 10) / 2)


def test_new_weights_wait_for_groups_under_way_or_do_not() -> None:
    # Training takes a tenth of the time of a group: the next step's is under way when the weights come.
    changes = {
        "steps": 3,
        "ahead": 1,
        "rollout_slots": 8,
        "tokens_mean": 10_000,
        "tokens_most": 10_000,
        "publish_s": 7,
    }
    finish = figures(**changes)
    keep = figures(**changes, on_update="keep")
    # 0-100: groups 1 and 2. Learned at 110 and 120; group 3, asked at 110 when nothing runs, waits for the weights.
    assert finish.step_s == pytest.approx((110 + 7 + 100 + 10) / 3)
    assert keep.step_s == pytest.approx((110 + 100 + 10) / 3)
    # On policy the weights are waited for in any case.
    changes |= {"ahead": 0, "steps": 2}
    assert figures(**changes, on_update="keep").step_s == pytest.approx((110 + 7 + 110) / 2)


def test_a_pod_with_work_takes_none_until_it_is_done_and_has_the_weights() -> None:
    # One of two groups makes a batch; its weights are there at 1 + 2, while the other runs until 4.
    simulation = run.Simulation()
    rollouts = run.Rollouts(simulation, replace(PLAIN, token_s=1, publish_s=5, rollout_slots=4, ahead=1))
    ended: list[float] = []
    rollouts.take([4], lambda: ended.append(simulation.now))
    simulation.after(3, rollouts.update)
    simulation.after(3.5, lambda: rollouts.take([1], lambda: ended.append(simulation.now)))
    simulation.run()
    assert (ended, rollouts.waits) == ([4, 4 + 5 + 1], [0, 5.5])


def test_process_rewards_come_by_the_batch_and_their_learner_takes_it_whole() -> None:
    base = figures(groups=2, rollout_slots=8)
    scored = figures(groups=2, rollout_slots=8, prm_replicas=2, prm_tokens_s=100)
    # Eight responses of 100 tokens after prompts of 200, two at a time.
    assert scored.step_s == pytest.approx(base.step_s + 4 * 3)
    assert scored.entries["process_reward"] == 8
    learned = figures(groups=2, rollout_slots=8, prm_replicas=2, prm_tokens_s=100, prm_update_tokens_s=240)
    assert learned.step_s == pytest.approx(scored.step_s + 8 * 300 / 240)
    # Eight bytes for each token of the batch, in one value.
    assert (scored.largest_bytes, learned.largest_bytes) == (12 * 400 + 400, 8 * 800)


def test_verifiers_are_asked_one_after_the_other() -> None:
    one = figures(group_size=1, math_s=2)
    both = figures(group_size=1, math_s=2, code_workers=1, code_s=3)
    assert (one.step_s, both.step_s) == (pytest.approx(1 + 2 + 10), pytest.approx(1 + 2 + 3 + 10))


def test_tokens_cost_the_client_time() -> None:
    found = figures(group_size=1, read_token_s=0.01, write_token_s=0.02)
    assert found.step_s == pytest.approx(1 + 100 * (0.01 + 0.02) + 10)


def test_the_same_seed_is_the_same_run() -> None:
    def once(seed: int) -> float:
        return figures(tokens_sigma=0.7, groups=5, rollout_slots=3, seed=seed).step_s

    assert once(1) == once(1) != once(2)


def test_words_change_a_setup() -> None:
    assert setup.changed(PLAIN, ["shards=4", "train_s=2.5", "shard_by=group"]) == replace(
        PLAIN, shards=4, train_s=2.5, shard_by="group"
    )
    for wrong in ("shard=4", "shards=many"):
        with pytest.raises(SystemExit):
            setup.changed(PLAIN, [wrong])
