"""verifiers' contract, as of 0.4.0, and that of its Rubrics, as of 0.1.14.

The package brings a stack of its own (anthropic, openai, prime-*). Its `Task` runs here as it is where `make peers` has
installed it: it loads a plugged function by its path, calls it by the names of its parameters, out of `task`, `trace`
and, unless it is wanted without a default, `runtime`, and makes a TaskError of what it raises. The Rubric of older
versions catches what a function raises and counts 0.0.
"""

import inspect
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from guerdon.errors import GuerdonError
from guerdon.integrations.verifiers import reward, rubric
from guerdon.testing import StubService
from guerdon.types import ScoreRequest


class Task(SimpleNamespace):
    """A frozen pydantic model of verifiers', as far as it is read."""

    def model_dump(self, mode: str) -> dict[str, Any]:
        return {"prompt": self.prompt_text, "answer": "2", "timeout": {"scoring": None}}


TASK = Task(prompt_text="1+1")


def test_what_verifiers_asks_of_a_reward() -> None:
    assert inspect.iscoroutinefunction(reward)
    # One that wants `runtime` is not called when traces are scored again without one.
    assert set(inspect.signature(reward).parameters) == {"task", "trace"}


async def test_a_trace(stub: StubService, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await reward(task=TASK, trace=SimpleNamespace(last_reply="2")) == 1.0
    assert await reward(task=TASK, trace=SimpleNamespace(last_reply="3")) == 0.0
    request = stub.requests[0]
    assert isinstance(request, ScoreRequest)
    assert (request.samples[0].prompt, request.samples[0].references) == ("1+1", ["2"])
    monkeypatch.setenv("GUERDON_COLUMNS", '{"references": "gold"}')
    with pytest.raises(GuerdonError, match="no column 'gold'"):
        await reward(task=TASK, trace=SimpleNamespace(last_reply="2"))


@pytest.mark.parametrize("word", ["timeout", "overloaded", "unavailable", "internal", "invalid"])
async def test_a_failure_is_raised(stub: StubService, word: str) -> None:
    with pytest.raises(GuerdonError, match=word):
        await reward(task=TASK, trace=SimpleNamespace(last_reply=word))


class Rubric:
    """verifiers 0.1.14's, in essence: what a function raises is logged, and counts 0.0."""

    def __init__(self, funcs: list[Any], weights: list[float]) -> None:
        self.funcs, self.weights = funcs, weights

    def score_objects(self, state: Any) -> dict[str, Any]:
        return {name: state.get(name) for name in ("prompt", "completion", "answer", "info")} | {
            "state": state
        }

    async def _call_individual_reward_func(self, func: Any, state: Any) -> float:
        try:
            return float(await func(**self.score_objects(state)))
        except Exception:
            return 0.0

    async def score_rollout(self, state: Any) -> None:
        scores = [await self._call_individual_reward_func(func, state) for func in self.funcs]
        state["reward"] = sum(score * weight for score, weight in zip(scores, self.weights, strict=True))


async def test_the_rubric_lets_failures_pass(stub: StubService, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("verifiers")
    module.Rubric = Rubric  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "verifiers", module)
    scoring = rubric(stub.url, weight=0.5)
    assert isinstance(scoring, Rubric)
    state = {
        "prompt": [{"role": "user", "content": "1+1"}],
        "completion": [{"role": "assistant", "content": "2"}],
        "answer": "2",
        "info": {},
    }
    await scoring.score_rollout(state)
    assert state["reward"] == 0.5
    del state["reward"]
    state["completion"] = [{"role": "assistant", "content": "unavailable"}]
    with pytest.raises(GuerdonError, match="unavailable"):
        await scoring.score_rollout(state)
    assert "reward" not in state


#: What verifiers' tasks import beside what they score with.
NOT_SCORED_WITH = (
    "openai",
    "verifiers.v1.clients",
    "verifiers.v1.configs.env",
    "verifiers.v1.configs.taskset",
    "verifiers.v1.env",
    "verifiers.v1.envs",
    "verifiers.v1.envs.single_agent",
    "verifiers.v1.harness",
    "verifiers.v1.taskset",
)


class Trace(SimpleNamespace):
    """A trace of verifiers', as far as a task that scores sees it."""

    def __init__(self, reply: str) -> None:
        super().__init__(last_reply=reply, metrics={}, rewards={})

    def record_reward(self, name: str, value: float, weight: float) -> None:
        self.rewards[name] = (value, weight)


async def test_verifiers_own_task(peers: Any, stub: StubService) -> None:
    packages = ("verifiers", "verifiers.v1", "verifiers.v1.configs", "verifiers.v1.utils")
    judges = ModuleType("verifiers.v1.judge")
    vars(judges).update(Judge=object, judge_config_cls=None)
    module = peers("verifiers.v1.task", bare=packages, absent=(*NOT_SCORED_WITH, judges))
    plugged = {"fn": "guerdon.integrations.verifiers:reward", "weight": 0.5}
    config = module.TaskConfig(rewards={"guerdon": plugged})
    data = module.WireTaskData(prompt="1+1", answer="2")
    task = module.Task(data, config)
    trace = Trace("2")
    await task.score(trace)
    assert trace.rewards == {"guerdon": (1.0, 0.5)}
    for word in ("timeout", "overloaded", "unavailable", "internal", "invalid"):
        trace = Trace(word)
        with pytest.raises(module.TaskError, match=f"{word}, said the test"):
            await task.score(trace)
        # The trace has an error, and no number.
        assert trace.rewards == {"guerdon": None}
