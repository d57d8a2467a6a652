"""OpenRLHF's contract, as of 0.11.2: its client calls a file's `reward_func` with lists of one, in a thread.

The package pins DeepSpeed, FlashAttention and Ray. Its client (`openrlhf/utils/agent.py`) loads the file by its path,
awaits `asyncio.to_thread(reward_func, queries, prompts, labels)`, and takes `rewards`, `scores` (or `rewards`) and
`extra_logs`; an exception is logged at level INFO and leaves the reward None.
"""

import asyncio
import importlib.util
import logging
from types import ModuleType

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
    assert set(info["extra_logs"]) == {"reward_valid"}
    [request] = stub.requests
    assert isinstance(request, ScoreRequest)
    assert (request.samples[0].response, request.samples[0].references) == ("It is 2", ["2"])


@pytest.mark.parametrize("word", ["timeout", "overloaded", "unavailable", "internal", "invalid"])
def test_a_failure_is_raised_and_logged_as_an_error(
    stub: StubService, word: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(GuerdonError, match="no reward"), caplog.at_level(logging.ERROR):
        loaded().reward_func(["q" + word], ["q"], ["2"])
    assert "OpenRLHF gets no reward: no reward" in caplog.text
