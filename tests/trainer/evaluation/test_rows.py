"""Rows that are not as they should be, and settings that do not fit, are named."""

import json
from pathlib import Path
from typing import Any

import pytest

from guerdon_trainer.config import RecipeError
from guerdon_trainer.data import DataError
from guerdon_trainer.evaluation.benchmark import load_benchmark, load_benchmark_questions

GSM8K = {"question": "Ann has 3 apples and buys 1,200 more. How many?", "answer": "3+1200=1203\n#### 1,203"}
MMLU_PRO = {
    "question_id": 70,
    "question": "Which is a metal?",
    "options": ["Oxygen", "Iron", "Neon", "Sulfur", "Argon", "Helium", "Xenon", "Boron", "Carbon", "Iodine"],
    "answer": "B",
    "answer_index": 1,
    "category": "chemistry",
}


def written(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("name", "row", "overrides", "sentence"),
    [
        (
            "gsm8k",
            {"question": "a", "answer": "no mark"},
            [],
            "rows.jsonl:2: the field 'answer' has no '####'",
        ),
        (
            "gsm8k",
            {"qestion": "a", "answer": "#### 1"},
            [],
            r"rows.jsonl:2: no field 'question' \(rows.question\)",
        ),
        ("gsm8k", {"question": "a", "answer": None}, [], "rows.jsonl:2: the field 'answer' is null"),
        (
            "gsm8k",
            {"question": " ", "answer": "#### 1"},
            [],
            "rows.jsonl:2: the field 'question' should hold text",
        ),
        (
            "gsm8k",
            {"question": "a", "answer": "#### "},
            [],
            "rows.jsonl:2: the field 'answer' holds no answer",
        ),
        (
            "gsm8k",
            {"question": "a", "answer": "#### 1", "year": "x"},
            ["rows.where=[{field: year, min: 3}]"],
            "rows.jsonl:1: no field 'year' .rows.where.",
        ),
    ],
)
def test_a_wrong_row_is_named_with_its_line_and_field(
    name: str, row: dict[str, Any], overrides: list[str], sentence: str, tmp_path: Path
) -> None:
    path = written(tmp_path, [GSM8K, row])
    with pytest.raises(DataError, match=sentence):
        load_benchmark_questions(load_benchmark(name, overrides, path))


@pytest.mark.parametrize(
    ("row", "overrides", "sentence"),
    [
        (
            {"answer": "K"},
            [],
            "rows.jsonl:1: the field 'answer' is 'K', which is not the letter of one of 10 options",
        ),
        ({"options": "A B"}, [], "rows.jsonl:1: 'options' should hold a list of 2 to 26 options, not 'A B'"),
        ({"options": ["1"]}, [], "should hold a list of 2 to 26 options"),
        (
            {"answer_index": 10},
            ["rows.answer=answer_index", "rows.answer_is=index"],
            "not the index of one of 10",
        ),
        ({"answer": "Tin"}, ["rows.answer_is=text"], "'Tin', which is not the text of one of 10 options"),
        ({"year": "x"}, ["rows.where=[{field: year, min: 3}]"], "'year' is 'x', not to be compared with 3"),
    ],
)
def test_a_wrong_choice_is_named(
    row: dict[str, Any], overrides: list[str], sentence: str, tmp_path: Path
) -> None:
    path = written(tmp_path, [{**MMLU_PRO, **row}])
    with pytest.raises(DataError, match=sentence):
        load_benchmark_questions(load_benchmark("mmlu_pro", overrides, path))


def test_a_program_without_tests_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, [{"task_id": 11, "text": "Add.", "test_list": []}])
    with pytest.raises(DataError, match=r"rows\.jsonl:1: test_list: "):
        load_benchmark_questions(load_benchmark("mbpp", [], path))


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["sampling.n=4"], "sampling.n above 1 needs a sampling.temperature above 0"),
        (["pass_at=[4]"], "pass_at 4 needs as many responses: sampling.n is 1"),
        (["rows.answr=x"], "unknown key 'rows.answr': did you mean 'rows.answer'"),
        (
            ["data.source=reasoning_gym", "data.name=chain_sum"],
            "data.source reasoning_gym makes its questions",
        ),
        (["rollout=math"], "rollout and verifier.service must be two services"),
        (["rows.where=[{field: a}]"], "where 'a' needs equals, min, max or empty"),
    ],
)
def test_settings_that_do_not_fit_are_refused(overrides: list[str], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        load_benchmark("gsm8k", overrides)


def test_a_file_of_another_kind_and_an_unknown_benchmark_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"--data rows.csv: the name must end with one of .jsonl"):
        load_benchmark("gsm8k", [], Path("rows.csv"))
    with pytest.raises(RecipeError, match="no recipe 'gsm': it is no file, and the named ones are aime2024"):
        load_benchmark("gsm")
