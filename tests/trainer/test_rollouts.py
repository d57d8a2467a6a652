from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from guerdon.errors import InvalidRequest, Unavailable
from guerdon.types import GenerateResult, GenerateSample, Result, Sampling, Status
from guerdon_trainer.config import RunConfig
from guerdon_trainer.groups import Ask, Group, RolloutError
from guerdon_trainer.questions import Question
from guerdon_trainer.rollouts import Rollouts
from guerdon_trainer.service_stats import FailureBudgetExceeded, ServiceStats

Make = Callable[..., RunConfig]
RIGHT, WRONG = "1", "+"


def _asks(count: int = 1000, oldest: int = 0) -> Iterator[Ask]:
    for position in range(count):
        question = Question(id=f"q{position}", prompt="1+2=", references=["3"], metadata=None, code=None)
        yield Ask(position, question, Sampling(n=4, seed=position), oldest)


def _mixed(sample: GenerateSample) -> list[str]:
    """Every third prompt is answered uniformly: its group has nothing to teach."""
    return [RIGHT] * 4 if int(sample.id or 0) % 3 == 0 else [RIGHT, WRONG, RIGHT, WRONG]


@pytest.fixture
def services(make_services: Any, tmp_path: Path) -> Any:
    return make_services(tmp_path, _mixed)


@pytest.fixture
def stats() -> ServiceStats:
    return ServiceStats()


def test_rewards_are_weighted_and_the_first_is_the_outcome(
    services: Any, make_config: Make, stats: ServiceStats
) -> None:
    config = make_config("rewards.0.weight=0.25")
    with Rollouts(services.clients, config, stats) as rollouts:
        group = rollouts.all_groups(list(islice(_asks(), 1, 2)))[0]
    assert [response.outcome for response in group.responses] == [1, 0, 1, 0]
    assert [response.reward for response in group.responses] == [0.25, 0, 0.25, 0]


PLAIN = ("rewards=[{service: math}]", "process_reward=null", "advantage={name: rloo}")


@pytest.mark.parametrize(
    ("overrides", "needed_by"),
    [
        ((), r"an entry with role process \(process_reward\)"),
        ((*PLAIN, "filter={kind: accuracy}"), "filter accuracy"),
        ((*PLAIN, "filter=null", "loss={name: nft}", "advantage=null"), "loss nft"),
        ((*PLAIN, "filter={kind: spread}"), None),
    ],
)
def test_a_correctness_of_minus_one_is_refused_where_it_would_be_taken_for_a_fraction(
    services: Any,
    make_config: Make,
    stats: ServiceStats,
    monkeypatch: pytest.MonkeyPatch,
    overrides: tuple[str, ...],
    needed_by: str | None,
) -> None:
    score = services.math.score

    async def plus_or_minus(samples: Any, **kw: Any) -> list[Result]:
        results: list[Result] = await score(samples, **kw)
        return [result.model_copy(update={"value": 2 * (result.value or 0) - 1}) for result in results]

    monkeypatch.setattr(services.math, "score", plus_or_minus)
    with Rollouts(services.clients, make_config(*overrides), stats) as rollouts:
        if needed_by is None:
            group = rollouts.all_groups(list(islice(_asks(), 1, 2)))[0]
            assert [response.reward for response in group.responses] == [1, -1, 1, -1]
            return
        with pytest.raises(RolloutError, match=f"math gave response 1/1 the value -1.*{needed_by}"):
            rollouts.all_groups(list(islice(_asks(), 1, 2)))


