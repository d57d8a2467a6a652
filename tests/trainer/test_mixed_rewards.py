"""A recipe's rewards are those of `guerdon.rewards`: one file gives the client and the trainer the same numbers."""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guerdon.errors import Unauthorized
from guerdon.rewards import RewardPart, Rewards
from guerdon.testing import StubService
from guerdon.types import GenerateResult, GenerateSample, Result, Rollout, Sample, Sampling, Status, failed
from guerdon_trainer.config import RewardConfig, RunConfig
from guerdon_trainer.config.errors import RecipeError
from guerdon_trainer.connections import connect
from guerdon_trainer.groups import Ask, Group, judged
from guerdon_trainer.questions import Question
from guerdon_trainer.rollouts import Rollouts
from guerdon_trainer.service_stats import ServiceStats

Make = Callable[..., RunConfig]

#: What one service says of one response: a value, a status, or a time limit that the sample itself ran into.
SAID = st.one_of(
    st.sampled_from([0.0, 0.25, 1.0, -1.0]),
    st.sampled_from(
        ["invalid_input", "timeout", "began_timeout", "overloaded", "unavailable", "internal_error"]
    ),
)
PARTS = 3


def result_of(said: float | str) -> Result:
    match said:
        case float():
            return Result(status=Status.OK, value=said)
        case "began_timeout":
            return Result(status=Status.TIMEOUT, reason="over 2 s", scorer="stub", exec_ms=2000.0)
        case _:
            return failed(Status(said), "as told")


@pytest.fixture(scope="module")
def stubs() -> Iterator[list[StubService]]:
    """Services that say of a response what the response tells each of them to; the last one stands in as backup."""

    def place(number: int) -> Callable[[Sample], Result]:
        return lambda sample: result_of(json.loads(sample.response or "")[number])

    services = [StubService(place(number)) for number in range(PARTS + 1)]
    try:
        yield [service.__enter__() for service in services]
    finally:
        for service in services:
            service.__exit__(None, None, None)


@st.composite
def parts(draw: st.DrawFn) -> list[dict[str, Any]]:
    optional = {
        "gate": st.sampled_from([0.5, 1.0]),
        "counts_as": st.dictionaries(
            st.sampled_from(["timeout", "invalid_input"]), st.sampled_from([0.0, -0.5])
        ),
        "backup": st.just({}),
    }
    weights = st.sampled_from([0.0, 0.1, 1.0, -2.0])
    drawn = draw(
        st.lists(st.fixed_dictionaries({"weight": weights}, optional=optional), min_size=1, max_size=PARTS)
    )
    drawn[-1]["weight"] = drawn[-1]["weight"] or 1.0  # a recipe whose weights are all 0 is refused
    return drawn


class Scripted:
    """A policy that writes what it is told."""

    def __init__(self, responses: Sequence[str]) -> None:
        self._responses = responses

    async def generate(
        self, samples: Sequence[GenerateSample], sampling: Sampling, **_: Any
    ) -> list[GenerateResult]:
        rollouts = [
            Rollout(response=text, token_ids=[1], logprobs=[-0.5], finish_reason="stop", model_version=0)
            for text in self._responses
        ]
        return [
            GenerateResult(id=sample.id, status=Status.OK, rollouts=rollouts, prompt_token_ids=[1])
            for sample in samples
        ]

    async def aclose(self) -> None:
        pass


def trained(config: RunConfig, responses: Sequence[str]) -> Group:
    clients: dict[str, Any] = {**connect(config, "redis://127.0.0.1:1"), "rollout": Scripted(responses)}
    with Rollouts(clients, config, ServiceStats()) as rollouts:
        question = Question(id="q", prompt="1+2=", references=["3"])
        return rollouts.all_groups([Ask(0, question, Sampling(n=len(responses)), 0)])[0]


async def scored(file: Path, responses: Sequence[str]) -> list[Result]:
    async with Rewards.from_yaml(file, retries=0) as rewards:
        return await rewards.score([Sample(response=text) for text in responses])


