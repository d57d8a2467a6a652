"""AReaL's contract, as of 1.0.4 (1c17804): a synchronous function in worker processes, 15 seconds, 4 attempts, then 0.

AReaL is not on PyPI. `areal/api/reward_api.py` runs `reward_fn(prompt, completions, prompt_ids, completion_ids,
**row)` in a ProcessPoolExecutor; its own timeout counts 0, an exception of the last attempt is raised.
"""

import asyncio
import inspect
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import pytest

from guerdon.errors import GuerdonError, Unavailable
from guerdon.integrations import areal
from guerdon.testing import StubService

#: AReaL's own, after which it counts 0.
AREAL_TIMEOUT_S = 15.0


async def areal_calls(reward_fn: Any, **arguments: Any) -> float:
    """AReaL's AsyncRewardWrapper, without its pauses: what it returns or raises."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        for attempt in range(4):
            future = asyncio.get_running_loop().run_in_executor(
                executor,
                partial(reward_fn, **arguments),
            )
            try:
                return await asyncio.wait_for(future, 10 * AREAL_TIMEOUT_S)
            except GuerdonError:
                if attempt == 3:
                    raise
    raise AssertionError


def test_what_areal_asks_of_a_reward_function() -> None:
    assert not inspect.iscoroutinefunction(areal.reward)
    assert pickle.loads(pickle.dumps(areal.reward)) is areal.reward
    assert areal._MOST_S < AREAL_TIMEOUT_S


async def test_in_a_process_of_its_own(stub: StubService) -> None:
    asked = {"prompt": "1+1", "prompt_ids": [1], "completion_ids": [2], "answer": "2", "messages": []}
    assert await areal_calls(areal.reward, completions="It is 2<|im_end|>", **asked) == 1.0


@pytest.mark.parametrize("word", ["timeout", "overloaded", "unavailable", "internal", "invalid"])
def test_a_failure_is_raised(stub: StubService, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GuerdonError, match=word):
        areal.reward("1+1", word, answer="2")


async def test_a_service_that_is_gone_ends_the_run_instead_of_counting_0(
    stub: StubService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUERDON_URL", "http://127.0.0.1:1")
    with pytest.raises(Unavailable):
        await areal_calls(areal.reward, prompt="1+1", completions="2", answer="2")