@pytest.mark.parametrize(
    ("rewards", "overrides", "needed"),
    [
        ("{service: math}, {service: rules, weight: 0}", (), False),
        ("{service: rules, weight: 0}, {service: math}", (), False),
        ("{service: math}, {service: rules, weight: 0.1}", (), True),
        ("{service: rules, weight: 0}, {service: math}", ("filter={kind: accuracy}",), True),
        (
            "{service: math}, {service: rules, weight: 0, follows_policy: true, options: {template: verifree}}",
            ("loss={name: verifree, service: rules}",),
            True,
        ),
    ],
)
def test_what_only_measures_may_fail_without_a_loss(
    services: Any,
    make_config: Make,
    stats: ServiceStats,
    rewards: str,
    overrides: tuple[str, ...],
    needed: bool,
) -> None:
    """`rules` gives no value to any response; `math` does."""
    rules = type(services.math)()
    rules.always = Status.INVALID_INPUT
    words = (*PLAIN, f"rewards=[{rewards}]", "filter=null", *overrides)
    with Rollouts({**services.clients, "rules": rules}, make_config(*words), stats) as rollouts:
        group = rollouts.all_groups(list(islice(_asks(), 1, 2)))[0]
    assert [response.reward for response in group.responses] == ([None] * 4 if needed else [1, 0, 1, 0])
    if rewards.startswith("{service: rules"):
        assert {response.outcome for response in group.responses} == {None}
    assert stats.failures()["rules"] == {"invalid_input": 4}


@pytest.mark.parametrize("fault", [Status.TIMEOUT, Status.OVERLOADED, Unavailable("starting")])
def test_a_passing_failure_costs_nothing_but_time(
    services: Any, make_config: Make, stats: ServiceStats, fault: Any
) -> None:
    services.math.faults.extend([fault] * 2)
    services.rollout.faults.append(fault)
    with Rollouts(services.clients, make_config(), stats) as rollouts:
        groups = rollouts.all_groups(list(_asks(3)))
    assert all(response.reward is not None for group in groups for response in group.responses)
    counts = stats.to_dict()
    assert counts["math"]["final"] == {"ok": 12}
    assert sum(counts["math"]["retried"].values()) == 8
    assert sum(counts["rollout"]["retried"].values()) == 1
    # The repetition asks for the same samples: one seed per prompt.
    assert sorted(services.rollout.seeds) == [0, 1, 2]


def test_a_lasting_failure_is_no_reward_and_never_zero(
    services: Any, make_config: Make, stats: ServiceStats
) -> None:
    services.math.always = Status.TIMEOUT
    with Rollouts(services.clients, make_config("failures.window=100"), stats) as rollouts:
        groups = rollouts.all_groups(list(_asks(2)))
    responses = [response for group in groups for response in group.responses]
    assert [response.reward for response in responses] == [None] * 8
    assert [response.results["math"].status for response in responses] == [Status.TIMEOUT] * 8
    assert stats.failures() == {"math": {"timeout": 8}, "rollout": {}}


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ({"logprobs": []}, "another number of log-probabilities than of tokens"),
        (None, "asked for 4 responses, the engine gave 3"),
    ],
)
def test_an_engine_that_breaks_its_contract_costs_the_group_and_not_the_run(
    services: Any,
    make_config: Make,
    stats: ServiceStats,
    monkeypatch: pytest.MonkeyPatch,
    broken: dict[str, Any] | None,
    reason: str,
) -> None:
    generate = services.rollout.generate

    async def wrong(*args: Any, **kw: Any) -> list[GenerateResult]:
        [result] = await generate(*args, **kw)
        last = [] if broken is None else [result.rollouts[3].model_copy(update=broken)]
        return [result.model_copy(update={"rollouts": [*result.rollouts[:3], *last]})]

    monkeypatch.setattr(services.rollout, "generate", wrong)
    with Rollouts(services.clients, make_config("failures.window=100"), stats) as rollouts:
        [group] = rollouts.all_groups(list(_asks(1)))
        assert group.responses == []
        assert reason in rollouts.explanation()
    assert stats.failures()["rollout"] == {"internal_error": 1}


def test_invalid_input_is_not_tried_again(services: Any, make_config: Make, stats: ServiceStats) -> None:
    services.math.always = Status.INVALID_INPUT
    with Rollouts(services.clients, make_config("failures.window=100"), stats) as rollouts:
        rollouts.all_groups(list(_asks(2)))
    assert services.math.calls == 2


def test_a_wrong_request_ends_the_run(services: Any, make_config: Make, stats: ServiceStats) -> None:
    services.math.always = InvalidRequest("options.extraction: no such method")
    with (
        Rollouts(services.clients, make_config(), stats) as rollouts,
        pytest.raises(InvalidRequest, match=r"^math: options\.extraction: no such"),
    ):
        rollouts.all_groups(list(_asks(2)))