@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(parts(), st.lists(st.lists(SAID, min_size=PARTS + 1, max_size=PARTS + 1), min_size=6, max_size=12))
def test_the_same_file_gives_client_and_trainer_the_same_numbers(
    stubs: list[StubService],
    unit_recipe: dict[str, Any],
    tmp_path: Path,
    drawn: list[dict[str, Any]],
    said: list[list[float | str]],
) -> None:
    backup = {"backup": {"url": stubs[PARTS].url}}
    entries = [
        {"name": f"part{number}", "url": stubs[number].url, **one, **(backup if "backup" in one else {})}
        for number, one in enumerate(drawn)
    ]
    file = tmp_path / "rewards.yaml"
    file.write_text(yaml.safe_dump({"rewards": entries}))
    responses = [json.dumps(one) for one in said]
    config = RunConfig.model_validate(
        {
            **unit_recipe,
            "name": "unit",
            "rewards": yaml.safe_load(file.read_text())["rewards"],
            "correctness": entries[-1]["name"],
            "process_reward": None,
            "advantage": {"name": "grpo"},
            "loss": {"name": "gspo"},
            "filter": None,
            "failures": {"attempts": 1, "window": 10_000},
        }
    )
    client = asyncio.run(scored(file, responses))
    group = trained(config, responses)
    assert [response.reward for response in group.responses] == [result.value for result in client]
    assert all((result.status is Status.OK) == (result.value is not None) for result in client)


def test_a_recipe_takes_every_field_of_a_file() -> None:
    assert RewardPart.model_fields.keys() <= RewardConfig.model_fields.keys()


def test_a_service_at_a_url_gets_its_own_token_or_the_common_one(
    make_config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        StubService(lambda _: 1.0, token="common") as first,
        StubService(lambda _: 2.0, token="own") as other,
    ):
        entries = [
            {"name": "a", "url": first.url},
            {"name": "b", "url": other.url, "token_env": "STUB_TOKEN"},
        ]
        plain = ("process_reward=null", "advantage={name: rloo}", "loss={name: gspo}", "failures.attempts=1")
        config = make_config(f"rewards={json.dumps(entries)}", *plain)
        monkeypatch.setenv("GUERDON_TOKEN", "common")
        with pytest.raises(
            RecipeError, match=r"^b: token_env: the environment variable STUB_TOKEN is not set$"
        ):
            connect(config, "redis://127.0.0.1:1")
        monkeypatch.setenv("STUB_TOKEN", "own")
        assert trained(config, ["x"]).responses[0].reward == 3.0
        monkeypatch.setenv("STUB_TOKEN", "another")
        with pytest.raises(Unauthorized, match=r"^b: a bearer token is required"):
            trained(config, ["x"])
        bad = make_config("rewards=[{name: a, url: 'ftp://host'}]", *plain)
        with pytest.raises(RecipeError, match=r"^a: url: scheme 'ftp' is none of"):
            connect(bad, "redis://127.0.0.1:1")


GATED = (
    "rewards=[{name: format, service: rules, weight: 0.1, gate: 1}, {service: math, counts_as: {timeout: 0}}]",
    "correctness=math",
    "process_reward=null",
    "advantage={name: rloo}",
    "loss={name: gspo}",
)


@pytest.mark.parametrize(
    ("format", "math", "reward", "outcome"),
    [
        (1.0, 1.0, 1.1, 1.0),
        (1.0, "began_timeout", 0.1, 0.0),
        (1.0, "timeout", None, None),  # it waited too long somewhere: that says nothing about the response
        (0.5, None, 0.05, 0.0),  # what the gate stops is not right
        ("unavailable", None, None, None),  # the gate itself is not known
    ],
)
def test_format_before_correctness(
    make_config: Make,
    format: float | str,
    math: float | str | None,
    reward: float | None,
    outcome: float | None,
) -> None:
    rollout = Rollout(response="", token_ids=[1], logprobs=[0.0], finish_reason="stop", model_version=0)
    results = [result_of(format), None if math is None else result_of(math)]
    response = judged(make_config(*GATED), "0/0", rollout, results)
    assert response.reward == (None if reward is None else pytest.approx(reward))
    assert response.outcome == outcome


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("correctness=null",), "the first entry of rewards, 'format', has a gate: say in correctness which"),
        (("correctness=maths",), "correctness 'maths' is no entry of rewards with role outcome"),
        (("rewards.0.name=math",), "two rewards have the same name: math, math"),
        (("rewards.0.name=rollout",), "reward 'rollout' has the name of another service"),
        (("rewards.1.counts_as={overloaded: 0}",), "'rewards.1.counts_as.overloaded"),
        (("rewards.0.backup={options: {}}",), "'rewards.0.backup': give a service or a url"),
        (("rewards.0.token_env=MATH_TOKEN",), "'rewards.0': token_env belongs to a url"),
        (
            ("rewards=[{service: math}, {service: prm, role: process, gate: 1}]",),
            "'rewards.1': role process goes",
        ),
    ],
)
def test_rewards_that_cannot_be_told_apart_are_refused(
    make_config: Make, overrides: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(RecipeError) as error:
        make_config(*GATED, *overrides)
    assert str(error.value).startswith(sentence)
