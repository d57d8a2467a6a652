"""Which groups make a batch, on policy and ahead."""

from collections.abc import Callable, Sequence
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from guerdon.types import GenerateSample, Status
from guerdon_trainer.collect import Collected, Collector
from guerdon_trainer.config import RunConfig
from guerdon_trainer.groups import Group, Response, RolloutError
from guerdon_trainer.live import LiveView
from guerdon_trainer.questions import PromptStream, Question
from guerdon_trainer.rollouts import Rollouts
from guerdon_trainer.service_stats import ServiceStats

Make = Callable[..., RunConfig]
RIGHT, WRONG = "1", "+"
AHEAD = ("rollout.ahead=1", "rollout.max_policy_age=1", "optimizer.old_logprobs=engine")


def _mixed(sample: GenerateSample) -> list[str]:
    """Every third prompt is answered uniformly: its group has nothing to teach."""
    return [RIGHT] * 4 if int(sample.id or 0) % 3 == 0 else [RIGHT, WRONG, RIGHT, WRONG]


def _is_mixed(group: Group) -> bool:
    return len({response.reward for response in group.responses if response.reward is not None}) > 1


@pytest.fixture
def services(make_services: Any, tmp_path: Path) -> Any:
    return make_services(tmp_path, _mixed)


class Loop:
    """A run's collector with nothing that learns behind it."""

    def __init__(
        self,
        services: Any,
        config: RunConfig,
        keep: Callable[[Group], bool] = _is_mixed,
        *,
        position: int = 0,
        pending: Sequence[int] = (),
    ) -> None:
        questions = [Question(id=f"q{n}", prompt="1+2=", references=["3"]) for n in range(1000)]
        self.services = services
        self.stats = ServiceStats()
        self.rollouts = Rollouts(services.clients, config, self.stats)
        self.version = 0
        self.collector = Collector(
            self.rollouts,
            PromptStream(questions, 0),
            config,
            keep,
            LiveView("test", 1, Console(quiet=True)),
            position=position,
            pending=pending,
        )

    def __enter__(self) -> "Loop":
        return self

    def __exit__(self, *exc: object) -> None:
        self.rollouts.__exit__(*exc)

    def step(self) -> Collected:
        """A batch, and a new version once everything that was asked ahead has finished."""
        collected = self.collector.collect(step=self.version + 1, policy_version=self.version)
        wait(self.collector._opened._open)
        self.version += 1
        self.rollouts.policy_version = self.services.rollout.version_served = self.version
        return collected


def _positions(groups: Sequence[Group]) -> list[int]:
    return [group.position for group in groups]


def test_the_batch_is_the_first_prompts_that_pass_whatever_finishes_first(
    services: Any, make_config: Make
) -> None:
    for _ in range(5):
        services.rollout.version_served = 0
        with Loop(services, make_config("rollout.prompts_per_step=20")) as loop:
            collected = loop.step()
        assert _positions(collected.kept) == [n for n in range(30) if n % 3][:20]
        assert _positions(collected.seen) == list(range(30))
        assert (collected.next_position, collected.pending) == (30, [])
    assert services.rollout.closed


def test_no_more_prompts_are_asked_than_the_batch_needs(services: Any, make_config: Make) -> None:
    with Loop(services, make_config("rollout.prompts_per_step=20")) as loop:
        loop.step()
        assert services.rollout.calls == 30


def test_a_filter_that_nothing_passes_ends_at_the_refill_budget(services: Any, make_config: Make) -> None:
    config = make_config("rollout.refill_budget=3")
    with (
        Loop(services, config, lambda group: False) as loop,
        pytest.raises(RolloutError, match="only 0 of 12 groups passed the filter, and the batch needs 4"),
    ):
        loop.step()


def test_a_batch_may_stay_smaller_when_the_recipe_says_so(services: Any, make_config: Make) -> None:
    config = make_config(
        "rollout.refill_budget=1.5", "rollout.when_spent=train", "rollout.prompts_per_step=8"
    )
    with Loop(services, config, lambda group: group.position in (2, 9, 11, 12)) as loop:
        collected = loop.step()
        assert _positions(collected.kept) == [2, 9, 11]
        assert collected.next_position == 12


def test_a_batch_without_any_group_says_that_nothing_is_left_to_teach(
    services: Any, make_config: Make
) -> None:
    config = make_config("rollout.refill_budget=3", "rollout.when_spent=train")
    with Loop(services, config, lambda group: False) as loop:
        collected = loop.step()
        assert (collected.kept, len(collected.seen), collected.next_position) == ([], 12, 12)


