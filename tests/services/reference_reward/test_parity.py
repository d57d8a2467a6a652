"""The service's log-probs are the trainer's, on the same weights: rewards and gradients speak of one model."""

import math
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor

from guerdon.types import Rollout, Sample, Status
from guerdon_services import models
from guerdon_services.reference_reward import splice
from guerdon_services.reference_reward.service import ReferenceRewardScorer
from guerdon_services.reference_reward.settings import ReferenceRewardOptions, ReferenceRewardSettings
from guerdon_services.runtime.scorer import ScoreJob
from guerdon_trainer import model as trainer_model
from guerdon_trainer.batch import make_batch
from guerdon_trainer.groups import Group, Response
from guerdon_trainer.questions import Question

PROMPT = "What is 3+4?\n"
RESPONSES = [
    "Let me see: 3+4 is 7. <answer> 7 </answer>",
    "<answer> 8",
    "Well,\n<answer>\n\\frac{14}{2}\n</answer>",
]
REFERENCES = ["7", "seven", "\\frac{14}{2}"]


def trainers_logprobs(
    folder: Path, prompt: list[int], rows: list[list[int]], temperature: float
) -> list[Tensor]:
    """What a training step computes for each row of response ids."""
    responses = [
        Response(
            str(index),
            Rollout(
                response="", token_ids=row, logprobs=[0.0] * len(row), finish_reason="stop", model_version=0
            ),
            {},
            None,
            None,
        )
        for index, row in enumerate(rows)
    ]
    batch = make_batch([Group(0, cast(Question, None), prompt, responses)], None)
    policy = trainer_model.Policy(trainer_model.load_policy(folder, torch.device("cpu")))
    with torch.no_grad():
        logps_BT, _ = trainer_model.token_logprobs(policy, batch, temperature)
    return [logps_T[: len(row)] for logps_T, row in zip(logps_BT, rows, strict=True)]


def check_parity(folder: Path, template: str, temperature: float) -> None:
    scorer = ReferenceRewardScorer(ReferenceRewardSettings(model=folder))
    scorer.open()
    tokenizer = models.load_tokenizer(folder)
    prompt = models.encode_prompt(tokenizer, PROMPT)
    options = ReferenceRewardOptions.model_validate(
        {"template": template, "temperature": temperature, "aggregation": "product"}
    )
    pairs = [(response, reference) for response in RESPONSES for reference in REFERENCES]
    samples = [
        Sample(
            prompt_token_ids=prompt,
            response_token_ids=models.encode_prompt(tokenizer, response),
            references=[reference],
        )
        for response, reference in pairs
    ]
    results = scorer.score([ScoreJob(sample, options) for sample in samples])
    make = splice.verifree if template == "verifree" else splice.rlpr
    rows = [
        list(splice.tokenise(tokenizer, make(response, reference), tuple(sample.response_token_ids)).ids)
        for (response, reference), sample in zip(pairs, samples, strict=True)
    ]
    expected = trainers_logprobs(folder, prompt, rows, temperature)
    for result, row, logps_T in zip(results, rows, expected, strict=True):
        assert result.status is Status.OK, result.reason
        assert result.verdict is not None
        span = result.verdict.span
        assert span is not None
        scored = slice(span.token_start, span.token_end)
        assert row[scored] == result.token_ids
        assert result.token_rewards == pytest.approx(logps_T[scored].tolist(), abs=1e-4)
        assert result.value == pytest.approx(math.exp(float(logps_T[scored].double().sum())), rel=1e-3)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("template", ["rlpr", "verifree"])
@pytest.mark.parametrize("folder", ["tiny_llama", "tiny_qwen2"])
def test_equals_the_trainer_on_tiny_models(
    request: pytest.FixtureRequest, folder: str, template: str, temperature: float
) -> None:
    check_parity(request.getfixturevalue(folder), template, temperature)


@pytest.mark.slow
def test_equals_the_trainer_on_a_pretrained_model(smollm2_folder: Path) -> None:
    check_parity(smollm2_folder, "rlpr", 1.0)