def test_too_many_failures_end_the_run_and_say_which(
    services: Any, make_config: Make, stats: ServiceStats
) -> None:
    services.math.always = Status.INTERNAL_ERROR
    config = make_config("failures.window=8", "failures.max_fraction=0.5")
    with (
        Rollouts(services.clients, config, stats) as rollouts,
        pytest.raises(
            FailureBudgetExceeded, match=r"8 of the last 8 responses.*math: .* internal_error .*as told"
        ),
    ):
        rollouts.all_groups(list(_asks(6)))


def test_a_group_that_could_not_be_sampled_costs_the_budget_what_was_asked(
    services: Any, make_config: Make, stats: ServiceStats
) -> None:
    services.rollout.always = Status.INTERNAL_ERROR
    config = make_config("failures.window=8", "failures.attempts=1", "rollout.group_size=8")
    with Rollouts(services.clients, config, stats) as rollouts:
        assert [group.responses for group in rollouts.all_groups(list(_asks(1)))] == [
            []
        ]  # 4 of a window of 8
        with pytest.raises(FailureBudgetExceeded, match="8 of the last 8"):
            rollouts.all_groups(list(_asks(1)))


@pytest.mark.parametrize("served", [4, 7])
def test_rollouts_of_another_policy_are_refused(
    services: Any, make_config: Make, stats: ServiceStats, served: int
) -> None:
    services.rollout.version_served = served
    config = make_config("failures.window=100")
    with Rollouts(services.clients, config, stats, policy_version=6) as rollouts:
        groups = rollouts.all_groups(list(_asks(1, oldest=5)))
    assert groups[0].responses == []
    assert f"sampled by policy versions [{served}]" in stats.to_dict()["rollout"]["last_failure"]


@pytest.mark.parametrize("served", [5, 6])
def test_a_group_says_which_version_sampled_it(
    services: Any, make_config: Make, stats: ServiceStats, served: int
) -> None:
    services.rollout.version_served = served
    with Rollouts(services.clients, make_config(), stats, policy_version=6) as rollouts:
        groups = rollouts.all_groups(list(_asks(1, oldest=5)))
    assert groups[0].policy_version == served


def test_what_was_published_since_may_sample_what_waited(
    services: Any, make_config: Make, stats: ServiceStats
) -> None:
    services.rollout.version_served = 7
    with Rollouts(
        services.clients, make_config("failures.pause_s=0.01"), stats, policy_version=6
    ) as rollouts:
        services.rollout.faults.append(Status.OVERLOADED)
        opened = rollouts.opened()
        opened.ask(next(_asks(1, oldest=6)))
        rollouts.policy_version = 7
        assert opened.take(1).policy_version == 7


def test_a_group_of_two_versions_is_asked_for_again(
    services: Any, make_config: Make, stats: ServiceStats
) -> None:
    mixed = iter([[3, 3, 4, 4], [4, 4, 4, 4]])
    generate = services.rollout.generate

    async def across_a_reload(*args: Any, **options: Any) -> list[GenerateResult]:
        [group] = await generate(*args, **options)
        rollouts = [
            one.model_copy(update={"model_version": version})
            for one, version in zip(group.rollouts, next(mixed), strict=True)
        ]
        return [group.model_copy(update={"rollouts": rollouts})]

    services.rollout.generate = across_a_reload
    with Rollouts(services.clients, make_config(), stats, policy_version=4) as rollouts:
        groups = rollouts.all_groups(list(_asks(1, oldest=3)))
    assert groups[0].policy_version == 4
    assert stats.to_dict()["rollout"]["retried"] == {"unavailable": 1}


def test_scores_have_a_key_and_repetitions_have_none(
    services: Any, make_config: Make, stats: ServiceStats
) -> None:
    services.rollout.version_served = 3
    services.math.faults.extend([Status.INTERNAL_ERROR])
    with Rollouts(services.clients, make_config(), stats, policy_version=3, key="run") as rollouts:
        rollouts.all_groups(list(_asks(1)))
    assert services.math.keys == ["run:3:0", None]
    with Rollouts(services.clients, make_config(), stats, policy_version=3) as rollouts:
        rollouts.all_groups(list(_asks(1)))
    assert services.math.keys[2:] == [None]