def test_groups_that_were_all_cut_off_do_not_mean_that_nothing_is_left(
    services: Any, make_config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Response, "truncated", True)
    config = make_config("rollout.refill_budget=3", "rollout.when_spent=train")
    with (
        Loop(services, config, lambda group: False) as loop,
        pytest.raises(RolloutError, match="only 0 of 12 groups passed the filter"),
    ):
        loop.step()


def test_groups_that_lack_rewards_do_not_mean_that_nothing_is_left(services: Any, make_config: Make) -> None:
    services.math.faults.extend([Status.INVALID_INPUT])
    config = make_config("rollout.refill_budget=3", "rollout.when_spent=train", "failures.max_fraction=1")
    with (
        Loop(services, config, lambda group: False) as loop,
        pytest.raises(RolloutError, match="only 0 of 12 groups passed the filter"),
    ):
        loop.step()


def test_only_so_many_groups_are_in_flight(services: Any, make_config: Make) -> None:
    most = 0
    seen: list[Group] = []

    def keep(group: Group) -> bool:
        nonlocal most
        most = max(most, services.rollout.calls - len(seen))
        seen.append(group)
        return True

    config = make_config("rollout.groups_in_flight=3", "rollout.prompts_per_step=20")
    with Loop(services, config, keep) as loop:
        assert len(loop.step().kept) == 20
    assert most <= 3


def test_ahead_of_a_batch_the_next_one_is_sampled(services: Any, make_config: Make) -> None:
    config = make_config(*AHEAD, "rollout.prompts_per_step=6")
    batches: list[Collected] = []
    with Loop(services, config, lambda group: True) as loop:
        for number in range(3):
            batches.append(loop.step())
            # All of the next batch was asked meanwhile.
            assert batches[-1].next_position == 6 * (number + 2)
            assert len(batches[-1].pending) == 6
    assert [batch.ages for batch in batches] == [[0] * 6, [1] * 6, [1] * 6]
    used = [position for batch in batches for position in _positions(batch.seen)]
    assert len(used) == len(set(used)) == 18
    # Every prompt that was asked is either used or still to be used.
    assert sorted([*used, *batches[-1].pending]) == list(range(batches[-1].next_position))


def test_a_resumed_run_asks_what_was_pending_before_anything_new(services: Any, make_config: Make) -> None:
    config = make_config(*AHEAD, "rollout.prompts_per_step=6")
    with Loop(services, config, lambda group: True) as loop:
        first = loop.step()
    services.rollout.version_served = 0
    with Loop(
        services, config, lambda group: True, position=first.next_position, pending=first.pending
    ) as loop:
        second = loop.step()
        third = loop.step()
    used = _positions([*first.seen, *second.seen, *third.seen])
    assert len(set(used)) == 18
    assert sorted([*used, *third.pending]) == list(range(third.next_position))


def test_groups_that_are_too_old_are_dropped_whole_counted_and_asked_again(
    services: Any, make_config: Make
) -> None:
    config = make_config(*AHEAD, "rollout.prompts_per_step=6")
    with Loop(services, config, lambda group: True) as loop:
        first = loop.step()
        assert len(first.pending) == 6
        # Two more versions pass while the groups that were asked ahead lie there.
        loop.version = 3
        loop.rollouts.policy_version = services.rollout.version_served = 3
        late = loop.step()
    assert late.dropped_stale == 6
    # Their prompts came again, from a policy that is young enough, and none was lost.
    assert set(late.ages) == {0}
    used = _positions([*first.seen, *late.seen])
    assert sorted([*used, *late.pending]) == list(range(late.next_position))
    assert set(first.pending) <= {*_positions(late.seen), *late.pending}


def test_age_counts_the_time_in_queues(services: Any, make_config: Make) -> None:
    config = make_config(
        *("rollout.ahead=2", "rollout.max_policy_age=2", "optimizer.old_logprobs=engine"),
        "rollout.prompts_per_step=4",
    )
    ages: list[list[int]] = []
    with Loop(services, config, lambda group: True) as loop:
        for number in range(5):
            batch = loop.step()
            ages.append(batch.ages)
            assert (batch.policy_version, batch.dropped_stale) == (number, 0)
    assert ages == [[age] * 4 for age in (0, 1, 2, 2, 2)]


def test_a_group_that_could_not_be_sampled_is_seen_and_not_kept(services: Any, make_config: Make) -> None:
    services.rollout.faults.append(Status.INVALID_INPUT)
    with Loop(services, make_config("rollout.prompts_per_step=8", "failures.window=100")) as loop:
        collected = loop.step()
    assert [group.responses for group in collected.seen].count([]) == 1
    assert all(group.responses for group in collected.kept)
    assert collected.dropped_stale == 0
