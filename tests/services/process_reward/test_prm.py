"""The implicit PRM against PRIME's public results, on a model that is a table of logits."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from guerdon_services.process_reward.prm import ImplicitPRM, Objective
from guerdon_services.process_reward.references import Frozen
from guerdon_services.runtime.scorer import NotReady
from guerdon_services.scoring import ScoredSequence


def vector(shared: Path, name: str) -> dict[str, Any]:
    return json.loads((shared / "vectors" / f"{name}.json").read_text())


def sequences_of(inputs: dict[str, Any], prompt_length: int = 2) -> list[ScoredSequence]:
    lengths = [sum(mask) for mask in inputs["attention_mask"]]
    return [
        ScoredSequence(ids[:prompt_length], ids[prompt_length:n])
        for ids, n in zip(inputs["input_ids"], lengths, strict=True)
    ]


Make = Callable[..., ImplicitPRM]


@pytest.fixture
def prm_of(table_model: Callable[[Any], Any]) -> Make:
    """Makes a PRM of two tables of logits."""

    def make(
        inputs: dict[str, Any], *, lr: float = 0.5, max_tokens: int = 10_000, grad_clip: float = 10.0
    ) -> ImplicitPRM:
        policy, reference = table_model(inputs["policy_table"]), table_model(inputs["ref_table"])
        optimizer = torch.optim.SGD(policy.parameters(), lr=lr)
        return ImplicitPRM(policy, Frozen(reference), optimizer, grad_clip=grad_clip, max_tokens=max_tokens)

    return make


def table(prm: ImplicitPRM) -> Tensor:
    return next(prm.policy.parameters()).detach()


def assert_rows_close(rows: list[Tensor], expected: list[list[float]], scale: float = 1.0) -> None:
    for row, values in zip(rows, expected, strict=True):
        torch.testing.assert_close(row * scale, torch.tensor(values[: len(row)]), atol=1e-6, rtol=1e-4)


def test_log_ratios_equal_those_of_the_verl_recipe(shared: Path, prm_of: Make) -> None:
    data = vector(shared, "prime_reward__verl_recipe_token")
    ratios = prm_of(data["inputs"]).log_ratios(sequences_of(data["inputs"]), temperature=1.0)
    assert_rows_close(ratios, data["outputs"]["q"])


def test_the_last_token_keeps_its_reward(shared: Path, prm_of: Make) -> None:
    """Disputed vector: the recipe drops the last token's reward; the released code, and we, keep it."""
    data = vector(shared, "prime_reward__verl_recipe_token")
    beta = data["parameters"]["beta_train"]
    ratios = prm_of(data["inputs"]).log_ratios(sequences_of(data["inputs"]), temperature=1.0)
    for row, scores, q in zip(
        ratios, data["outputs"]["token_level_scores"], data["outputs"]["q"], strict=True
    ):
        last = len(row) - 1
        torch.testing.assert_close(beta * row[:last], torch.tensor(scores[:last]), atol=1e-6, rtol=1e-4)
        assert scores[last] == 0.0
        assert math.isclose(beta * row[last].item(), beta * q[last], rel_tol=1e-4)


@pytest.mark.parametrize("max_tokens", [1, 10_000])
@pytest.mark.parametrize("order", ["after", "before"])
def test_a_step_and_both_orders_equal_those_of_the_verl_recipe(
    shared: Path, order: str, max_tokens: int, prm_of: Make
) -> None:
    data = vector(shared, f"prime_order__update_{order}")
    sequences = sequences_of(data["inputs"])
    prm = prm_of(data["inputs"], max_tokens=max_tokens)
    step = prm.step(sequences, data["inputs"]["acc"], Objective(0.05, 1.0))
    ratios = step.log_ratios if order == "after" else prm.log_ratios(sequences, temperature=1.0)
    torch.testing.assert_close(table(prm), torch.tensor(data["outputs"]["table_after"]), atol=1e-6, rtol=1e-4)
    # The recipe's last token again: compared without it.
    assert_rows_close([row[:-1] for row in ratios], data["outputs"]["rm_scores"], scale=0.05)
    if order == "after":
        assert math.isclose(step.loss, data["outputs"]["loss"][0], rel_tol=1e-4)
        assert math.isclose(step.grad_norm, data["outputs"]["grad_norm"][0], rel_tol=1e-4)