def _groups(rollouts: Rollouts) -> list[Group]:
    return rollouts.all_groups([ask for ask in _asks(6) if ask.position % 3])


def test_process_rewards_are_one_request_repeated_under_its_id(
    services: Any, make_config: Make, stats: ServiceStats
) -> None:
    services.process_reward.faults.extend([Status.UNAVAILABLE, Unavailable("killed"), Status.TIMEOUT])
    with Rollouts(services.clients, make_config(), stats) as rollouts:
        process = rollouts.process_rewards(_groups(rollouts), request_id="run.0.1", base_version=0)
    assert {request.request_id for request in services.process_reward.requests} == {"run.0.1"}
    assert len(services.process_reward.requests) == 3
    assert process.version == services.process_reward.version == 1
    assert len(process.tokens) == 16
    assert [sample.outcome for sample in services.process_reward.requests[-1].samples[:4]] == [1, 0, 1, 0]


def test_a_prm_that_stays_away_ends_the_run_at_the_time_limit(
    services: Any, make_config: Make, stats: ServiceStats
) -> None:
    services.process_reward.always = Unavailable("nobody there")
    config = make_config("process_reward.time_limit_s=0.2", "failures.pause_s=0.05")
    with (
        Rollouts(services.clients, config, stats) as rollouts,
        pytest.raises(RolloutError, match=r"process_reward did not answer an update for 0.2 s: nobody there"),
    ):
        rollouts.process_rewards(_groups(rollouts), request_id="r", base_version=0)


def test_a_refused_update_says_why(services: Any, make_config: Make, stats: ServiceStats) -> None:
    services.process_reward.always = Status.INVALID_INPUT
    with (
        Rollouts(services.clients, make_config(), stats) as rollouts,
        pytest.raises(RolloutError, match="process_reward refused an update: invalid_input: as told"),
    ):
        rollouts.process_rewards(_groups(rollouts), request_id="r", base_version=0)


def test_a_prm_that_scores_nothing_ends_the_run(
    services: Any, make_config: Make, stats: ServiceStats
) -> None:
    services.process_reward.always = Status.INTERNAL_ERROR
    with (
        Rollouts(services.clients, make_config("process_reward.order=none"), stats) as rollouts,
        pytest.raises(RolloutError, match=r"no response of the batch got process rewards.*16 internal_error"),
    ):
        rollouts.process_rewards(_groups(rollouts), request_id="r", base_version=0)


def test_token_rewards_of_other_tokens_are_an_error(
    services: Any, make_config: Make, stats: ServiceStats
) -> None:
    services.process_reward.shift_token_ids = 1
    with (
        Rollouts(services.clients, make_config(), stats) as rollouts,
        pytest.raises(RolloutError, match="belong to other tokens than were sampled"),
    ):
        rollouts.process_rewards(_groups(rollouts), request_id="r", base_version=0)


def test_a_frozen_prm_only_scores(services: Any, make_config: Make, stats: ServiceStats) -> None:
    with Rollouts(services.clients, make_config("process_reward.order=none"), stats) as rollouts:
        process = rollouts.process_rewards(_groups(rollouts), request_id="r", base_version=3)
    assert (len(process.tokens), process.version, services.process_reward.requests) == (16, 3, [])


@pytest.mark.parametrize("follows", ["true", "false"])
def test_a_reward_that_follows_the_policy_is_scored_by_the_weights_that_sampled(
    services: Any, make_config: Make, stats: ServiceStats, monkeypatch: pytest.MonkeyPatch, follows: str
) -> None:
    asked: list[int | None] = []
    score = services.math.score

    async def noted(samples: Any, *, min_version: int | None = None, **rest: Any) -> Any:
        asked.append(min_version)
        return await score(samples, min_version=min_version, **rest)

    monkeypatch.setattr(services.math, "score", noted)
    services.rollout.version_served = 3
    config = make_config(f"rewards.0.follows_policy={follows}")
    with Rollouts(services.clients, config, stats, policy_version=3) as rollouts:
        rollouts.all_groups(list(_asks(2, oldest=3)))
    assert asked == ([3, 3] if follows == "true" else [None, None])
