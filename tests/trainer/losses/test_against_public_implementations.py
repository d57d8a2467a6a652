"""Losses against results of the public implementations (`GUERDON_SHARED/vectors`, not part of this repository)."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from guerdon_trainer.losses import Loss, gspo_loss, gspo_token_loss, ppo_clip_loss
from guerdon_trainer.losses.aggregate import aggregate
from guerdon_trainer.losses.kl import kl_estimate


def vector(shared: Path, name: str) -> dict[str, Any]:
    return json.loads((shared / "vectors" / f"{name}.json").read_text())


def tensors(case: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    inputs = case["inputs"]
    logps, old, advantages, mask = (
        torch.tensor(inputs[key], dtype=torch.float32)
        for key in ("log_prob", "old_log_prob", "advantages", "response_mask")
    )
    return logps.requires_grad_(), old, advantages, mask


def check(case: dict[str, Any], loss: Loss, logps: Tensor, *, denominator_ratio: float = 1.0) -> None:
    loss.value.backward()
    tolerance = case["tolerance"]
    expected = torch.tensor(case["outputs"]["loss"]) * denominator_ratio
    torch.testing.assert_close(loss.value.detach(), expected, **tolerance)
    gradient = torch.tensor(case["outputs"]["grad_log_prob"]) * denominator_ratio
    torch.testing.assert_close(logps.grad, gradient, **tolerance)


GSPO = {
    "trl_sequence_clip_quadrants": ("epsilon_low", "epsilon_high"),
    "trl_sequence_grpo_paper_eps": ("epsilon_low", "epsilon_high"),
    "verl_bf16_logprobs": ("clip_ratio_low", "clip_ratio_high"),
}


@pytest.mark.parametrize("name", GSPO)
@pytest.mark.parametrize("form", ["sequence", "token"])
def test_gspo(shared: Path, name: str, form: str) -> None:
    case = vector(shared, f"gspo__{name}")
    low, high = (case["parameters"][key] for key in GSPO[name])
    logps, old, advantages, mask = tensors(case)
    rows = advantages if advantages.dim() == 1 else advantages[:, 0]
    if form == "sequence":
        loss = gspo_loss(logps, old, rows, mask, clip_low=low, clip_high=high)
    else:
        loss = gspo_token_loss(logps, old, rows[:, None].expand_as(mask), mask, clip_low=low, clip_high=high)
    check(case, loss, logps)


def test_gspo_slime(shared: Path) -> None:
    case = vector(shared, "gspo__slime_clip_quadrants")
    logps, old, advantages, mask = tensors(case)
    loss = gspo_loss(logps, old, advantages, mask, clip_low=3e-4, clip_high=4e-4)
    case["outputs"]["loss"] = case["outputs"]["mean_of_sample_means"]
    check(case, loss, logps)


def test_gspo_with_a_global_denominator(shared: Path) -> None:
    case = vector(shared, "gspo__verl_global_batch_size")
    logps, old, advantages, mask = tensors(case)
    rows = advantages if advantages.dim() == 1 else advantages[:, 0]
    share = case["parameters"]["global_batch_size"] / case["parameters"]["dp_size"]
    check(case, gspo_loss(logps, old, rows, mask, denominator=share), logps)


@pytest.mark.parametrize("name", ["trl_gspo_token_per_token_adv", "verl_gspo_token_per_token_adv"])
def test_gspo_token_with_an_advantage_per_token(shared: Path, name: str) -> None:
    case = vector(shared, f"gspo__{name}")
    logps, old, advantages, mask = tensors(case)
    check(case, gspo_token_loss(logps, old, advantages, mask, clip_low=0.1, clip_high=0.15), logps)


def test_gspo_ignores_nan_in_padding_where_verl_does_not(shared: Path) -> None:
    case = vector(shared, "gspo__verl_nan_in_padding")
    inputs = case["inputs"]
    clean = {
        key: [[0.0 if value == "NaN" else value for value in row] for row in inputs[key]]
        for key in ("log_prob", "old_log_prob")
    }
    assert any("NaN" in row for key in clean for row in inputs[key]), "the vector no longer holds a NaN"
    mask = torch.tensor(inputs["response_mask"], dtype=torch.float32)
    advantages = torch.tensor(inputs["advantages"], dtype=torch.float32)
    advantages = advantages if advantages.dim() == 2 else advantages[:, None].expand_as(mask)
    losses = []
    for values in (clean, inputs):
        logps = torch.tensor([[float(v) for v in row] for row in values["log_prob"]], requires_grad=True)
        old = torch.tensor([[float(v) for v in row] for row in values["old_log_prob"]])
        loss = gspo_token_loss(logps, old, advantages, mask).value
        loss.backward()
        assert logps.grad is not None
        losses.append((loss.item(), logps.grad))
    assert losses[0][0] == losses[1][0]
    assert math.isfinite(losses[0][0])
    torch.testing.assert_close(losses[0][1], losses[1][1], rtol=0, atol=0)


PPO: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Loss]] = {
    "sym_0p2_token_mean": lambda *t: ppo_clip_loss(*t, dual_clip=3.0),
    "dapo_clip_higher_0p2_0p28": lambda *t: ppo_clip_loss(*t, clip_high=0.28, dual_clip=3.0),
    "dual_clip_negative_adv": lambda *t: ppo_clip_loss(*t, dual_clip=3.0),
    "seq_mean_token_mean": lambda *t: ppo_clip_loss(*t, dual_clip=3.0, aggregation="seq-mean-token-mean"),
    "trl_token_two_sided_delta": lambda *t: ppo_clip_loss(
        *t, dual_clip=3.0, aggregation="seq-mean-token-mean"
    ),
    "trl_token_dr_grpo": lambda *t: ppo_clip_loss(
        *t, clip_high=0.28, aggregation="seq-mean-token-sum-norm", norm=10.0
    ),
}


@pytest.mark.parametrize("name", PPO)
def test_ppo_clip(shared: Path, name: str) -> None:
    case = vector(shared, f"ppo_clip__{name}")
    logps, old, advantages, mask = tensors(case)
    if advantages.dim() == 1:
        advantages = advantages[:, None].expand_as(mask)
    check(case, PPO[name](logps, old, advantages, mask), logps)


@pytest.mark.parametrize("name", ["abs", "k3"])
def test_kl(shared: Path, name: str) -> None:
    case = vector(shared, f"kl__verl_{name}")
    logps = torch.tensor(case["inputs"]["logprob"], requires_grad=True)
    estimate = kl_estimate(logps, torch.tensor(case["inputs"]["ref_logprob"]), name)  # pyright: ignore[reportArgumentType]
    torch.testing.assert_close(estimate.detach(), torch.tensor(case["outputs"]["kl"]), **case["tolerance"])
    estimate.sum().backward()
    torch.testing.assert_close(
        logps.grad, torch.tensor(case["outputs"]["grad_logprob_of_sum"]), **case["tolerance"]
    )


@pytest.mark.parametrize(
    ("name", "mode", "denominator"),
    [
        ("token_mean", "token-mean", None),
        ("seq_mean_token_sum", "seq-mean-token-sum", None),
        ("seq_mean_token_mean_global", "seq-mean-token-mean", 4.0),
    ],
)
def test_aggregation(shared: Path, name: str, mode: Any, denominator: float | None) -> None:
    case = vector(shared, f"loss_agg__verl_{name}")
    losses = torch.tensor(case["inputs"]["loss_mat"], requires_grad=True)
    value = aggregate(losses, torch.tensor(case["inputs"]["loss_mask"]), mode, denominator=denominator)
    torch.testing.assert_close(value.detach(), torch.tensor(case["outputs"]["loss"]), **case["tolerance"])
    if "grad_loss_mat" in case["outputs"]:
        value.backward()
        torch.testing.assert_close(
            losses.grad, torch.tensor(case["outputs"]["grad_loss_mat"]), **case["tolerance"]
        )
