"""The shared corpus: benign programs exactly as labelled, hostile ones as they must end.

A fixed sample by default, all of it with GUERDON_FULL=1.
"""

import json
import os
import socket
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from guerdon.types import CodeTask, CodeTest, Compare, Limits, Result, Status

SHARED = Path(os.environ.get("GUERDON_SHARED", Path(__file__).parents[4] / "shared"))
FULL = os.environ.get("GUERDON_FULL") == "1"
KINDS = ("stdio", "call", "assert")
#: Of rows that run into a time limit, and of the many alike, one in so many by default.
SAMPLE = 4
SECRET = "guerdon-secret-value"

Row = dict[str, Any]

pytestmark = pytest.mark.timeout(1860 if FULL else 600)


def rows(name: str) -> list[Row]:
    path = SHARED / "cases" / "code" / f"{name}.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not there: set GUERDON_SHARED")
    found = [json.loads(line) for line in path.read_text().splitlines()]
    found = [row for row in found if row["lang"] == "python" and row["kind"] in KINDS]
    return found if FULL else [row for row in found if zlib.crc32(row["id"].encode()) % SAMPLE == 0]


def text(test: Row, name: str) -> str | None:
    if name in test:
        return test[name]
    parts = test.get(f"{name}_parts")
    return None if parts is None else "".join(part * times for part, times in parts)


def task(row: Row) -> CodeTask:
    tests = [
        CodeTest(
            input=text(test, "input"),
            output=text(test, "output"),
            outputs=test.get("outputs", []),
            args=test.get("args"),
            expected=test.get("expected"),
            test=test.get("test"),
        )
        for test in row["tests"]
    ]
    compare = {name: value for name, value in row["compare"].items() if name != "strict_bool"}
    return CodeTask(
        kind=row["kind"],
        function=row.get("fn"),
        tests=tests,
        compare=None if row["kind"] == "assert" else Compare.model_validate(compare),
        limits=Limits(wall_s=float(row["limits"]["wall_s"]), memory_mb=row["limits"]["mem_mb"]),
        setup=row["tests"][0].get("setup"),
    )


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def test_benign_rows_are_judged_exactly_as_labelled(ask: Any) -> None:
    chosen = rows("benign")

    def judge(row: Row) -> tuple[str, list[str], list[str]]:
        result: Result = ask.task(row["code"], task(row))
        got = [test.verdict for test in result.verdict.tests] if result.verdict else [result.reason]
        return row["id"], got, row["expected"]["verdicts"]

    with ThreadPoolExecutor(2) as pool:
        differing = [answer for answer in pool.map(judge, chosen) if answer[1] != answer[2]]
    assert chosen
    assert differing == []


def test_hostile_rows_end_as_they_must(
    ask: Any, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUERDON_TEST_SECRET", SECRET)
    chosen = rows("hostile")
    problems: list[str] = []

    def judge(row: Row) -> Result:
        code = row.get("code") or "".join(part * times for part, times in row["code_parts"])
        code = code.replace("{{PORT}}", str(listener.getsockname()[1])).replace("{{ABSTRACT}}", "guerdon")
        return ask.task(code.replace("{{SECRET}}", SECRET), task(row))

    with ThreadPoolExecutor(2) as pool:
        for row, result in zip(chosen, pool.map(judge, chosen), strict=True):
            problems += [f"{row['id']}: {problem}" for problem in broken(row, result)]
    assert chosen
    assert problems == []
    with pytest.raises(BlockingIOError):
        listener.accept()
    assert ask.stdio("print(6)") == "AC"


def broken(row: Row, result: Result) -> list[str]:
    """What of the row's `must_hold` does not hold."""
    hold = row["must_hold"]
    if result.status is not Status.OK or result.verdict is None:
        return [f"status {result.status}: {result.reason}"]
    verdicts = {test.verdict for test in result.verdict.tests}
    problems = [f"verdict {verdict}" for verdict in verdicts & set(hold["verdict_not"])]
    if hold.get("verdict_in") and not verdicts <= set(hold["verdict_in"]):
        problems.append(f"verdicts {verdicts}, not in {hold['verdict_in']}")
    problems += [f"{path} exists" for path in hold.get("file_absent", []) if os.path.lexists(path)]
    return problems
