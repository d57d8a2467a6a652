"""Settings of integrations, from arguments, a trainer's configuration or the environment: no mistake is passed over."""

import math
from pathlib import Path
from typing import Any

import pytest

from guerdon.errors import InvalidRequest
from guerdon.integrations.target import DEFAULT_URL, columns_from_environment, target, target_in
from guerdon.types import Sample

NAMES = ("URL", "SERVICE", "OPTIONS", "REWARDS", "TIMEOUT_S", "RETRIES", "COLUMNS")


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment of the tests says."""
    for name in NAMES:
        monkeypatch.delenv(f"GUERDON_{name}", raising=False)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("TIMEOUT_S", "nan"),
        ("TIMEOUT_S", "soon"),
        ("TIMEOUT_S", "-1"),
        ("RETRIES", "1.5"),
        ("RETRIES", "-1"),
        ("OPTIONS", "[]"),
        ("OPTIONS", "{"),
        ("COLUMNS", '{"reference": "gold"}'),
    ],
)
def test_a_wrong_variable_is_named(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"GUERDON_{name}", text)
    with pytest.raises(InvalidRequest, match=f"GUERDON_{name}: "):
        _ = target(), columns_from_environment()


def test_an_empty_variable_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = target()
    for name in NAMES:
        monkeypatch.setenv(f"GUERDON_{name}", "")
    assert (target(), columns_from_environment().references) == (bare, None)
    assert bare.url == DEFAULT_URL


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"timeout_s": "soon"}, "timeout_s"),
        ({"timeout_s": math.nan}, "timeout_s"),
        ({"options": {"a": math.nan}}, "options: a"),
        ({"options": {"a": object()}}, "options"),
        ({"options": ["a"]}, "options"),
        ({"url": "http://127.0.0.1:1", "rewards": "a.yaml"}, r"rewards: a\.yaml"),
        ({"options": {"a": 1}, "rewards": "a.yaml"}, r"rewards: a\.yaml"),
        ({"service": "math", "rewards": "a.yaml"}, r"rewards: a\.yaml"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest, match=field):
        target(**arguments)


def test_a_section_of_a_trainers_configuration() -> None:
    config = {"url": "http://127.0.0.1:1", "num_workers": 4, "timeout_s": None}
    asked = target_in(config, default_s=7.0)
    assert (asked.url, asked.timeout_s) == ("http://127.0.0.1:1", 7.0)
    for name, meant in (("time_out_s", "timeout_s"), ("option", "options"), ("fallbak", "fallback")):
        with pytest.raises(InvalidRequest, match=f"{name}: unknown; did you mean {meant}"):
            target_in({**config, name: 1}, default_s=7.0, beside=("fallback",))


def test_a_file_of_rewards_that_is_none(tmp_path: Path) -> None:
    file = tmp_path / "rewards.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidRequest, match="not YAML"):
        target(rewards=file).results_now([Sample(response="2")])
