"""TRL's contract (1.16.0, installed with the development tools): async, picklable, named, None where there is none."""

import asyncio
import inspect
import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from guerdon import background
from guerdon.columns import Columns
from guerdon.errors import InvalidRequest, Unauthorized, Unavailable
from guerdon.integrations.trl import reward
from guerdon.testing import StubService
from guerdon.types import Result, Sample, ScoreRequest, Status, failed


def asked(stub: StubService) -> list[Sample]:
    """Every sample that reached the service, in order."""
    return [s for request in stub.requests if isinstance(request, ScoreRequest) for s in request.samples]


async def test_texts_and_columns(stub: StubService) -> None:
    call = reward(stub.url)
    rewards = await call(
        prompts=["1+1", "1+2"],
        completions=["2", "2"],
        completion_ids=[[7], [7]],
        answer=["2", "3"],
        level=[1, 2],
    )
    assert rewards == [1.0, 0.0]
    first, second = asked(stub)
    assert (first.prompt, first.response, first.references) == ("1+1", "2", ["2"])
    assert (second.references, second.response_token_ids) == (["3"], [])


async def test_conversations_named_columns_and_token_ids(stub: StubService) -> None:
    columns = Columns(references="truth", metadata=("level",))
    call = reward(stub.url, columns=columns, token_ids=True)
    rewards = await call(
        prompts=[[{"role": "user", "content": "1+1"}]],
        completions=[[{"role": "assistant", "content": "2"}]],
        completion_ids=[[7, 8]],
        truth=["2"],
        answer=["no"],
        level=["easy"],
        trainer_state=object(),
        log_extra=print,
        environments=[None],
    )
    [sample] = asked(stub)
    assert rewards == [1.0]
    assert sample.prompt is not None
    assert sample.prompt[0].content == "1+1"  # pyright: ignore[reportAttributeAccessIssue]
    assert (sample.response_token_ids, sample.metadata) == ([7, 8], {"level": "easy"})


@pytest.mark.parametrize("word", ["timeout", "overloaded", "unavailable", "internal", "invalid"])
async def test_a_failure_is_none(stub: StubService, word: str) -> None:
    logged: dict[str, float] = {}
    call = reward(stub.url, name="math")
    rewards = await call(
        prompts=["q"] * 2, completions=["2", word], answer=["2", "2"], log_metric=logged.__setitem__
    )
    assert rewards == [1.0, None]
    assert logged == {"rewards/math/without": 0.5}


async def test_a_service_that_is_gone_is_none_and_in_the_end_an_error(stub: StubService) -> None:
    call = reward("http://127.0.0.1:1", stop_after=3)
    ask: dict[str, Any] = {"prompts": ["q"], "completions": ["2"], "answer": ["2"]}
    assert [await call(**ask) for _ in range(2)] == [[None], [None]]
    with pytest.raises(Unavailable, match="cannot be reached"):
        await call(**ask)


async def test_what_is_wrong_for_all_is_an_error_at_once(stub: StubService) -> None:
    stub.token = "secret"
    with pytest.raises(Unauthorized):
        await reward(stub.url)(prompts=["q"], completions=["2"], answer=["2"])
    stub.token = None
    with pytest.raises(InvalidRequest, match="no column 'truth'; it has answer"):
        await reward(stub.url, references="truth")(prompts=["q"], completions=["2"], answer=["2"])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"answer": ["2"]}, "answer: 1 entries for 2 completions"),
        ({"answer": "22"}, "answer: must be a list, not str"),
        ({"answer": None}, "answer: must be a list, not NoneType"),
        ({"prompts": ["q"]}, "prompts: 1 entries for 2 completions"),
        ({"completion_ids": [[1]]}, "completion_ids: 1 entries for 2 completions"),
        ({"completions": ["2", [3]]}, "response.0: a turn must be an object, not int"),
    ],
)
async def test_columns_of_another_shape_are_named(
    stub: StubService, columns: dict[str, Any], message: str
) -> None:
    asked = {"prompts": ["q"] * 2, "completions": ["2"] * 2, "answer": ["2"] * 2, **columns}
    with pytest.raises(InvalidRequest, match=message):
        await reward(stub.url)(**asked)
    assert await reward(stub.url)(prompts=[], completions=[], answer=[]) == []


def test_what_trl_asks_of_a_reward_function(stub: StubService) -> None:
    from trl.trainer.utils import get_callable_name, is_async_callable

    math, rules = reward(stub.url, service="math"), reward(stub.url, name="format")
    for call, name in ((math, "math"), (rules, "format"), (reward(stub.url), "guerdon")):
        copy = pickle.loads(pickle.dumps(call))
        for one in (call, copy):
            assert is_async_callable(one)
            assert get_callable_name(one) == name
            # What TRL asked before 1.12.
            assert inspect.iscoroutinefunction(one)
        # A copy works in another process, on another loop.
        assert asyncio.run(copy(prompts=["q"], completions=["2"], answer=["2"])) == [1.0]


def test_a_mix_of_services(stub: StubService, tmp_path: Path) -> None:
    file = tmp_path / "rewards.yaml"
    file.write_text(f"rewards: [{{name: half, url: '{stub.url}', weight: 0.5}}]")
    call = reward(rewards=str(file))
    assert call.__name__ == "rewards"
    assert asyncio.run(call(prompts=["q"], completions=["2"], answer=["2"])) == [0.5]


@pytest.mark.slow
@pytest.mark.timeout(1200)
# TRL and accelerate warn of what is none of ours.
@pytest.mark.filterwarnings("default")
def test_five_steps_of_grpo(tmp_path: Path, tiny_llama: Path) -> None:
    from datasets import Dataset
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    def judge() -> Callable[[Sample], Result | float]:
        # One response in four gets no reward.
        def each(_: Sample) -> Result | float:
            number = next(numbers)
            return failed(Status.INVALID_INPUT, "said the test") if number % 4 == 0 else float(number % 2)

        numbers = itertools.count()
        return each

    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    rows = Dataset.from_list([{"prompt": f"{number}+1=", "answer": str(number + 1)} for number in range(8)])
    config = GRPOConfig(
        output_dir=str(tmp_path),
        max_steps=5,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=4,
        learning_rate=1e-3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    with StubService() as first, StubService() as second:
        first.score, second.score = judge(), judge()
        model = LlamaForCausalLM.from_pretrained(tiny_llama)
        before = model.lm_head.weight.detach().clone()
        rewards: Any = [reward(first.url, name="math"), reward(second.url, name="again")]
        trainer = GRPOTrainer(
            model,
            reward_funcs=rewards,
            args=config,
            train_dataset=rows,
            processing_class=tokenizer,
        )
        trainer.train()
        logs = [entry for entry in trainer.state.log_history if "rewards/math/mean" in entry]
        samples = asked(first)
    background.stop()
    assert len(logs) == 5
    assert len(samples) == 40
    assert all(sample.prompt == f"{int(sample.references[0]) - 1}+1=" for sample in samples)
    for entry in logs:
        assert (entry["rewards/math/without"], entry["rewards/again/without"]) == (0.25, 0.25)
        assert entry["rewards/math/mean"] == pytest.approx(4 / 6)
    assert not torch.equal(before, model.lm_head.weight)
    assert torch.isfinite(model.lm_head.weight).all()
