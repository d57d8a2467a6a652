"""verl's contract, as of 0.9.1: keyword arguments, one dict of the same keys for all, an exception ends the run.

verl itself needs Ray and pins an older transformers. Its reward loader and reward managers run here as they are, where
`make peers` has installed them, without Ray; elsewhere its side is written down: `RewardLoopManager._postprocess`
indexes the keys of the first sample in all, and `RewardManagerBase` has the two methods that `verl_process` overrides.
"""

import asyncio
import importlib
import inspect
import pickle
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from guerdon.errors import GuerdonError, Overloaded, Unavailable
from guerdon.integrations import verl
from guerdon.testing import StubService
from guerdon.types import Result, Sample, ScoreRequest, Status, failed

FAILURES = ("timeout", "overloaded", "unavailable", "internal_error", "invalid_input")


def call(solution: str, **kwargs: Any) -> Any:
    """As `NaiveRewardManager.run_single` does; `reward_kwargs` win over the rest."""
    return verl.compute_score(
        data_source="openai/gsm8k",
        solution_str=solution,
        ground_truth="2",
        extra_info={"num_turns": 1, "rollout_reward_scores": {}, "question": "1+1"},
        **kwargs,
    )


def test_what_verl_asks_of_a_reward_function() -> None:
    # `get_custom_reward_fn` loads the module by name and asks whether the function awaits.
    module = importlib.import_module("guerdon.integrations.verl")
    assert inspect.iscoroutinefunction(module.compute_score)
    # `remote`, which runs rewards in processes, forbids that.
    assert not inspect.iscoroutinefunction(module.compute_score_blocking)


async def test_every_sample_has_the_same_keys(stub: StubService) -> None:
    scores = await asyncio.gather(
        *(call(text, fallback=-1.0) for text in ("2", "3", "unavailable", "invalid"))
    )
    assert scores == [
        {"score": 1.0, "acc": 1.0, "reward_valid": 1.0},
        {"score": 0.0, "acc": 0.0, "reward_valid": 1.0},
        {"score": -1.0, "acc": -1.0, "reward_valid": 0.0},
        {"score": -1.0, "acc": -1.0, "reward_valid": 0.0},
    ]
    first = next(request for request in stub.requests if isinstance(request, ScoreRequest))
    assert (first.samples[0].prompt, first.samples[0].references) == ("1+1", ["2"])


@pytest.mark.parametrize("word", ["timeout", "overloaded", "unavailable", "internal", "invalid"])
async def test_a_failure_is_raised(stub: StubService, word: str) -> None:
    with pytest.raises(GuerdonError, match=f"{word}, said the test"):
        await call(word, url=stub.url)
    with pytest.raises(GuerdonError, match="no reward"):
        await asyncio.to_thread(verl.compute_score_blocking, "s", word, "2", {}, url=stub.url)


async def test_tests_as_the_ground_truth(stub: StubService) -> None:
    await verl.compute_score(
        "codecontests", "print(2)", '{"inputs": ["1"], "outputs": ["2"]}', None, url=stub.url
    )
    [request] = stub.requests
    assert isinstance(request, ScoreRequest)
    assert request.samples[0].references == []
    assert request.samples[0].code is not None


class RewardManagerBase:
    """The part of verl 0.9.1's that a manager sees."""

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any) -> None:
        self.config = config


@pytest.fixture
def verl_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module, beside a verl that has its base class."""
    base = ModuleType("verl.experimental.reward_loop.reward_manager.base")
    base.RewardManagerBase = RewardManagerBase  # pyright: ignore[reportAttributeAccessIssue]
    parts = base.__name__.split(".")
    for depth in range(1, len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[:depth]), ModuleType(".".join(parts[:depth])))
    monkeypatch.setitem(sys.modules, base.__name__, base)
    yield importlib.import_module("guerdon.integrations.verl_process")
    sys.modules.pop("guerdon.integrations.verl_process", None)


class Data:
    """verl's DataProto, as far as it is read."""

    def __init__(self, rows: list[dict[str, torch.Tensor]], **columns: Any) -> None:
        self.rows, self.columns = rows, {"reward_scores": {"outcome": 1.0}, **columns}
        self.batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, slice):
            return Data(self.rows[which], **self.columns)
        return SimpleNamespace(batch=self.rows[which], non_tensor_batch=self.columns)


def row(prompt: list[int], response: list[int]) -> dict[str, torch.Tensor]:
    """Prompt padded on the left to 3, response on the right to 4."""
    left, right = 3 - len(prompt), 4 - len(response)
    return {
        "prompts": torch.tensor([0] * left + prompt),
        "responses": torch.tensor(response + [0] * right),
        "attention_mask": torch.tensor([0] * left + [1] * (len(prompt) + len(response)) + [0] * right),
    }


def per_token(sample: Sample) -> Result:
    """Each token's id, halved."""
    if 9 in sample.response_token_ids:
        return failed(Status.UNAVAILABLE, "gone")
    rewards = [token / 2 for token in sample.response_token_ids]
    if 8 in sample.response_token_ids:
        return Result(status=Status.OK, value=0.0, token_rewards=[0.0], token_ids=[1])
    return Result(
        status=Status.OK, value=sum(rewards), token_rewards=rewards, token_ids=sample.response_token_ids
    )


