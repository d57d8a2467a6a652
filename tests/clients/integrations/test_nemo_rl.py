"""NeMo RL's contract, as of August 2026; the package on PyPI is a placeholder, so that its base class is written down.

`nemo_rl/environments/utils.py` makes a Ray actor of the class that a name was registered for, with one argument, the
environment's section of the configuration. `EnvironmentInterface.step` gets message logs and metadata and returns an
`EnvironmentReturn` of lists and tensors; there is no word for "no reward", and what it raises ends the run.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch

from guerdon.errors import GuerdonError
from guerdon.testing import StubService
from guerdon.types import ScoreRequest


class EnvironmentReturn(NamedTuple):
    """NeMo RL's."""

    observations: list[dict[str, str]]
    metadata: list[Any]
    next_stop_strings: list[Any]
    rewards: torch.Tensor
    terminateds: torch.Tensor
    answers: list[str | None] | None = None


class EnvironmentInterface:
    """NeMo RL's, whose methods are abstract."""


def remote(**options: Any) -> Callable[[type], type]:
    """Ray's, which makes an actor of a class."""
    assert options == {"max_restarts": -1, "max_task_retries": 0}
    return lambda actor: actor


@pytest.fixture
def nemo_rl(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The integration beside NeMo RL's classes and Ray."""
    ray, interfaces = ModuleType("ray"), ModuleType("nemo_rl.environments.interfaces")
    vars(ray).update(remote=remote)
    vars(interfaces).update(EnvironmentInterface=EnvironmentInterface, EnvironmentReturn=EnvironmentReturn)
    for module in (ray, ModuleType("nemo_rl"), ModuleType("nemo_rl.environments"), interfaces):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    sys.modules.pop("guerdon.integrations.nemo_rl", None)
    yield importlib.import_module("guerdon.integrations.nemo_rl")
    sys.modules.pop("guerdon.integrations.nemo_rl", None)


def log(text: str) -> list[dict[str, Any]]:
    """A conversation as NeMo RL keeps it, with the token ids of every turn."""
    user = {"role": "user", "content": "1+1", "token_ids": torch.tensor([1])}
    return [user, {"role": "assistant", "content": text, "token_ids": torch.tensor([2])}]


def test_a_step(nemo_rl: Any, stub: StubService) -> None:
    environment = nemo_rl.Environment({"url": stub.url, "num_workers": 4})
    metadata = [{"ground_truth": "2"}, {"ground_truth": "2", "extracted_answer": None}]
    step = environment.step([log("It is 2<|im_end|>"), log("3")], metadata)
    assert torch.equal(step.rewards, torch.tensor([1.0, 0.0]))
    assert torch.equal(step.terminateds, torch.ones(2))
    assert (step.metadata, step.next_stop_strings, len(step.observations)) == (metadata, [None] * 2, 2)
    batch, metrics = environment.global_post_process_and_metrics({"rewards": step.rewards})
    assert (batch["rewards"].tolist(), metrics) == ([1.0, 0.0], {"reward": 0.5})
    samples = [s for request in stub.requests if isinstance(request, ScoreRequest) for s in request.samples]
    assert samples[0].prompt is not None
    assert [(s.response, s.references) for s in samples] == [("It is 2", ["2"]), ("3", ["2"])]


@pytest.mark.parametrize("word", ["timeout", "overloaded", "unavailable", "internal", "invalid"])
def test_a_failure_is_raised(nemo_rl: Any, stub: StubService, word: str) -> None:
    environment = nemo_rl.Environment({"url": stub.url})
    with pytest.raises(GuerdonError, match=f"{word}, said the test"):
        environment.step([log("2"), log(word)], [{"ground_truth": "2"}] * 2)
