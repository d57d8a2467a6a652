"""The page says what was measured, and names what was not."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from experiments.page import table, write_page
from experiments.plan import Comparison, Plan, PlannedRun, load_plan
from experiments.results import Curve
from guerdon_trainer.config import load_recipe


def _plan() -> Plan:
    runs = {name: PlannedRun(recipe="quickstart") for name in ("a", "b", "c")}
    comparison = Comparison(
        name="a_and_b", title="A and B", claim="A is better.", arms={"A": "a", "B": "b", "C": "c"}
    )
    return Plan(runs=runs, table=["a", "b", "c"], comparisons=[comparison])


def _write(root: Path, name: str, accuracies: list[float]) -> None:
    folder = root / name
    folder.mkdir()
    rows = [{"step": 5 * place, "accuracy": value, "failed": 0} for place, value in enumerate(accuracies)]
    (folder / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sampled = [{"step": place, "accuracy": value} for place, value in enumerate(accuracies, 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sampled))
    (folder / "finished.json").write_text("{}")


def test_the_page_has_one_table_and_a_plot_per_comparison(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    root.mkdir()
    _write(root, "a-seed0", [0.2, 0.9])
    _write(root, "a-seed1", [0.3, 0.8])
    _write(root, "b-seed0", [0.25, 0.3])
    page = write_page(_plan(), root, tmp_path / "page").read_text()
    assert "| a | 2 | 25.0% (20.0% to 30.0%) | 85.0% (80.0% to 90.0%) | 2, never | yes | 0 |" in page
    assert "| b | 1 | 25.0% (25.0% to 25.0%) | 30.0% (30.0% to 30.0%) | never | no | 0 |" in page
    assert "| c | 0 | not finished | | | | |" in page
    assert "Claimed: A is better." in page
    assert "Not finished: C." in page
    plot = (tmp_path / "page" / "a_and_b.svg").read_text()
    assert "A (2 seeds)" in plot
    assert "B (1 seeds)" in plot


def test_learned_is_said_per_seed() -> None:
    curves = {"x": [Curve(0, [0, 5], [0.2, 0.9], [], 0), Curve(1, [0, 5], [0.2, 0.21], [], 3)]}
    assert table(["x"], curves).splitlines()[-1].endswith("| 1 of 2 | 3 |")


def test_every_planned_run_is_a_recipe_that_loads() -> None:
    plan = load_plan()
    for name, run in plan.runs.items():
        assert load_recipe(run.recipe, run.settings).training.steps > 0, name


def test_a_comparison_of_a_run_that_is_not_planned_is_refused() -> None:
    with pytest.raises(ValidationError, match="not among runs: d"):
        Plan(runs={"a": PlannedRun(recipe="quickstart")}, table=["a", "d"], comparisons=[])
