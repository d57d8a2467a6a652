"""Advantages against results of the public implementations (`GUERDON_SHARED/vectors`, not part of this repository)."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from guerdon_trainer.advantages import grpo_advantages, keep_by_accuracy, prime_advantages


def vector(shared: Path, name: str) -> dict[str, Any]:
    return json.loads((shared / "vectors" / f"{name}.json").read_text())


def all_valid(groups_B: Tensor) -> Tensor:
    return torch.ones(len(groups_B), dtype=torch.bool)


def blocks(rows: int, size: int) -> Tensor:
    return torch.arange(rows) // size


@pytest.mark.parametrize("name", ["drgrpo_verl_nostd", "grpo_verl_ragged_groups"])
def test_grpo_verl(shared: Path, name: str) -> None:
    case = vector(shared, f"baseline_adv__{name}")
    mask = torch.tensor(case["inputs"]["response_mask"])
    rewards = torch.tensor(case["inputs"]["token_level_rewards"]).sum(-1)
    names = sorted(set(case["inputs"]["index"]))
    groups = torch.tensor([names.index(name) for name in case["inputs"]["index"]])
    scale = "none" if "nostd" in name else "std"
    advantages = grpo_advantages(rewards, groups, all_valid(groups), scale=scale)
    expected = torch.tensor(case["outputs"]["advantages"])
    torch.testing.assert_close(advantages[:, None] * mask, expected, **case["tolerance"])


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        ("drgrpo_trl_none", "none"),
        ("grpo_trl_batch", "batch_std"),
        ("grpo_trl_multi_reward_nan_unscorable", "std"),
    ],
)
def test_grpo_trl(shared: Path, name: str, scale: Any) -> None:
    case = vector(shared, f"baseline_adv__{name}")
    per_function = torch.tensor(
        [[float(value) for value in row] for row in case["inputs"]["rewards_per_func"]]
    )
    weights = torch.tensor(case["inputs"]["reward_weights"])
    valid = ~per_function.isnan().all(-1)
    rewards = (per_function * weights).nansum(-1)
    groups = blocks(len(rewards), case["parameters"]["num_generations"])
    advantages = grpo_advantages(rewards, groups, valid, scale=scale, eps=case["parameters"]["eps"])
    torch.testing.assert_close(advantages, torch.tensor(case["outputs"]["advantages"]), **case["tolerance"])


def prime_inputs(case: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    inputs = case["inputs"]
    rewards, outcome, mask = (torch.tensor(inputs[k]) for k in ("rm_scores", "outcome", "response_mask"))
    groups = blocks(len(outcome), case["parameters"]["n_samples"])
    return rewards, outcome, mask, groups, all_valid(groups)


@pytest.mark.parametrize(
    ("name", "process_weight", "outcome_weight"),
    [
        ("orig_k2", 1.0, 1.0),
        ("verl_recipe_equal_coefs", 5.0, 5.0),
        ("verl_recipe_unequal_coefs", 5.0, 1.0),
        ("verl_recipe_process_off", 0.0, 1.0),
    ],
)
def test_prime_in_its_released_form(
    shared: Path, name: str, process_weight: float, outcome_weight: float
) -> None:
    case = vector(shared, f"prime_adv__{name}")
    rewards, outcome, mask, groups, valid = prime_inputs(case)
    valid_tokens = mask.bool()
    weights = {"process_weight": process_weight, "outcome_weight": outcome_weight}
    for whiten, key in ((False, "returns"), (True, "advantages")):
        ours = prime_advantages(
            rewards, outcome, mask, groups, valid, form="released", whiten=whiten, **weights
        )
        torch.testing.assert_close(
            ours[valid_tokens], torch.tensor(case["outputs"][key])[valid_tokens], **case["tolerance"]
        )


def test_prime_in_its_paper_form(shared: Path) -> None:
    case = vector(shared, "prime_adv__orig_k2")
    rewards, outcome, mask, groups, valid = prime_inputs(case)
    valid_tokens = mask.bool()
    ours = prime_advantages(rewards, outcome, mask, groups, valid, form="paper", whiten=False)
    expected = torch.tensor(case["outputs"]["paper_returns_by_generator"])
    torch.testing.assert_close(ours[valid_tokens], expected[valid_tokens], **case["tolerance"])


def test_prime_stays_finite_where_the_released_code_poisons_the_batch(shared: Path) -> None:
    rewards, outcome, mask, groups, valid = prime_inputs(
        vector(shared, "prime_adv__orig_empty_response_poisons_batch")
    )
    advantages = prime_advantages(rewards, outcome, mask, groups, valid, form="released")
    assert advantages.isfinite().all()
    assert (advantages[~mask.bool()] == 0).all()


@pytest.mark.parametrize("name", ["bounds_inclusive_k5", "k4_default_bounds"])
def test_accuracy_filter(shared: Path, name: str) -> None:
    case = vector(shared, f"prime_filter__{name}")
    outcomes = torch.tensor(case["inputs"]["acc"]).float().flatten()
    groups = blocks(len(outcomes), case["parameters"]["n_samples"])
    kept = keep_by_accuracy(outcomes, groups, all_valid(groups), lower=0.2, upper=0.8)
    expected = torch.tensor(case["outputs"]["keep_mask"]).flatten().bool()
    assert [group in kept for group in groups.tolist()] == expected.tolist()
