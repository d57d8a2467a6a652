"""OpenRLHF's contract, as of 0.11.2: its client calls a file's `reward_func` with lists of one, in a thread.

The package pins DeepSpeed, FlashAttention and Ray. Its client (`openrlhf/utils/agent.py`), which asks a URL or loads
the file by its path, runs here as it is where `make peers` has installed it: an exception leaves the reward None.
"""

import asyncio
import importlib.util
import logging
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from guerdon.errors import GuerdonError
from guerdon.integrations import openrlhf
from guerdon.testing import StubService
from guerdon.types import ScoreRequest


def loaded() -> ModuleType:
    """The file, as OpenRLHF loads it."""
    assert openrlhf.__file__ is not None
    assert openrlhf.__file__.endswith(".py")
    spec = importlib.util.spec_from_file_location("reward_func", openrlhf.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_the_file_form(stub: StubService) -> None:
    prompt = "<|im_start|>user\n1+1<|im_end|>\n<|im_start|>assistant\n"
    info = await asyncio.to_thread(loaded().reward_func, [prompt + "It is 2<|im_end|>"], [prompt], ["2"])
    assert torch.equal(info["rewards"], torch.tensor([1.0]))
    assert torch.equal(info["scores"], torch.tensor([1.0]))
    stub.score = lambda _: 5.0
    more = await asyncio.to_thread(loaded().reward_func, [prompt + "2"], [prompt], ["2"])
    # Dynamic filtering wants scores in [0, 1], as the route gives them.
    assert (more["rewards"].item(), more["scores"].item()) == (5.0, 1.0)
    assert set(info["extra_logs"]) == {"reward_valid"}
    request = stub.requests[0]
    assert isinstance(request, ScoreRequest)
    assert (request.samples[0].response, request.samples[0].references) == ("It is 2", ["2"])


@pytest.mark.parametrize("word", ["timeout", "overloaded", "unavailable", "internal", "invalid"])
def test_a_failure_is_raised_and_logged_as_an_error(
    stub: StubService, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(GuerdonError, match="no reward"), caplog.at_level(logging.ERROR):
        loaded().reward_func(["q" + word], ["q"], ["2"])
    assert "OpenRLHF gets no reward: no reward" in caplog.text
    with pytest.raises(GuerdonError, match="references"), caplog.at_level(logging.ERROR):
        loaded().reward_func(["q2"], ["q"], [b"2"])
    assert "OpenRLHF gets no reward: references: must be text, not bytes" in caplog.text


@pytest.fixture
def agent(peers: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """OpenRLHF's own client of rewards."""
    module = peers("openrlhf.utils.agent", bare=("openrlhf", "openrlhf.utils"))
    # Its pause between five attempts, of a second.
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": no_pause}))
    return module


async def no_pause(_: float) -> None:
    """Nothing."""


class Engine:
    """A generation engine: the bytes of one text, whatever it is asked."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def generate(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(
            outputs=[
                SimpleNamespace(token_ids=list(self._text.encode()), finish_reason="stop", logprobs=None)
            ]
        )


class ByteTokenizer:
    """A token per byte."""

    def __call__(self, text: str, **_: Any) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor([list(text.encode())])}

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return bytes(ids).decode()


async def rolled_out(agent: Any, url: str | list[str], text: str) -> dict[str, Any]:
    """What OpenRLHF makes of one response and where its rewards come from."""
    executor = agent.SingleTurnAgentExecutor(url)
    sampling = SimpleNamespace(max_tokens=64, logprobs=None)
    return await executor.execute("1+1=", "2", sampling, 128, ByteTokenizer(), Engine(text))


async def test_openrlhfs_own_client_of_a_file(agent: Any, stub: StubService) -> None:
    output = await rolled_out(agent, str(openrlhf.__file__), "It is 2</s>")
    assert (output["reward"].item(), output["scores"].item()) == (1.0, 1.0)
    for word in ("timeout", "overloaded", "unavailable", "internal", "invalid"):
        output = await rolled_out(agent, str(openrlhf.__file__), word)
        # It ends the run; a number would train it.
        assert (output["reward"], output["scores"]) == (None, None)


async def test_openrlhfs_own_client_of_a_url(agent: Any, judge_url: str) -> None:
    # One of two URLs gets the sample, in turn.
    for urls in (f"{judge_url}/get_reward", [f"{judge_url}/get_reward"] * 2):
        output = await rolled_out(agent, urls, "It is 2</s>")
        assert (output["reward"], output["scores"]) == ([1.0], [1.0])
        assert (await rolled_out(agent, urls, "3"))["reward"] == [0.0]
    for word in ("timeout", "overloaded", "unavailable", "internal", "invalid"):
        output = await rolled_out(agent, f"{judge_url}/get_reward", word)
        assert (output["reward"], output["scores"]) == (None, None)
