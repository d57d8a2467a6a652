"""AReaL's contract, as of 1.0.4 (1c17804): a synchronous function in worker processes, 15 seconds, 4 attempts, then 0.

`areal/api/reward_api.py` runs `reward_fn(prompt, completions, prompt_ids, completion_ids, **row)` in a
ProcessPoolExecutor; its own timeout counts 0, an exception of the last attempt is raised. Its wrapper runs here as it
is where `make peers` has installed it.
"""

import inspect
import logging
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from types import ModuleType
from typing import Any

import pytest

from guerdon.errors import GuerdonError, Unavailable
from guerdon.integrations import areal
from guerdon.testing import StubService

#: AReaL's own, after which it counts 0.
AREAL_TIMEOUT_S = 15.0


def test_what_areal_asks_of_a_reward_function() -> None:
    assert not inspect.iscoroutinefunction(areal.reward)
    assert pickle.loads(pickle.dumps(areal.reward)) is areal.reward
    assert areal._MOST_S < AREAL_TIMEOUT_S


@pytest.mark.parametrize("word", ["timeout", "overloaded", "unavailable", "internal", "invalid"])
def test_a_failure_is_raised(stub: StubService, word: str) -> None:
    with pytest.raises(GuerdonError, match=word):
        areal.reward("1+1", word, answer="2")


def test_a_service_that_is_gone_is_raised(stub: StubService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUERDON_URL", "http://127.0.0.1:1")
    with pytest.raises(Unavailable):
        areal.reward("1+1", "2", answer="2")


async def test_areals_own_wrapper(peers: Any, stub: StubService) -> None:
    logs = ModuleType("areal.utils.logging")
    vars(logs)["getLogger"] = logging.getLogger
    api = peers("areal.api.reward_api", bare=("areal", "areal.api", "areal.utils"), absent=(logs,))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        wrapped = api.AsyncRewardWrapper(areal.reward, timeout_seconds=10 * AREAL_TIMEOUT_S, max_workers=1)
        # Its own processes are forked, which Python 3.12 warns of in a process with threads.
        wrapped._executors[1].shutdown()
        wrapped._executors[1] = executor
        asked: dict[str, Any] = {"prompt_ids": [1], "completion_ids": [2], "answer": "2"}
        assert await wrapped("1+1", "It is 2<|im_end|>", **asked) == 1.0
        assert await wrapped("1+1", "3", **asked) == 0.0
        for word in ("timeout", "overloaded", "unavailable", "internal", "invalid"):
            with pytest.raises(GuerdonError, match=word):
                await wrapped("1+1", word, **asked)
        wrapped._executors.clear()
