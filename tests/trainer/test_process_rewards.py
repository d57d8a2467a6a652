"""A process reward model with replicas: who learns, who scores, and by which version."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from guerdon.errors import Unavailable
from guerdon.types import Options, Result, Sample, Status
from guerdon_trainer.config import RecipeError, RunConfig, load_recipe
from guerdon_trainer.connections import connect
from guerdon_trainer.groups import Group, RolloutError
from guerdon_trainer.rollouts import Rollouts
from guerdon_trainer.service_stats import ServiceStats

Make = Callable[..., RunConfig]
REPLICAS = "process_reward.replicas={service: process_reward_replica}"
NAME = "process_reward/replicas"


class FakeReplicas:
    """Gives every token the number of the version that it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int | None, list[str | None]]] = []
        #: What it is behind or ahead by, attempt by attempt.
        self.off: list[int] = []
        self.reference = 0
        self.fails: Exception | None = None
        self.version = 0
        self.options: list[Options | None] = []

    async def score(
        self,
        samples: Sequence[Sample],
        *,
        options: Options | None = None,
        min_version: int | None = None,
        timeout_s: float | None = None,
        key: str | None = None,
    ) -> list[Result]:
        self.options.append(options)
        self.asked.append((min_version, [sample.id for sample in samples]))
        if self.fails is not None:
            raise self.fails
        version = (self.version if min_version is None else min_version) + (
            self.off.pop(0) if self.off else 0
        )
        return [
            Result(
                id=sample.id,
                status=Status.OK,
                value=float(version),
                token_rewards=[float(version)] * len(sample.response_token_ids),
                token_ids=sample.response_token_ids,
                model_version=version,
                reference_version=self.reference,
            )
            for sample in samples
        ]

    async def aclose(self) -> None:
        pass


@pytest.fixture
def services(make_services: Any, tmp_path: Path) -> Any:
    return make_services(tmp_path)


@pytest.fixture
def group(make_group: Any) -> Group:
    return make_group(0, {"3": 1.0, "47": 0.0, "+": None})


def _rewarded(
    services: Any, replicas: FakeReplicas, config: RunConfig, group: Group, *base_versions: int
) -> tuple[list[dict[str, list[float]]], dict[str, Any]]:
    stats = ServiceStats()
    clients: dict[str, Any] = {**services.clients, NAME: replicas}
    with Rollouts(clients, config, stats) as rollouts:
        tokens = [
            rollouts.process_rewards([group], request_id=f"step {base}", base_version=base).tokens
            for base in base_versions
        ]
    return tokens, {name: one["final"] for name, one in stats.to_dict().items() if one["final"]}


@pytest.mark.parametrize(("order", "scored_by"), [("before", [1.0, 2.0]), ("after", [0.0, 1.0])])
def test_the_order_says_which_version_scores(
    services: Any, group: Group, make_config: Make, order: str, scored_by: list[float]
) -> None:
    replicas = FakeReplicas()
    config = make_config(REPLICAS, f"process_reward.order={order}")
    tokens, counts = _rewarded(services, replicas, config, group, 0, 1)
    # "after" asks of the learner what costs it no forward of its own, whatever the recipe's order.
    assert [request.order for request in services.process_reward.requests] == ["after", "after"]
    assert [request.base_version for request in services.process_reward.requests] == [0, 1]
    assert replicas.asked == [(int(version), ["0/0", "0/1"]) for version in scored_by]
    assert counts == {NAME: {"ok": 4}}
    if order == "before":
        assert tokens == [{"0/0": [version], "0/1": [version] * 2} for version in scored_by]
    # The fake learner tells no version of its reference, so that with "after" its own scores stand.


def test_a_score_by_another_version_is_asked_for_again(
    services: Any, group: Group, make_config: Make
) -> None:
    replicas = FakeReplicas()
    replicas.off = [2, 1]
    tokens, counts = _rewarded(services, replicas, make_config(REPLICAS), group, 0)
    assert tokens == [{"0/0": [1.0], "0/1": [1.0, 1.0]}]
    assert len(replicas.asked) == 3
    assert counts == {NAME: {"ok": 2}}


@pytest.mark.parametrize("order", ["before", "after"])
def test_without_replicas_the_learner_scores(
    services: Any, group: Group, make_config: Make, order: str
) -> None:
    replicas = FakeReplicas()
    replicas.fails = Unavailable("nobody there")
    config = make_config(REPLICAS, "failures.attempts=2", f"process_reward.order={order}")
    [tokens], counts = _rewarded(services, replicas, config, group, 0)
    # As the learner's version 1 scores: see `FakeProcessReward`.
    ids = {one.id: one.rollout.token_ids for one in group.responses[:2]}
    assert tokens == {
        id: [((7 * token + 3 + at) % 11 - 5) / 100 for at, token in enumerate(row)] for id, row in ids.items()
    }
    assert len(replicas.asked) == 2
    assert counts[NAME] == {"unavailable": 2}


@pytest.mark.parametrize("order", ["before", "after"])
def test_numbers_that_an_earlier_attempt_used_are_scored_by_the_learner(
    services: Any, group: Group, make_config: Make, order: str
) -> None:
    replicas = FakeReplicas()
    services.process_reward.version = 3
    config = make_config(REPLICAS, f"process_reward.order={order}")
    _rewarded(services, replicas, config, group, 1, 2, 3, 4)
    # Version 3 was made anew from 2: a replica may have the old one. The first number that is new is 4.
    asked = [4, 5] if order == "before" else [4]
    assert replicas.asked == [(version, ["0/0", "0/1"]) for version in asked]


