"""SkyRL's contract, with skyrl-gym 0.4.0 where `make peers` has installed it, else with its base class written down."""

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from guerdon.errors import GuerdonError
from guerdon.testing import StubService
from guerdon.types import ScoreRequest

ROW = {"reward_spec": {"method": "rule", "ground_truth": "2"}, "data_source": "x"}


class BaseTextEnv:
    """skyrl-gym 0.4.0's, as far as an environment of one turn sees it."""

    def __init__(self) -> None:
        self.turns, self.max_turns = 0, 1


@pytest.fixture(params=["real", "recorded"])
def skyrl(
    request: pytest.FixtureRequest, peers: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ModuleType]:
    """The integration beside the package, or beside what it needs of it."""
    if request.param == "real":
        peers("skyrl_gym")
    else:
        base = ModuleType("skyrl_gym.envs.base_text_env")
        base.BaseTextEnv = BaseTextEnv  # pyright: ignore[reportAttributeAccessIssue]
        base.BaseTextEnvStepOutput = dict  # pyright: ignore[reportAttributeAccessIssue]
        for name in ("skyrl_gym", "skyrl_gym.envs"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setitem(sys.modules, base.__name__, base)
    sys.modules.pop("guerdon.integrations.skyrl", None)
    yield importlib.import_module("guerdon.integrations.skyrl")
    sys.modules.pop("guerdon.integrations.skyrl", None)


def test_one_step(skyrl: ModuleType, stub: StubService) -> None:
    env = skyrl.Env({"url": stub.url}, dict(ROW))
    prompt = [{"role": "user", "content": "1+1"}]
    assert env.init(prompt) == (prompt, {})
    step = env.step("It is 2")
    assert (step["reward"], step["done"], step["observations"]) == (1.0, True, [])
    assert step["metadata"]["scorer"] == "stub"
    [request] = stub.requests
    assert isinstance(request, ScoreRequest)
    assert request.samples[0].references == ["2"]
    with pytest.raises(ValueError, match="ground_truth"):
        skyrl.Env({}, {})


@pytest.mark.parametrize("word", ["timeout", "overloaded", "unavailable", "internal", "invalid"])
def test_a_failure_is_raised(skyrl: ModuleType, stub: StubService, word: str) -> None:
    env = skyrl.Env({"url": stub.url}, dict(ROW))
    with pytest.raises(GuerdonError, match=word):
        env.step(word)


def test_registered_by_its_name(peers: Any, stub: StubService) -> None:
    skyrl_gym = peers("skyrl_gym")
    skyrl_gym.register(id="guerdon", entry_point="guerdon.integrations.skyrl:Env")
    env = skyrl_gym.make("guerdon", env_config={}, extras=dict(ROW))
    assert isinstance(env, skyrl_gym.Env)
    assert env.step("2")["reward"] == 1.0
