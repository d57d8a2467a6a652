"""NeMo Gym's contract, as of 0.7.0, which needs Python 3.13.14: its base classes are written down here.

`SimpleResourcesServer.verify` gets the row as a pydantic model and returns it with `reward`; a JudgeError becomes a
row with `mask_sample`, `failure_kind` and `failure_reason` (`nemo_gym/judge.py`).
"""

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel

from guerdon.testing import StubService
from guerdon.types import ScoreRequest


class JudgeError(Exception):
    """Gym's."""


class Row(BaseModel):
    """Gym's BaseVerifyRequest, its OpenAI types as dicts."""

    responses_create_params: dict[str, Any]
    response: dict[str, Any]


class Verified(Row):
    """Gym's BaseVerifyResponse."""

    reward: float
    mask_sample: bool = False


class Config(BaseModel):
    """Gym's BaseResourcesServerConfig."""

    name: str = "guerdon"


class SimpleResourcesServer(BaseModel):
    """Gym's, which is a pydantic model, too."""

    config: Config


@pytest.fixture
def gym(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The integration beside Gym's classes."""
    base, judge = ModuleType("nemo_gym.base_resources_server"), ModuleType("nemo_gym.judge")
    vars(base).update(
        BaseResourcesServerConfig=Config,
        BaseVerifyRequest=Row,
        BaseVerifyResponse=Verified,
        SimpleResourcesServer=SimpleResourcesServer,
    )
    vars(judge).update(JudgeError=JudgeError)
    for module in (ModuleType("nemo_gym"), base, judge):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    sys.modules.pop("guerdon.integrations.nemo_gym", None)
    yield importlib.import_module("guerdon.integrations.nemo_gym")
    sys.modules.pop("guerdon.integrations.nemo_gym", None)


def row(gym: ModuleType, text: str) -> Any:
    """A row as an agent of Gym posts it."""
    message = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }
    return gym.VerifyRequest(
        responses_create_params={"input": [{"role": "user", "content": "1+1"}]},
        response={"object": "response", "output": [{"type": "reasoning", "summary": []}, message]},
        expected_answer="2",
    )


async def test_a_row_gets_its_reward(gym: ModuleType, stub: StubService) -> None:
    server = gym.Server(config=gym.ServerConfig(url=stub.url))
    answer = (await server.verify(row(gym, "It is 2"))).model_dump()
    assert (answer["reward"], answer["mask_sample"], answer["expected_answer"]) == (1.0, False, "2")
    assert answer["response"]["output"][1]["content"][0]["text"] == "It is 2"
    [request] = stub.requests
    assert isinstance(request, ScoreRequest)
    assert (request.samples[0].response, request.samples[0].references) == ("It is 2", ["2"])


@pytest.mark.parametrize("word", ["timeout", "overloaded", "unavailable", "internal", "invalid"])
async def test_a_failure_is_gyms_own(gym: ModuleType, stub: StubService, word: str) -> None:
    server = gym.Server(config=gym.ServerConfig(url=stub.url))
    with pytest.raises(JudgeError, match=f"{word}, said the test"):
        await server.verify(row(gym, word))
