"""The detached pairwise loss: public results, closed-form gradients, and parts that make the whole."""

import json
import math
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from guerdon.functional import PairTargets, PairWeights, pairwise_targets, prm_ce_loss, prm_pairwise_loss


def loss_and_gradient(q: Tensor, mask: Tensor, targets: PairTargets, **given: Any) -> tuple[float, Tensor]:
    q = q.clone().requires_grad_()
    loss = prm_pairwise_loss(q, mask, targets, **given)
    loss.backward()
    assert q.grad is not None
    return loss.item(), q.grad


@pytest.mark.parametrize(("case", "weights"), [("none", "none"), ("bon_acc", "acc")])
def test_loss_and_gradient_equal_those_of_the_verl_recipe(
    shared: Path, case: str, weights: PairWeights
) -> None:
    data = json.loads((shared / "vectors" / f"prime_prm_loss__detached_dpo_{case}.json").read_text())
    inputs, beta = data["inputs"], data["parameters"]["beta"]
    q, mask = torch.tensor(inputs["q"]), torch.tensor(inputs["response_mask"])
    logits = beta * torch.tensor(inputs["Q_bc"][0])
    targets = pairwise_targets(logits, torch.tensor(inputs["acc"]), [0] * len(q), weights=weights)
    # The recipe takes the mean of unweighted losses, and the sum of weighted ones.
    denominator = None if weights == "none" else 1
    loss, gradient = loss_and_gradient(q, mask, targets, beta=beta, denominator=denominator)
    torch.testing.assert_close(loss, data["outputs"]["loss"], **data["tolerance"])
    torch.testing.assert_close(gradient, torch.tensor(data["outputs"]["grad_q"]), **data["tolerance"])


def test_golden_targets_of_ragged_groups_and_fractions() -> None:
    logits = torch.tensor([1.0, 3.0, -2.0, 0.5, 7.0, 4.0])
    outcomes = torch.tensor([1.0, 0.0, 0.5, 1.0, 0.25, 0.25])
    groups = ["a", "a", "a", "a", "b", "b"]
    targets = pairwise_targets(logits, outcomes, groups)
    # The fraction has one worse and two better rivals; group b has no rivals and keeps its outcome.
    torch.testing.assert_close(targets.rise_B, torch.tensor([1.0, 0.0, 1 / 3, 1.0, 0.25, 0.25]))
    torch.testing.assert_close(targets.below_B, torch.tensor([0.5, 0.0, 3.0, 0.5, 0.0, 0.0]))
    torch.testing.assert_close(targets.above_B, torch.tensor([0.0, -0.5 / 3, 0.75, 0.0, 0.0, 0.0]))
    assert targets.weight_B.tolist() == [1.0] * 6
    by_outcome = pairwise_targets(logits, outcomes, groups, weights="acc").weight_B
    assert by_outcome.tolist() == [4.0, 4 * 0.25**3, 4 * 0.5**3, 4.0, 2.0, 2.0]
    by_logit = pairwise_targets(logits, outcomes, groups, weights="rm").weight_B
    assert by_logit.tolist() == [4 * 0.75**3, 4.0, 4 * 0.25**3, 4 * 0.5**3, 2.0, 2 * 0.5]


@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("weights", ["none", "acc", "rm"])
def test_the_gradient_is_the_closed_form_even_where_the_sigmoid_saturates(
    scale: float, weights: PairWeights
) -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(6, 9, generator=generator) * scale
    mask = (torch.rand(6, 9, generator=generator) < 0.7).long()
    logits = 0.05 * (q * mask).sum(-1)
    outcomes = torch.tensor([0.0, 1.0, 0.5, 0.0, 1.0, 0.25])
    targets = pairwise_targets(logits, outcomes, [0, 0, 0, 1, 1, 2], weights=weights)
    _, gradient = loss_and_gradient(q, mask, targets, beta=0.05)
    up = -targets.rise_B * torch.sigmoid(targets.below_B - logits)
    down = (1 - targets.rise_B) * torch.sigmoid(logits - targets.above_B)
    expected = 0.05 * (targets.weight_B * (up + down))[:, None] * mask / 6
    torch.testing.assert_close(gradient, expected, atol=1e-7, rtol=1e-5)


def test_the_gradient_is_that_of_finite_differences() -> None:
    q, mask = torch.randn(4, 3, dtype=torch.double, requires_grad=True), torch.ones(4, 3)
    targets = pairwise_targets(torch.randn(4), torch.tensor([1.0, 0.0, 0.5, 1.0]), [0, 0, 0, 0])
    double = PairTargets(*(t.double() for t in vars(targets).values()))
    check = cast(Any, torch.autograd.gradcheck)
    assert check(lambda x: prm_pairwise_loss(x, mask, double, beta=0.3), (q,))


def test_equal_outcomes_leave_cross_entropy() -> None:
    q, mask = torch.randn(4, 5), torch.ones(4, 5)
    outcomes = torch.tensor([1.0, 1.0, 0.0, 0.5])
    targets = pairwise_targets(q.sum(-1), outcomes, ["a", "a", "b", "c"])
    loss, _ = loss_and_gradient(q, mask, targets, beta=0.3)
    assert math.isclose(loss, prm_ce_loss(q, mask, outcomes, beta=0.3).item(), rel_tol=1e-6)


def test_padding_does_not_matter() -> None:
    q, mask = torch.tensor([[1.0, math.nan], [2.0, math.inf]]), torch.tensor([[1, 0], [1, 0]])
    targets = pairwise_targets(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0]), [0, 0])
    loss, gradient = loss_and_gradient(q, mask, targets, beta=1.0)
    assert math.isclose(loss, math.log1p(math.e), rel_tol=1e-6)
    assert gradient[:, 1].tolist() == [0.0, 0.0]


@settings(max_examples=50, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(-50, 50), st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.integers(0, 2)),
        min_size=1,
        max_size=12,
    ),
    weights=st.sampled_from(["none", "acc", "rm"]),
    cut=st.integers(0, 12),
)
def test_parts_add_up_to_the_whole(
    rows: list[tuple[int, float, int]], weights: PairWeights, cut: int
) -> None:
    q = torch.tensor([[float(value)] for value, _, _ in rows])
    mask = torch.ones_like(q)
    targets = pairwise_targets(
        q[:, 0], torch.tensor([row[1] for row in rows]), [row[2] for row in rows], weights=weights
    )
    whole, gradient = loss_and_gradient(q, mask, targets, beta=1.0)
    parts = [list(range(min(cut, len(rows)))), list(range(min(cut, len(rows)), len(rows)))]
    done = [
        loss_and_gradient(q[part], mask[part], targets.rows(part), beta=1.0, denominator=len(rows))
        for part in parts
    ]
    assert math.isclose(sum(loss for loss, _ in done), whole, rel_tol=1e-5, abs_tol=1e-6)
    torch.testing.assert_close(torch.cat([part for _, part in done]), gradient, atol=1e-7, rtol=1e-5)
    assert math.isfinite(whole)
