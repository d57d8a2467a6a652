"""Our own table of labelled answers, and the accuracy on the shared cases where they are at hand."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guerdon.types import Result, Status

REPOSITORY = Path(__file__).parents[3]
GOLDEN = REPOSITORY / "tests/golden/math/answers.jsonl"
SHARED = Path(os.environ.get("GUERDON_SHARED", REPOSITORY.parent / "shared")) / "cases/math/dev.jsonl"

Judge = Callable[..., Result]


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


CASES = rows(GOLDEN)


@pytest.mark.parametrize("case", CASES, ids=[f"{case['kind']}-{index}" for index, case in enumerate(CASES)])
def test_answer(judge: Judge, case: dict[str, Any]) -> None:
    result = judge(f"So it is \\boxed{{{case['answer']}}}.", case["reference"])
    assert result.status is Status.OK, result.reason
    assert result.value == float(case["right"]), result.reason


def test_the_table_has_every_kind_and_both_labels() -> None:
    assert len(CASES) >= 180
    kinds = {case["kind"] for case in CASES}
    assert len(kinds) >= 20
    assert {case["right"] for case in CASES} == {True, False}


@pytest.mark.slow
def test_accuracy_on_the_shared_cases(judge: Judge) -> None:
    """Core cases as `docs/math.md` defines them; the figures there are this test's."""
    if not SHARED.exists():
        pytest.skip(f"no shared cases at {SHARED}")
    right = {True: 0, False: 0}
    total = {True: 0, False: 0}
    for row in rows(SHARED):
        if (
            row.get("disputed")
            or row["kind"] == "semantic-text"
            or row.get("trap") in ("hang", "size", "exec")
        ):
            continue
        bare = row["form"] == "answer"
        response = f"\\boxed{{{row['response']}}}" if bare else row["response"]
        references = row.get("golds") or [row["gold"]]
        result = judge(response, *references, extraction="last_box" if bare else "lenient")
        expected = row["expected"] == 1
        total[expected] += 1
        right[expected] += (result.value == 1.0) is expected
    assert sum(right.values()) / sum(total.values()) >= 0.985
    assert right[False] / total[False] >= 0.995
    assert right[True] / total[True] >= 0.98