async def test_token_rewards_on_their_tokens(stub: StubService, verl_process: ModuleType) -> None:
    stub.score = per_token
    config = SimpleNamespace(reward={"reward_kwargs": {"url": stub.url}})
    manager = verl_process.ProcessRewardManager(config, None, None)
    data = Data([row([5], [1, 2, 3]), row([5, 6, 7], [4])])
    outputs = [await manager.run_single(data[index : index + 1]) for index in range(2)]
    assert [output["reward_score"] for output in outputs] == [3.0, 2.0]
    assert outputs[0]["reward_extra_info"].keys() == outputs[1]["reward_extra_info"].keys()
    # Rewards travel between processes, as Ray pickles them.
    scores = pickle.loads(pickle.dumps([output["reward_score"] for output in outputs]))
    rewards = verl_process.ProcessRewardManager.assemble_rm_scores(data, scores)
    assert rewards.tolist() == [[0.5, 1.0, 1.5, 0.0], [2.0, 0.0, 0.0, 0.0]]
    samples = [s for request in stub.requests if isinstance(request, ScoreRequest) for s in request.samples]
    assert [(s.prompt_token_ids, s.response_token_ids, s.outcome) for s in samples] == [
        ([5], [1, 2, 3], 1.0),
        ([5, 6, 7], [4], 1.0),
    ]
    with pytest.raises(Unavailable, match="gone"):
        await manager.run_single(Data([row([5], [9])]))
    with pytest.raises(GuerdonError, match="other tokens"):
        await manager.run_single(Data([row([5], [8])]))


def test_overload_is_named() -> None:
    with pytest.raises(Overloaded, match="no reward: overloaded: full"):
        verl.scored(failed(Status.OVERLOADED, "full"), None)


@pytest.fixture
def verl_reward(peers: Any) -> ModuleType:
    """verl's own reward loader, with its reward managers beside it."""
    loop = "verl.experimental.reward_loop"
    managers = f"{loop}.reward_manager"
    packages = ("verl", "verl.utils", "verl.trainer", "verl.trainer.ppo", "verl.experimental", loop, managers)
    registry: Any = peers(f"{managers}.registry", bare=packages, absent=("ray", "omegaconf"))
    vars(sys.modules[managers]).update(
        register=registry.register, get_reward_manager_cls=registry.get_reward_manager_cls
    )
    importlib.import_module(f"{managers}.naive")
    return importlib.import_module("verl.trainer.ppo.reward")


def verl_config(url: str, **manager: Any) -> Any:
    """What the pages' lines make of verl's configuration."""
    function = {
        "path": "pkg://guerdon.integrations.verl",
        "name": "compute_score",
        "reward_kwargs": {"url": url},
    }

    class Section(dict[str, Any]):
        reward_manager = SimpleNamespace(**manager)

    return SimpleNamespace(
        reward=Section(custom_reward_function=function, reward_kwargs={"url": url, "timeout_s": 60})
    )


async def test_verls_own_loader_and_manager(verl_reward: Any, stub: StubService) -> None:
    tokenizer = SimpleNamespace(decode=lambda ids, skip_special_tokens: " ".join(map(str, ids.tolist())))
    config = verl_config(stub.url, source="register", name="naive")
    manager = verl_reward.load_reward_manager(config, tokenizer)
    columns = {"data_source": "gsm8k", "reward_model": {"ground_truth": "2"}, "extra_info": {}}
    rows = [row([5, 6], [1, 2, 3]), row([5], [7])]
    outputs = [await manager.run_single(Data([one], **columns)) for one in rows]
    assert [output["reward_score"] for output in outputs] == [1.0, 0.0]
    assert [set(output["reward_extra_info"]) for output in outputs] == [{"score", "acc", "reward_valid"}] * 2
    for status in map(Status, FAILURES):
        stub.score = lambda _, status=status: failed(status, "said the test")
        with pytest.raises(GuerdonError, match=f"no reward: {status}"):
            await manager.run_single(Data([rows[0]], **columns))


async def test_verls_own_base_of_a_manager(verl_reward: Any, stub: StubService) -> None:
    stub.score = per_token
    config = verl_config(
        stub.url,
        source="importlib",
        name="ProcessRewardManager",
        module=SimpleNamespace(path="pkg://guerdon.integrations.verl_process"),
    )
    sys.modules.pop("guerdon.integrations.verl_process", None)
    try:
        manager = verl_reward.load_reward_manager(config, None, reward_router_address=None)
        data = Data([row([5], [1, 2, 3])])
        output = await manager.run_single(data)
        assert manager.assemble_rm_scores(data, [output["reward_score"]]).tolist() == [[0.5, 1.0, 1.5, 0.0]]
        with pytest.raises(Unavailable, match="gone"):
            await manager.run_single(Data([row([5], [9])]))
    finally:
        sys.modules.pop("guerdon.integrations.verl_process", None)
