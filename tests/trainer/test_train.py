import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from guerdon import weights
from guerdon.types import Result, Status, failed
from guerdon_trainer.checkpoint import latest
from guerdon_trainer.config import RunConfig
from guerdon_trainer.filters import GroupFilter
from guerdon_trainer.launch import ensure_policy, finish
from guerdon_trainer.live import LiveView
from guerdon_trainer.run_folder import is_finished, open_folder, read_lines
from guerdon_trainer.train import Run, train

Make = Callable[..., RunConfig]

#: What depends on the clock, or counts over all attempts.
_TIMES = ("seconds", "tokens_per_s", "failures", "wait_rollouts_fraction", "wait_rewards_fraction")


class Stop(Exception):
    """The run dies here."""


class View(LiveView):
    """Quiet, and dies after a step when told to."""

    def __init__(self, die_after: int | None = None) -> None:
        super().__init__("test", 1, Console(quiet=True))
        self._die_after = die_after

    def step(self, row: dict[str, Any]) -> None:
        if row["step"] == self._die_after:
            raise Stop


def _attempt(config: RunConfig, services: Any, die_after: int | None = None) -> Run:
    folder = open_folder(config)
    ensure_policy(config, folder, lambda text: None)
    run = Run(config, View())
    train(run, services.clients, View(die_after))
    return run


def _rows(config: RunConfig) -> list[dict[str, Any]]:
    rows = read_lines(config.run_folder / "metrics.jsonl")
    return [
        {name: value for name, value in row.items() if name not in _TIMES and not name.endswith("_s")}
        for row in rows
    ]


def test_a_run_learns(make_config: Make, make_services: Any) -> None:
    # Without filter: late groups are all right, and would all be dropped.
    config = make_config("training.steps=25", "optimizer.lr=0.03", "filter=null")
    run = _attempt(config, make_services(config.run_folder / "weights" / "policy"))
    evaluations = read_lines(config.run_folder / "evaluations.jsonl")
    assert [row["step"] for row in evaluations] == [0, 25]
    rows = _rows(config)
    early, late = (sum(row["accuracy"] for row in part) / 5 for part in (rows[:5], rows[-5:]))
    assert late > early + 0.15
    assert (run.state.step, run.state.policy_version, run.state.prm_version) == (25, 25, 25)
    latest = weights.latest(run.folder.weights)
    assert latest is not None
    assert latest.version == 25


