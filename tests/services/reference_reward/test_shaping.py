"""Shapes of r - r' against the public ones."""

import json
from pathlib import Path

import pytest
import torch

from guerdon_services.reference_reward.shaping import Clip, Cut, Identity, Leaky, Shaping, Sigmoid

SHAPES: list[tuple[Shaping, str]] = [
    (Leaky(kind="leaky", threshold=0.05), "leaky_0p05"),
    (Sigmoid(kind="sigmoid", steepness=6), "sigmoid_6"),
    (Sigmoid(kind="sigmoid", steepness=6, threshold=0.3), "comp_threshold_0p3_sigmoid_6"),
]


@pytest.mark.parametrize(("shape", "case"), SHAPES)
def test_shapes_equal_the_public_ones(shared: Path, shape: Shaping, case: str) -> None:
    data = json.loads((shared / "vectors" / f"rlpr_reward__shaping_{case}.json").read_text())
    for x, y in zip(data["inputs"]["x"], data["outputs"]["y"], strict=True):
        assert shape(x) == pytest.approx(y, rel=1e-4, abs=1e-6)


def test_rewards_without_clipping_equal_the_public_ones(shared: Path) -> None:
    """RLPR rounds r to bf16, mixes the format score in, and lets r - r' be negative under `identity`."""
    data = json.loads((shared / "vectors" / "rlpr_reward__no_debias_identity.json").read_text())
    inputs, outputs, weight = data["inputs"], data["outputs"], data["parameters"]["format_coefficient"]
    for row, probabilities in enumerate(inputs["answer_token_probs"]):
        r = sum(probabilities) / len(probabilities)
        assert torch.tensor(r).bfloat16().item() == outputs["scoreB"][row]
        shaped = Identity(kind="identity")(outputs["scoreB"][row] - inputs["scoreA"][row])
        reward = (1 - weight) * shaped + weight * outputs["format_score"][row]
        assert reward == pytest.approx(outputs["reward"][row], rel=1e-4)


@pytest.mark.parametrize(
    ("shape", "given", "expected"),
    [
        (Identity(kind="identity"), -0.4, -0.4),
        (Clip(), -0.4, 0.0),
        (Clip(), 1.4, 1.0),
        (Cut(kind="threshold"), -0.4, 0.0),
        (Cut(kind="threshold", threshold=0.2), 0.2, 0.2),
        (Cut(kind="threshold", threshold=0.2), 0.19, 0.0),
        (Leaky(kind="leaky", threshold=0.2), 0.1, 0.001),
        (Leaky(kind="leaky", threshold=0.2, slope=0.5), -0.4, -0.2),
        (Sigmoid(kind="sigmoid", steepness=100), -1.0, 0.0),
    ],
)
def test_shapes_below_zero_and_at_their_threshold(shape: Shaping, given: float, expected: float) -> None:
    assert shape(given) == pytest.approx(expected, abs=1e-12)
