"""Losses against results of the public implementations (`GUERDON_SHARED/vectors`, not part of this repository)."""

import json
import math
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from guerdon.functional import aggregate_logprobs
from guerdon_trainer.advantages import group_rates, grpo_advantages, rloo_advantages
from guerdon_trainer.losses import (
    Loss,
    gspo_loss,
    gspo_token_loss,
    kl_estimate,
    nft_loss,
    ppo_clip_loss,
    verifree_loss,
)
from guerdon_trainer.losses.aggregate import aggregate


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


def test_gspo_never_weights_a_sequence_by_its_length(shared: Path) -> None:
    # TRL's default loss type with sequence ratios does (disputed): over equally long responses it is GSPO again.
    case = vector(shared, "gspo__trl_sequence_dapo_default_loss_type")
    logps, old, advantages, mask = tensors(case)
    gspo_loss(logps, old, advantages, mask).value.backward()
    assert logps.grad is not None
    expected = torch.tensor(case["outputs"]["grad_log_prob"])
    lengths_B = mask.sum(-1, keepdim=True)
    torch.testing.assert_close(logps.grad * lengths_B * len(mask) / mask.sum(), expected, **case["tolerance"])


PPO: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Loss]] = {
    "sym_0p2_token_mean": lambda *t: ppo_clip_loss(*t, dual_clip=3.0),
    "dapo_clip_higher_0p2_0p28": lambda *t: ppo_clip_loss(*t, clip_high=0.28, dual_clip=3.0),
    "dual_clip_negative_adv": lambda *t: ppo_clip_loss(*t, dual_clip=3.0),
    "seq_mean_token_mean": lambda *t: ppo_clip_loss(*t, dual_clip=3.0, aggregation="seq-mean-token-mean"),
    "trl_token_two_sided_delta": lambda *t: ppo_clip_loss(*t, delta=3.0, aggregation="seq-mean-token-mean"),
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


def test_kl_has_the_straight_through_estimator_that_verl_only_documents(shared: Path) -> None:
    case = vector(shared, "kl__verl_k3_plus")
    assert case["outputs"]["raises"]["error_type"] == "NotImplementedError"
    logps = torch.tensor(case["inputs"]["logprob"], requires_grad=True)
    reference = torch.tensor(case["inputs"]["ref_logprob"])
    estimate = kl_estimate(logps, reference, "k3+")
    torch.testing.assert_close(estimate.detach(), kl_estimate(logps.detach(), reference, "k3"))
    estimate.sum().backward()
    torch.testing.assert_close(logps.grad, (logps.detach() - reference).clamp(-20, 20))


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


#: Parameters of the released code and what they are here. Tokens are summed over 1000, whatever the batch.
OMEGAS = {0: "none", 1: "drgrpo", 2: "grpo"}


def nft(case: dict[str, Any]) -> tuple[Loss, Tensor]:
    inputs, parameters = case["inputs"], case["parameters"]
    logps = torch.tensor(inputs["log_prob"], requires_grad=True)
    loss = nft_loss(
        logps,
        torch.tensor(inputs["old_log_prob"]),
        torch.tensor(inputs["correct_mask"]),
        torch.tensor(inputs["correct_rate"]),
        torch.tensor(inputs["response_mask"]),
        omega=OMEGAS[parameters["normalize"]],  # pyright: ignore[reportArgumentType]
        neg_weight=parameters["neg_weight"],
        eps=parameters["clamp_negative"],
        eps_positive=parameters["clamp_positive"],
        aggregation="seq-mean-token-sum-norm",
        norm=parameters["token_sum_divisor"],
        denominator=1.0,
    )
    return loss, logps


@pytest.mark.parametrize(
    "name",
    [
        "clamp_negative_0p1",
        "empty_response",
        "negative_ratio_goes_negative",
        "omega_none",
        "rft_only_positive",
    ],
)
def test_nft(shared: Path, name: str) -> None:
    case = vector(shared, f"nft__token_{name}")
    check(case, *nft(case))


def test_nft_keeps_the_direction_where_the_released_code_loses_it(shared: Path) -> None:
    case = vector(shared, "nft__token_ratio_overflow")
    loss, logps = nft(case)
    torch.testing.assert_close(
        loss.value.detach(), torch.tensor(case["outputs"]["loss"]), **case["tolerance"]
    )
    loss.value.backward()
    assert logps.grad is not None
    expected = torch.tensor(case["outputs"]["grad_log_prob"])
    lost = (logps.detach() - torch.tensor(case["inputs"]["old_log_prob"])) > 10
    assert lost.sum() == 2
    torch.testing.assert_close(logps.grad[~lost], expected[~lost], **case["tolerance"])
    assert (expected[lost] == 0).all()
    assert logps.grad[0, 0] < 0  # a right response goes up, a wrong one down
    assert logps.grad[1, 1] > 0


def test_nft_gives_a_uniform_group_nothing_where_the_released_code_leaks(shared: Path) -> None:
    case = vector(shared, "nft__token_mixed_batch_with_uniform_group")
    loss, logps = nft(case)
    loss.value.backward()
    assert logps.grad is not None
    expected = torch.tensor(case["outputs"]["grad_log_prob"])
    torch.testing.assert_close(logps.grad[:2], expected[:2], **case["tolerance"])
    assert (expected[2:].abs().sum(-1) > 0).all()
    assert (logps.grad[2:] == 0).all()


def test_nft_has_no_sequence_ratio_since_the_released_one_breaks(shared: Path) -> None:
    case = vector(shared, "nft__sequence_ratio_normalize1_breaks")
    assert case["outputs"]["raises"]["error_type"] == "RuntimeError"
    assert "ratio" not in signature(nft_loss).parameters


def test_nft_gives_a_single_response_no_rate(shared: Path) -> None:
    case = vector(shared, "nft__rate_k1")
    # Rewards of -1 and 1 become 0 and 1. The released rate is 0.5 whatever they are (disputed).
    outcomes = (torch.tensor(case["inputs"]["token_level_rewards"]).sum(-1) + 1) / 2
    assert torch.tensor(case["outputs"]["correct_rate"])[:, 0].tolist() == [0.5, 0.5]
    assert group_rates(outcomes, torch.tensor([0, 1]), torch.ones(2, dtype=torch.bool)).tolist() == [0, 0]


def verifree_rows(case: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The logit table, log-probabilities of each row's tokens, their mask, and which are the reference's."""
    inputs = case["inputs"]
    table = torch.tensor(inputs["logit_table"], requires_grad=True)
    log_table = (table / case["parameters"]["temperature"]).log_softmax(-1)
    rows, references = [], []
    for prompt, think, answer in zip(
        inputs["prompt_ids"], inputs["think_ids"], inputs["answer_ids"], strict=True
    ):
        ids = torch.tensor(think + answer)
        before = torch.tensor([*prompt, *think, *answer])[len(prompt) - 1 : -1]
        rows.append(log_table[before, ids])
        references.append(torch.arange(len(ids)) >= len(think))
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=math.nan)
    reference = torch.nn.utils.rnn.pad_sequence(references, batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    return table, padded, torch.arange(padded.shape[1]) < lengths[:, None], reference


def verifree_rewards(case: dict[str, Any], logps: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    """R of each row as the service computes it, 0 for a truncated one, and its advantage."""
    rewards = torch.tensor(
        [
            0.0 if cut else aggregate_logprobs(row[place], "product")
            for row, place, cut in zip(logps.detach(), reference, case["inputs"]["no_eos"], strict=True)
        ]
    )
    group, valid = torch.zeros(len(rewards), dtype=torch.long), torch.ones(len(rewards), dtype=torch.bool)
    if case["parameters"]["critic_type"] == "rloo":
        return rewards, rloo_advantages(rewards, group, valid)
    return rewards, grpo_advantages(rewards, group, valid, scale="none")


VERIFREE = [
    "k4_reference_setting",
    "bf16_weights",
    "grpo_critic_meanbaseline",
    "no_eos_row_ignored",
    "temperature_0p7",
]


@pytest.mark.parametrize("name", VERIFREE)
def test_verifree(shared: Path, name: str) -> None:
    case = vector(shared, f"verifree__{name}")
    table, logps, mask, reference = verifree_rows(case)
    rewards, advantages = verifree_rewards(case, logps, reference)
    for ours, key in ((rewards, "R"), (advantages, "A")):
        torch.testing.assert_close(ours, torch.tensor(case["outputs"][key]), **case["tolerance"])
    learned = mask & torch.tensor(case["inputs"]["loss_mask"])[:, None]
    loss = verifree_loss(logps, advantages, rewards, learned, reference, denominator=1.0)
    loss.value.backward()
    expected = case["outputs"]
    torch.testing.assert_close(
        loss.value.detach(), torch.tensor(expected["microbatch_losses_sum"]), **case["tolerance"]
    )
    torch.testing.assert_close(table.grad, torch.tensor(expected["grad_logit_table"]), **case["tolerance"])


def test_verifree_gives_four_rows_at_once_what_they_give_one_by_one(shared: Path) -> None:
    at_once = vector(shared, "verifree__micro_batch_4_broadcast")
    one_by_one = vector(shared, "verifree__k4_reference_setting")
    table, logps, mask, reference = verifree_rows(at_once)
    rewards, advantages = verifree_rewards(at_once, logps, reference)
    loss = verifree_loss(logps, advantages, rewards, mask, reference, denominator=1.0)
    loss.value.backward()
    expected = torch.tensor(one_by_one["outputs"]["grad_logit_table"])
    torch.testing.assert_close(table.grad, expected, **at_once["tolerance"])
    # The released code's gradient of the same rows, times 4 for its mean over the micro-batch.
    broadcast = torch.tensor(at_once["outputs"]["grad_logit_table"]) * 4
    assert not torch.allclose(broadcast, expected, rtol=0.1, atol=1e-3)