def test_an_attempt_that_goes_on_where_the_last_one_ended_has_replicas_at_once(
    services: Any, group: Group, make_config: Make
) -> None:
    replicas = FakeReplicas()
    services.process_reward.version = 3
    _rewarded(services, replicas, make_config(REPLICAS, "process_reward.order=after"), group, 3)
    assert replicas.asked == [(3, ["0/0", "0/1"])]


def test_a_learner_that_is_away_as_an_attempt_begins_is_waited_for(
    services: Any, group: Group, make_config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas = FakeReplicas()
    versions, failures = services.process_reward.versions, [Unavailable("it is being restarted")] * 2

    async def away_at_first() -> Any:
        if failures:
            raise failures.pop()
        return await versions()

    monkeypatch.setattr(services.process_reward, "versions", away_at_first)
    _rewarded(services, replicas, make_config(REPLICAS, "failures.pause_s=0.01"), group, 0)
    assert replicas.asked == [(1, ["0/0", "0/1"])]


def test_a_learner_that_does_not_say_what_it_made_has_no_replicas_asked(
    services: Any, group: Group, make_config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas, update = FakeReplicas(), services.process_reward.update

    async def silent(*args: Any, **named: Any) -> Any:
        return (await update(*args, **named)).model_copy(update={"version_after": None})

    monkeypatch.setattr(services.process_reward, "update", silent)
    with pytest.raises(RolloutError, match="process_reward does not say which version its update made"):
        _rewarded(services, replicas, make_config(REPLICAS), group, 0)
    assert replicas.asked == []


@pytest.mark.parametrize("settings", [(REPLICAS,), ("process_reward.order=none",)])
def test_norm_batch_is_over_the_whole_step(
    services: Any, group: Group, make_config: Make, settings: tuple[str, ...]
) -> None:
    config = make_config("rewards.1.options={norm: batch, beta: 0.1}", *settings)
    replicas = FakeReplicas()
    replicas.version = 3
    clients = {**services.clients, "process_reward": replicas} if "none" in settings[0] else services.clients
    stats = ServiceStats()
    every: dict[str, Any] = {**clients, NAME: replicas}
    with Rollouts(every, config, stats) as rollouts:
        tokens = rollouts.process_rewards([group], request_id="step", base_version=0).tokens
    # Every token has 1 (3 without an order), and the longest response two of them: 1 / 2.
    assert tokens == {"0/0": pytest.approx([0.5], abs=1e-6), "0/1": pytest.approx([0.5, 0.5], abs=1e-6)}
    assert replicas.options == [{"beta": 0.1}]
    assert all("norm" not in request.options for request in services.process_reward.requests)


LEARNER = "{model: /m, weights_dir: /w}"


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("process_reward.order=none",), "process_reward.replicas: with order none nobody learns"),
        (
            ("process_reward.replicas.options={beta: 1}",),
            "process_reward.replicas.options: replicas get those",
        ),
        (
            ("process_reward.replicas={service: process_reward}",),
            "process_reward.replicas is the learner itself, 'process_reward'",
        ),
        (
            ("rewards.1.url=http://a", "process_reward.replicas={url: http://a}"),
            "process_reward.replicas is the learner itself",
        ),
        (
            (
                f"services.process_reward.settings={LEARNER}",
                "services.process_reward_replica.settings={model: /m2, weights_dir: /w}",
            ),
            "services: the learner has model '/m' and its replicas '/m2'",
        ),
        (
            (
                f"services.process_reward.settings={LEARNER}",
                "services.process_reward_replica.settings={model: /m, weights_dir: /m}",
            ),
            "services: the replicas' weights_dir '/m' is none that the learner publishes to",
        ),
        (
            (
                f"services.process_reward.settings={LEARNER}",
                "services.process_reward_replica.settings={model: /m, weights_dir: /w, beta: 1}",
            ),
            "services: leave beta out of the replicas' settings",
        ),
        (
            (
                f"services.process_reward.settings={LEARNER}",
                # Under a name of its own, behind the replicas' queue.
                "services.second={queue: process_reward_replica, settings: {model: /m, weights_dir: /x}}",
            ),
            "services: the replicas' weights_dir '/x' is none that the learner publishes to",
        ),
    ],
)
def test_replicas_that_would_score_otherwise_are_refused(
    make_config: Make, overrides: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(RecipeError) as error:
        make_config(REPLICAS, *overrides)
    assert str(error.value).startswith(sentence)


def test_replicas_may_follow_the_learner_by_its_mirror(make_config: Make) -> None:
    config = make_config(
        REPLICAS,
        "services.process_reward.settings={model: /m, weights_dir: /w, mirror_url: 'file:///x'}",
        "services.process_reward_replica.settings={model: /m, weights_dir: 'file:///x'}",
    )
    assert config.sources[NAME].service == "process_reward_replica"
    assert config.spare_sources == {}


def test_only_guerdon_run_asks_services_that_the_rewards_do_not_name() -> None:
    config = load_recipe("quickstart")
    asked = {"math", "process_reward", "rollout", "rules"}
    assert connect(config, "redis://127.0.0.1:1").keys() == asked
    assert connect(config, "redis://127.0.0.1:1", spare=True).keys() == asked | {"code", "reference_reward"}
