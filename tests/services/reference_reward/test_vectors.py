"""Rewards of the public VeriFree code, from token ids and a table of logits to R."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from guerdon.functional import aggregate_logprobs
from guerdon_services.scoring import ScoredSequence, token_logprobs

CASES = [
    "k4_reference_setting",
    "temperature_0p7",
    "no_eos_row_ignored",
    "grpo_critic_meanbaseline",
    # Disputed for what it makes of R; R itself is right.
    "micro_batch_4_broadcast",
    "bf16_weights",
]


def read(shared: Path, case: str) -> dict[str, Any]:
    return json.loads((shared / "vectors" / f"verifree__{case}.json").read_text())


def rewards(data: dict[str, Any], make: Callable[[Any], nn.Module]) -> list[float]:
    inputs = data["inputs"]
    rows = zip(inputs["prompt_ids"], inputs["think_ids"], inputs["answer_ids"], strict=True)
    sequences = [ScoredSequence(prompt + think, answer) for prompt, think, answer in rows]
    scored = token_logprobs(
        make(inputs["logit_table"]), sequences, temperature=data["parameters"]["temperature"]
    )
    # A row without an answer tag has no answer to score: it never reaches a model.
    return [aggregate_logprobs(logps, "product") if len(logps) else 0.0 for logps in scored]


@pytest.mark.parametrize("case", CASES)
def test_probabilities_of_answers_equal_the_public_ones(
    shared: Path, table_model: Callable[[Any], nn.Module], case: str
) -> None:
    data = read(shared, case)
    values = rewards(data, table_model)
    for value, expected, ignored in zip(values, data["outputs"]["R"], data["inputs"]["no_eos"], strict=True):
        if not ignored:
            assert value == pytest.approx(expected, rel=1e-4, abs=1e-9)


def test_bf16_weights_move_a_product_by_a_percent(
    shared: Path, table_model: Callable[[Any], nn.Module]
) -> None:
    """The two vectors differ in the rounding of their tables only."""
    exact = rewards(read(shared, "k4_reference_setting"), table_model)
    rounded = read(shared, "bf16_weights")["outputs"]["R"]
    moved = [abs(math.log(r / value)) for r, value in zip(rounded, exact, strict=True)]
    assert 0.005 < max(moved) < 0.015
