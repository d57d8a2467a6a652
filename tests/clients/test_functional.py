"""Shared tensor maths against closed forms and public results."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from guerdon.functional import (
    Aggregation,
    aggregate_logprobs,
    chunked_logprobs,
    debiased,
    implicit_rewards,
    leaky_shaped,
    normalise_returns,
    pairwise_accuracy,
    prm_ce_loss,
    sigmoid_shaped,
    threshold_shaped,
)


def vector(shared: Path, name: str) -> dict[str, Any]:
    return json.loads((shared / "vectors" / f"{name}.json").read_text())


@pytest.mark.parametrize("case", ["ce_binary", "ce_fractional_code_labels"])
def test_prm_loss_and_gradient_equal_those_of_prime(shared: Path, case: str) -> None:
    data = vector(shared, f"prime_prm_loss__{case}")
    q = torch.tensor(data["inputs"]["q"], requires_grad=True)
    mask = torch.tensor(data["inputs"]["response_mask"])
    loss = prm_ce_loss(q, mask, torch.tensor(data["inputs"]["acc"]), beta=data["parameters"]["beta"])
    loss.backward()
    assert q.grad is not None
    torch.testing.assert_close(loss.item(), data["outputs"]["loss"], **data["tolerance"])
    torch.testing.assert_close(q.grad, torch.tensor(data["outputs"]["grad_q"]), **data["tolerance"])


def closed_form(q: Tensor, mask: Tensor, outcomes: Tensor, beta: float) -> Tensor:
    """beta (sigmoid - outcome) m / B."""
    sums = torch.where(mask.bool(), q, 0).sum(-1)
    return beta * (torch.sigmoid(beta * sums) - outcomes)[:, None] * mask / len(q)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_prm_gradient_is_the_closed_form_even_where_the_sigmoid_saturates(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    q = (torch.randn(6, 9, generator=generator) * scale).requires_grad_()
    mask = (torch.rand(6, 9, generator=generator) < 0.7).long()
    outcomes = torch.tensor([0.0, 1.0, 0.5, 0.0, 1.0, 0.25])
    prm_ce_loss(q, mask, outcomes, beta=0.05).backward()
    assert q.grad is not None
    torch.testing.assert_close(q.grad, closed_form(q.detach(), mask, outcomes, 0.05), atol=1e-7, rtol=1e-5)


def test_prm_loss_ignores_what_stands_in_padding() -> None:
    q = torch.tensor([[1.0, math.nan], [2.0, math.inf]], requires_grad=True)
    mask = torch.tensor([[1, 0], [1, 0]])
    loss = prm_ce_loss(q, mask, torch.tensor([1.0, 0.0]), beta=1.0)
    loss.backward()
    assert math.isclose(loss.item(), (math.log1p(math.exp(-1)) + math.log1p(math.exp(2))) / 2, rel_tol=1e-6)
    assert q.grad is not None
    assert q.grad[:, 1].tolist() == [0.0, 0.0]


def test_prm_losses_of_parts_add_up_to_that_of_the_whole() -> None:
    q, mask, outcomes = torch.randn(5, 4), torch.ones(5, 4), torch.tensor([1.0, 0, 1, 0, 0.5])
    whole = prm_ce_loss(q, mask, outcomes, beta=0.3)
    parts = [prm_ce_loss(q[r], mask[r], outcomes[r], beta=0.3, denominator=5) for r in ([0, 3], [1, 2, 4])]
    torch.testing.assert_close(torch.stack(parts).sum(), whole)


def test_normalised_returns_equal_prime_batch_norm(shared: Path) -> None:
    data = vector(shared, "prime_reward__batch_norm")
    rewards = torch.tensor(data["inputs"]["token_level_scores"])
    normalised = normalise_returns(rewards, torch.ones_like(rewards))
    torch.testing.assert_close(normalised, torch.tensor(data["outputs"]["normalised"]), **data["tolerance"])


def test_normalised_returns_of_zeros_and_of_nothing_are_finite() -> None:
    assert normalise_returns(torch.zeros(2, 3), torch.ones(2, 3)).tolist() == [[0.0] * 3] * 2
    assert normalise_returns(torch.zeros(2, 0), torch.ones(2, 0)).shape == (2, 0)
    masked = normalise_returns(torch.tensor([[1.0, math.nan]]), torch.tensor([[1, 0]]))
    torch.testing.assert_close(masked, torch.tensor([[1.0, 0.0]]))


def test_pairwise_accuracy_equals_prime_metric(shared: Path) -> None:
    data = vector(shared, "prime_prm_loss__metric_dpo_accuracy")
    q, mask = torch.tensor(data["inputs"]["q"]), torch.tensor(data["inputs"]["response_mask"])
    accuracy = pairwise_accuracy((q * mask).sum(-1), torch.tensor(data["inputs"]["acc"]), ["g"] * 4)
    assert math.isclose(accuracy, data["outputs"]["value"], rel_tol=1e-5)


def test_pairwise_accuracy_compares_within_groups_only() -> None:
    scores, outcomes = torch.tensor([1.0, 0.0, 5.0, 6.0]), torch.tensor([1.0, 0.0, 1.0, 0.0])
    assert pairwise_accuracy(scores, outcomes, ["a", "a", "b", "b"]) == 0.5
    assert pairwise_accuracy(scores[:2], outcomes[:2], ["a", "a"]) == 1.0
    assert pairwise_accuracy(scores[:2], torch.ones(2), ["a", "a"]) == 0.5
    assert pairwise_accuracy(torch.zeros(2), outcomes[:2], ["a", "a"]) == 0.5
    assert pairwise_accuracy(scores[:0], outcomes[:0], []) == 0.5


@pytest.mark.parametrize(
    ("case", "aggregation"),
    [
        ("mean_exp_log_softmax", "mean"),
        ("exp_sum_log_softmax", "product"),
        ("mean_log_softmax", "mean_logprob"),
    ],
)
def test_aggregations_equal_those_of_rlpr_before_its_rounding(
    shared: Path, case: str, aggregation: Aggregation
) -> None:
    """Disputed vectors: RLPR rounds this score, and not the one it subtracts, to bf16. We never round."""
    data = vector(shared, f"rlpr_reward__aggregate_{case}")
    for logps, mask, expected in zip(
        data["inputs"]["logprobs"], data["inputs"]["ground_truth_mask"], data["outputs"]["score"], strict=True
    ):
        value = aggregate_logprobs(torch.tensor(logps)[torch.tensor(mask).bool()], aggregation)
        assert torch.tensor(value).bfloat16().item() == expected


def test_geometric_mean_is_the_exponential_of_the_mean() -> None:
    logps = torch.tensor([0.25, 0.5, 0.125]).log()
    assert math.isclose(aggregate_logprobs(logps, "geometric_mean"), 0.25, rel_tol=1e-6)


def test_a_product_of_many_probabilities_does_not_underflow_in_fp32() -> None:
    logps = torch.full((200,), -1.0)
    assert logps.exp().prod().item() == 0.0
    assert math.isclose(aggregate_logprobs(logps, "product"), math.exp(-200.0), rel_tol=1e-6)


def test_no_tokens_are_no_reward() -> None:
    """RLPR gives 0 for an empty mask, which for mean_logprob would be the best possible reward."""
    with pytest.raises(ValueError, match="no token"):
        aggregate_logprobs(torch.empty(0), "mean")


@given(st.floats(0, 1), st.floats(0, 1))
def test_debiased_rewards_stay_in_the_unit_interval(probability: float, baseline: float) -> None:
    assert 0.0 <= debiased(probability, baseline) <= 1.0
    assert debiased(probability, 0.0) == probability


@given(st.floats(-1, 1), st.floats(-1, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0.1, 100))
def test_shapes_never_turn_an_order_round(
    one: float, other: float, threshold: float, slope: float, steepness: float
) -> None:
    low, high = sorted([one, other])
    assert threshold_shaped(low, 0) <= threshold_shaped(high, 0)
    assert leaky_shaped(low, threshold, slope=slope) <= leaky_shaped(high, threshold, slope=slope)
    shaped = [sigmoid_shaped(x, steepness, threshold=threshold) for x in (low, high)]
    assert 0 <= shaped[0] <= shaped[1] <= 1


def test_implicit_rewards_scale_the_log_ratio() -> None:
    rewards = implicit_rewards(torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -1.0]), beta=0.05)
    torch.testing.assert_close(rewards, torch.tensor([0.025, -0.05]))


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_chunked_logprobs_equal_log_softmax(chunk: int) -> None:
    hidden, head, targets = torch.randn(7, 4), torch.randn(4, 11), torch.randint(11, (7,))
    expected = torch.log_softmax(hidden @ head / 0.7, -1).gather(-1, targets[:, None])[:, 0]
    got = chunked_logprobs(hidden, targets, lambda h: h @ head, temperature=0.7, chunk=chunk)
    torch.testing.assert_close(got, expected)
    assert chunked_logprobs(hidden[:0], targets[:0], lambda h: h @ head).shape == (0,)