def random_inputs(size: int = 9) -> tuple[dict[str, Any], list[ScoredSequence], list[float]]:
    generator = torch.Generator().manual_seed(1)
    inputs = {
        "policy_table": torch.randn(size, size, generator=generator).tolist(),
        "ref_table": torch.randn(size, size, generator=generator).tolist(),
    }
    lengths = [3, 7, 1, 5, 2]
    ids = [torch.randint(size, (n + 2,), generator=generator).tolist() for n in lengths]
    return inputs, [ScoredSequence(row[:2], row[2:]) for row in ids], [1.0, 0.0, 0.0, 1.0, 0.5]


def test_an_empty_response_changes_nothing(prm_of: Make) -> None:
    inputs, sequences, outcomes = random_inputs()
    without, with_empty = prm_of(inputs), prm_of(inputs)
    first = without.step(sequences, outcomes, Objective(0.5, 1.0))
    second = with_empty.step([ScoredSequence([1], []), *sequences], [1.0, *outcomes], Objective(0.5, 1.0))
    assert torch.equal(table(without), table(with_empty))
    assert first.loss == second.loss


def test_parts_of_any_size_make_the_same_step(prm_of: Make) -> None:
    inputs, sequences, outcomes = random_inputs()
    tables = []
    for max_tokens in (1, 12, 10_000):
        prm = prm_of(inputs, max_tokens=max_tokens)
        prm.step(sequences, outcomes, Objective(0.5, 0.7))
        tables.append(table(prm))
    torch.testing.assert_close(tables[0], tables[2], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(tables[1], tables[2], atol=1e-6, rtol=1e-5)


def test_a_step_that_does_not_fit_in_memory_is_made_in_smaller_parts(prm_of: Make) -> None:
    inputs, sequences, outcomes = random_inputs()
    whole, short = prm_of(inputs), prm_of(inputs)
    whole.step(sequences, outcomes, Objective(0.5, 1.0))
    cast(Any, short.policy).fits = 14
    short.step(sequences, outcomes, Objective(0.5, 1.0))
    torch.testing.assert_close(table(short), table(whole), atol=1e-6, rtol=1e-5)


def test_a_sequence_that_does_not_fit_at_all_is_unavailable_and_leaves_the_weights(prm_of: Make) -> None:
    inputs, sequences, outcomes = random_inputs()
    prm = prm_of(inputs)
    cast(Any, prm.policy).fits = 5
    before = table(prm).clone()
    with pytest.raises(NotReady, match="memory"):
        prm.step(sequences, outcomes, Objective(0.5, 1.0))
    assert torch.equal(table(prm), before)


def test_a_gradient_that_is_not_finite_leaves_the_weights(prm_of: Make) -> None:
    inputs, sequences, _ = random_inputs()
    prm = prm_of(inputs)
    before = table(prm).clone()
    with pytest.raises(FloatingPointError, match="not finite"):
        prm.step(sequences, [math.nan] * 5, Objective(0.5, 1.0))
    assert torch.equal(table(prm), before)


def test_the_gradient_is_clipped_and_its_norm_reported_unclipped(prm_of: Make) -> None:
    inputs, sequences, outcomes = random_inputs()
    prm, clipped = prm_of(inputs, lr=1.0), prm_of(inputs, lr=1.0, grad_clip=1e-3)
    before = table(prm).clone()
    norm = prm.step(sequences, outcomes, Objective(5.0, 1.0)).grad_norm
    assert norm > 0.01
    assert math.isclose((table(prm) - before).norm().item(), norm, rel_tol=1e-3)
    assert clipped.step(sequences, outcomes, Objective(5.0, 1.0)).grad_norm == norm
    assert math.isclose((table(clipped) - before).norm().item(), 1e-3, rel_tol=1e-2)
