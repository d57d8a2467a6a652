"""VeriFree's rows are what the reference reward scored: one R for the service and the trainer."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from guerdon.types import Result, Sample, Span, Status, Verdict
from guerdon_services.reference_reward.service import ReferenceRewardScorer
from guerdon_services.reference_reward.settings import ReferenceRewardOptions, ReferenceRewardSettings
from guerdon_services.runtime.scorer import ScoreJob
from guerdon_trainer.batch import Batch, make_batch
from guerdon_trainer.config import load_recipe
from guerdon_trainer.groups import Group, in_its_place
from guerdon_trainer.model import Policy, load_policy, token_logprobs
from guerdon_trainer.prepare import TinyPolicy
from guerdon_trainer.prepare.tiny import build_model, build_tokenizer

TEXTS = ("03;\\boxed{03}", "12;13;\\boxed{7}", "\\boxed{", "1;2;3", "04;\\boxed{04}\\boxed{05}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny policy that was not trained."""
    path = tmp_path_factory.mktemp("policy")
    tokenizer = build_tokenizer()
    build_model(TinyPolicy(hidden_size=16, layers=1, heads=2), tokenizer, seed=4).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def batch(folder: Path, make_group: Callable[..., Group]) -> Batch:
    """Responses as the small recipe has them scored, as rows."""
    reward = load_recipe("verifree_small").injected
    assert reward is not None
    group = make_group(0, dict.fromkeys(TEXTS, 0.0))
    scorer = ReferenceRewardScorer(ReferenceRewardSettings(model=folder))
    scorer.open()
    options = ReferenceRewardOptions.model_validate(reward.options)
    jobs = [
        ScoreJob(
            Sample(
                prompt_token_ids=group.prompt_token_ids,
                response_token_ids=response.rollout.token_ids,
                references=["03"],
            ),
            options,
        )
        for response in group.responses
    ]
    results = scorer.score(jobs)
    responses = [
        replace(response, results={reward.service: result}, reward=result.value)
        for response, result in zip(group.responses, results, strict=True)
    ]
    return make_batch([replace(group, responses=responses)], None, injected=reward, mask_truncated=True)


def test_the_trainers_probability_of_the_reference_is_the_reward(batch: Batch, folder: Path) -> None:
    policy = Policy(load_policy(folder, torch.device("cpu")))
    with torch.no_grad():
        logps_BT, _ = token_logprobs(policy, batch, 1.0)
    assert batch.reference_BT.any(-1).tolist() == [True, True, True, False, True]
    for row in range(len(TEXTS)):
        ours = math.exp(float(logps_BT[row][batch.reference_BT[row]].double().sum()))
        expected = float(batch.rewards_B[row])
        if batch.reference_BT[row].any():
            assert ours == pytest.approx(expected, rel=1e-4)
            assert float(batch.weights_B[row]) == expected > 0
        else:
            assert expected == 0


def test_a_row_is_the_reasoning_as_sampled_and_the_reference(batch: Batch) -> None:
    tokenizer = build_tokenizer()
    texts = [
        tokenizer.decode(ids[mask].tolist())
        for ids, mask in zip(batch.response_ids_BT, batch.mask_BT, strict=True)
    ]
    assert texts == ["03;\\boxed{03}", "12;13;\\boxed{03}", "\\boxed{03}", "1;2;3", "04;\\boxed{03}"]
    references = [
        tokenizer.decode(ids[mask].tolist())
        for ids, mask in zip(batch.response_ids_BT, batch.reference_BT, strict=True)
    ]
    assert references == ["03}", "03}", "03}", "", "03}"]


@pytest.mark.parametrize(
    ("token_ids", "end", "status"),
    [([1, 2], 6, Status.OK), ([1, 2], 7, Status.INTERNAL_ERROR), ([], 4, Status.INTERNAL_ERROR)],
)
def test_a_reference_that_stands_elsewhere_than_its_span_says_is_a_failure(
    token_ids: list[int], end: int, status: Status
) -> None:
    span = Span(start=0, end=9, token_start=4, token_end=end, sampled_tokens=4)
    result = Result(
        id="a", status=Status.OK, value=0.5, token_ids=token_ids, token_rewards=[0.0] * len(token_ids),
        verdict=Verdict(span=span),
    )  # fmt: skip
    assert in_its_place(result).status is status
