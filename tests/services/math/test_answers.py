"""Our own table of labelled answers, and the accuracy on the shared cases where they are at hand."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guerdon.types import Result, Status

REPOSITORY = Path(__file__).parents[3]
GOLDEN = REPOSITORY / "tests/golden/math"
SHARED = Path(os.environ.get("GUERDON_SHARED", REPOSITORY.parent / "shared")) / "cases/math/dev.jsonl"

Judge = Callable[..., Result]


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("table", sorted(GOLDEN.glob("*.jsonl")), ids=lambda path: path.stem)
def test_every_answer_of_a_table_is_judged_as_labelled(judge: Judge, table: Path) -> None:
    wrong: list[str] = []
    for number, row in enumerate(rows(table), start=1):
        response = row["response"] if "response" in row else f"So it is \\boxed{{{row['answer']}}}."
        references = row.get("references") or [row["reference"]]
        result = judge(response, *references, **row.get("options", {}))
        expected = (Status.INVALID_INPUT, None) if "status" in row else (Status.OK, float(row["right"]))
        if (result.status, result.value) != expected and not _unjudged(row, result):
            wrong.append(
                f"{table.name}:{number}: {row} gave {result.status} {result.value} ({result.reason})"
            )
    assert not wrong, "\n".join(wrong)


def _unjudged(row: dict[str, Any], result: Result) -> bool:
    """A wrong answer to a reference that cannot be judged is nobody's 1, and that is all its label says."""
    return row.get("right") is False and result.status is Status.INVALID_INPUT


def test_the_tables_have_every_kind_and_both_labels() -> None:
    every = [row for table in GOLDEN.glob("*.jsonl") for row in rows(table)]
    assert len(every) >= 4000
    assert len({row["kind"] for row in every}) >= 60
    labels = [row["right"] for row in every if "right" in row]
    assert min(labels.count(True), labels.count(False)) >= 0.4 * len(labels)


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