def test_a_run_ends_when_nothing_is_left_to_learn(
    make_config: Make, make_services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = iter([True] * 8)
    monkeypatch.setattr(GroupFilter, "keep", lambda self, group: next(passed, False))
    config = make_config("rollout.refill_budget=2", "rollout.when_spent=train", "rollout.prompts_per_step=4")
    folder = open_folder(config)
    ensure_policy(config, folder, lambda text: None)
    run = Run(config, View())
    finish(run, make_services(folder.weights).clients, View())
    assert (run.state.step, run.state.exhausted) == (2, True)
    assert [row["step"] for row in read_lines(folder.evaluations)] == [0, 2]
    assert is_finished(config, folder)
    # What it kept is what it learned: the checkpoint and the finished model are those of its last step.
    found = latest(folder.checkpoints)
    assert found is not None
    assert (found.state.step, found.state.exhausted) == (2, True)
    assert (folder.model / "config.json").is_file()


@pytest.mark.parametrize("die_after", [1, 2, 3, 5])
def test_a_run_that_died_goes_on_exactly(
    make_config: Make, make_services: Any, tmp_path: Path, die_after: int
) -> None:
    whole = make_config(f"folder={tmp_path / 'whole'}", "optimizer.mini_batches=2")
    undisturbed = _attempt(whole, make_services(whole.run_folder / "weights" / "policy"))

    config = make_config("optimizer.mini_batches=2")
    services = make_services(config.run_folder / "weights" / "policy")
    with pytest.raises(Stop):
        _attempt(config, services, die_after)
    resumed = _attempt(config, services)

    assert resumed.state.attempt == 1
    assert _rows(config) == _rows(whole)
    assert [row["step"] for row in _rows(config)] == [1, 2, 3, 4, 5, 6]
    for name in ("evaluations", "rollouts"):
        assert read_lines(getattr(resumed.folder, name)) == read_lines(getattr(undisturbed.folder, name))
    for mine, theirs in zip(
        resumed.learner.model.parameters(), undisturbed.learner.model.parameters(), strict=True
    ):
        assert torch.equal(mine, theirs)


def test_failures_change_nothing_but_their_counts(
    make_config: Make, make_services: Any, tmp_path: Path
) -> None:
    whole = make_config(f"folder={tmp_path / 'whole'}")
    _attempt(whole, make_services(whole.run_folder / "weights" / "policy"))
    config = make_config()
    services = make_services(config.run_folder / "weights" / "policy")
    services.math.faults.extend([Status.TIMEOUT, Status.OVERLOADED, Status.INTERNAL_ERROR])
    services.rollout.faults.extend([Status.UNAVAILABLE] * 3)
    services.process_reward.faults.extend([Status.UNAVAILABLE])
    run = _attempt(config, services)
    assert _rows(config) == _rows(whole)
    assert sum(run.stats.to_dict()["math"]["retried"].values()) > 0


def test_a_response_that_never_got_its_reward_is_counted_and_left_out(
    make_config: Make, make_services: Any
) -> None:
    config = make_config("training.steps=2", "failures.attempts=1", "failures.max_fraction=0.9")
    services = make_services(config.run_folder / "weights" / "policy")
    services.math.faults.extend([*[None] * 16, Status.TIMEOUT])  # past the first evaluation
    run = _attempt(config, services)
    rows = _rows(config)
    assert run.stats.failures()["math"] == {"timeout": 4}
    assert sum(row["unrewarded"] for row in rows) == 4
    assert json.loads((config.run_folder / "metrics.jsonl").read_text().splitlines()[-1])["failures"] == {
        "math": {"timeout": 4}
    }


def test_a_response_without_process_reward_is_counted_too(make_config: Make, make_services: Any) -> None:
    config = make_config(
        "training.steps=1", "process_reward.order=none", "failures.attempts=1", "filter=null"
    )
    services = make_services(config.run_folder / "weights" / "policy")
    score = services.process_reward.score

    async def without_the_first(samples: Any, **options: Any) -> list[Result]:
        first, *others = await score(samples, **options)
        return [failed(Status.TIMEOUT, "as told", id=first.id), *others]

    services.process_reward.score = without_the_first
    _attempt(config, services)
    assert _rows(config)[0]["unrewarded"] == 1


def test_a_run_that_died_before_its_first_checkpoint_starts_over(
    make_config: Make, make_services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("training.steps=1")
    services = make_services(config.run_folder / "weights" / "policy")
    with monkeypatch.context() as patched:
        patched.setattr(Run, "_save", _stop)
        with pytest.raises(Stop):
            _attempt(config, services)
    _attempt(config, services)
    assert [row["step"] for row in read_lines(config.run_folder / "evaluations.jsonl")] == [0, 1]


def _stop(run: Run) -> None:
    raise Stop


@pytest.mark.parametrize(
    "overrides",
    [
        ("optimizer.old_logprobs=engine",),
        ("importance={level: token, cap: 2}",),
    ],
)
def test_a_run_that_asks_ahead_trains_on_what_is_young_enough(
    make_config: Make, make_services: Any, overrides: tuple[str, ...]
) -> None:
    config = make_config(
        *("rollout.ahead=1", "rollout.max_policy_age=2", "filter=null", "training.steps=4"), *overrides
    )
    run = _attempt(config, make_services(config.run_folder / "weights" / "policy"))
    rows = _rows(config)
    assert rows[0]["policy_age_max"] == 0
    assert max(row["policy_age_max"] for row in rows) <= 2
    assert all(0 <= row["wait_rollouts_fraction"] <= 1 for row in read_lines(run.folder.metrics))
    assert ("importance_weight" in rows[-1]) == (config.importance is not None)
    # Nothing is under way when the last batch was learned.
    assert run.state.pending == []
    assert sum(row["groups_seen"] for row in rows) == run.state.position


def test_events_and_texts_of_a_run_lie_in_its_tensorboard(make_config: Make, make_services: Any) -> None:
    config = make_config("training.steps=2")
    _attempt(config, make_services(config.run_folder / "weights" / "policy"))
    events = EventAccumulator(str(config.run_folder / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/reward")] == [1, 2]
    assert [event.step for event in events.Scalars("evaluation/accuracy")] == [0, 2]
    assert {"time/wait_rollouts_fraction", "train/policy_age_mean"} <= set(events.Tags()["scalars"])
    [first, last] = events.Tensors("rollouts/training/text_summary")
    text = first.tensor_proto.string_val[0].decode()
    assert (first.step, last.step) == (1, 2)
    assert "    user: " in text
    assert "    response 4: reward " in text
    assert ", process reward " in text


def test_every_step_asks_for_the_policy_it_published(make_config: Make, make_services: Any) -> None:
    config = make_config("training.steps=3")
    _attempt(config, make_services(config.run_folder / "weights" / "policy"))
    rows = _rows(config)
    assert [row["policy_version"] for row in rows] == [1, 2, 3]
    assert [(row["policy_age_max"], row["dropped_stale"]) for row in rows] == [(0, 0)] * 3
    # Engine and trainer agree on the log-probabilities of the sampled tokens.
    assert max(row["engine_mismatch_max"] for row in rows) < 1e-4
