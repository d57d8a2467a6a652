"""Rows of public data sets become tasks; what is wrong with a row is said by field."""

import base64
import json
import pickle
import zlib
from typing import Any

import pytest

from guerdon.code_tasks import RowError, code_task, pickled_text
from guerdon.types import CodeTest, Limits

PROMPT = '''from typing import List

def helper(x):
    return x

@helper
def add(a: int, b: int) -> int:
    """Add."""
'''
CHECK = "def check(candidate):\n    assert candidate(1, 2) == 3\n"


def shapes(row: Any, **more: Any) -> tuple[str, str | None, list[CodeTest]]:
    task = code_task(row, **more)
    return task.kind, task.function, task.tests


def test_humaneval() -> None:
    task = code_task(
        {"task_id": "x", "prompt": PROMPT, "entry_point": "add", "test": CHECK, "canonical_solution": ""}
    )
    assert (task.kind, task.function, task.tests) == ("assert", "add", [CodeTest(test=CHECK)])
    assert task.setup == "from typing import List\n\ndef helper(x):\n    return x"
    alone = code_task({"prompt": "def add(a, b):\n    return", "entry_point": "add", "test": CHECK})
    assert alone.setup is None
    cut = code_task({"prompt": "import math\ndef add(a,\n", "entry_point": "add", "test": CHECK})
    assert cut.setup == "import math\n"


def test_methods_of_a_solution() -> None:
    row = {"prompt": "import math\n", "entry_point": "Solution().add", "test": CHECK, "query": "..."}
    assert code_task(row).function == "add"


@pytest.mark.parametrize(
    ("test", "kind"),
    [
        ("from solution import add\ndef test_add(): assert add(1, 2) == 3", "assert"),
        ("import unittest\nclass TestAdd(unittest.TestCase): ...", "unittest"),
    ],
)
def test_sources_of_tests(test: str, kind: str) -> None:
    row = {"question": "...", "solution": "...", "test": test, "test_info": [{"function_name": "add"}]}
    assert shapes(row) == (kind, None, [CodeTest(test=test)])
    assert shapes(row | {"entry_point": "add"}) == (kind, None, [CodeTest(test=test)])


def test_mbpp() -> None:
    row = {
        "text": "...",
        "code": "...",
        "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"],
        "test_setup_code": "root = Node(1)",
        "challenge_test_list": ["assert add(9, 9) == 18"],
    }
    tests = [CodeTest(test=f"root = Node(1)\n{line}") for line in row["test_list"]]
    assert shapes(row) == ("assert", None, tests)
    assert len(code_task(row, challenge=True).tests) == 3
    sanitized = {
        "prompt": "...",
        "code": "...",
        "test_imports": ["import math"],
        "test_list": ["assert f(1) == 2"],
    }
    assert shapes(sanitized)[2] == [CodeTest(test="import math\nassert f(1) == 2")]
    plus = sanitized | {"test": "import numpy\nassert f(1) == 2"}
    assert shapes(plus)[2] == [CodeTest(test="import numpy\nassert f(1) == 2")]


def test_apps_and_taco() -> None:
    stdio = {"inputs": ["1 2\n", ["3 4", "5"]], "outputs": ["3\n", ["7", "5"]]}
    expected = (
        "stdio",
        None,
        [CodeTest(input="1 2\n", output="3\n"), CodeTest(input="3 4\n5", output="7\n5")],
    )
    assert shapes({"input_output": json.dumps(stdio), "starter_code": ""}) == expected
    assert shapes({"input_output": stdio}) == expected
    call = {"fn_name": "add", "inputs": [[1, 2], [[1], "2"]], "outputs": [3, "12"]}
    calls = [CodeTest(args=[1, 2], expected=3), CodeTest(args=[[1], "2"], expected="12")]
    assert shapes({"input_output": json.dumps(call)}) == ("call", "add", calls)
    wrapped = call | {"outputs": [[3], [["12"]]]}
    assert [test.expected for test in code_task({"input_output": wrapped}).tests] == [3, ["12"]]


def test_ground_truths() -> None:
    truth = {"inputs": ["1"], "outputs": ["2"]}
    expected = ("stdio", None, [CodeTest(input="1", output="2")])
    assert shapes(truth) == shapes(json.dumps(truth)) == expected
    assert shapes({"reward_model": {"style": "rule", "ground_truth": json.dumps(truth)}}) == expected
    assert shapes({"tests": json.dumps(truth)}) == expected
    assert shapes({"tests": [{"input": "1", "output": "2", "testtype": "stdin"}]}) == expected
    functional = {
        "input": "[1, 2]\n3",
        "output": "[4]",
        "testtype": "functional",
        "metadata": {"func_name": "f"},
    }
    assert shapes({"tests": [functional]}) == ("call", "f", [CodeTest(args=[[1, 2], 3], expected=[4])])
    assert shapes({"assert_case": ["assert f(1) == 2"]}) == (
        "assert",
        None,
        [CodeTest(test="assert f(1) == 2")],
    )


def packed(cases: list[Any], protocol: int = 4) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases), protocol))).decode()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_live_code_bench(protocol: int) -> None:
    public = [{"input": '[1, 2]\n"a"', "output": "true", "testtype": "functional"}]
    private = [
        {"input": f"[{'9' * size}]\nnull", "output": "1.5", "testtype": "functional"}
        for size in (1, 400, 90_000)
    ]
    row = {
        "question_content": "...",
        "public_test_cases": json.dumps(public),
        "private_test_cases": packed(private, protocol),
        "metadata": json.dumps({"func_name": "solve"}),
        "starter_code": "class Solution: ...",
    }
    if protocol:
        private[2]["input"] = "[1]\n" + json.dumps("x" * 90_000)
        row["private_test_cases"] = packed(private, protocol)
    task = code_task(row)
    assert (task.kind, task.function, len(task.tests)) == ("call", "solve", 4)
    assert (task.tests[0].args, task.tests[0].expected) == ([[1, 2], "a"], True)
    assert task.tests[3].args == [[1], "x" * 90_000]
    stdin = [{"input": "1\n", "output": "2\n", "testtype": "stdin"}]
    row |= {"public_test_cases": json.dumps(stdin), "private_test_cases": json.dumps(stdin), "metadata": "{}"}
    assert shapes(row) == ("stdio", None, [CodeTest(input="1\n", output="2\n")] * 2)


class Bomb:
    def __reduce__(self) -> Any:
        return (print, ("unpickled",))


@pytest.mark.parametrize("held", [Bomb(), ["text"], 3, None, b"bytes", ("a", "b"), {"a": "b"}])
def test_no_pickle_but_of_one_text_is_read(held: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for protocol in range(6):
        with pytest.raises(ValueError, match="pickle"):
            pickled_text(pickle.dumps(held, protocol))
    whole = pickle.dumps("text")
    assert pickled_text(whole) == "text"
    for end in range(len(whole)):
        with pytest.raises(ValueError, match="pickle"):
            pickled_text(whole[:end])
    with pytest.raises(ValueError, match="pickle"):
        pickled_text(whole + b".")
    assert capsys.readouterr().out == ""


def test_codeforces() -> None:
    row = {
        "id": "1/A",
        "official_tests": [{"input": "1\n", "output": "2\n"}],
        "time_limit": 2.0,
        "memory_limit": 256.0,
        "input_mode": "stdio",
        "generated_checker": None,
        "examples": [],
    }
    task = code_task(row)
    assert (task.kind, task.tests) == ("stdio", [CodeTest(input="1\n", output="2\n")])
    assert task.limits == Limits(cpu_s=2.0, memory_mb=256)
    assert task.compare is not None
    assert task.compare.mode == "tokens"
    checked = code_task(row | {"generated_checker": "print('1')"})
    assert checked.compare is not None
    assert checked.compare.mode == "checker"
    space: dict[str, Any] = {}
    exec(checked.compare.checker or "", space)
    assert callable(space["check"])


def test_class_designs() -> None:
    row = {"operations": ["Box", "put", "get"], "arguments": [[2], ["a"], []], "expected": [None, None, "a"]}
    kind, function, [test] = shapes(row)
    assert (kind, function) == ("assert", None)
    assert test.test is not None
    assert "subject = Box(*[2])\ngot = subject.put(*['a'])\n" in test.test


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "row: none of test, test_list, input_output"),
        ({"prompt": "x", "answer": "y"}, "it has answer, prompt"),
        ({"input_output": "{}", "official_tests": []}, "several shapes: input_output, official_tests"),
        ("[1]", "row: must be an object"),
        ("{", "row: not JSON"),
        ({"input_output": ""}, "input_output: not JSON"),
        ({"input_output": {"inputs": []}}, "input_output.outputs: must be a list, not NoneType"),
        ({"input_output": {"inputs": [], "outputs": []}}, "input_output.inputs: empty"),
        (
            {"input_output": {"inputs": ["1"], "outputs": []}},
            "input_output.outputs: 0, but there are 1 inputs",
        ),
        (
            {"input_output": {"inputs": [1], "outputs": ["1"]}},
            "input_output.inputs[0]: must be text, not int",
        ),
        ({"input_output": {"fn_name": "f", "inputs": [1], "outputs": [1]}}, "inputs[0]: must be a list"),
        ({"input_output": {"fn_name": "f", "inputs": ["{"], "outputs": [1]}}, "inputs[0]: not JSON"),
        ({"test_list": []}, "test_list: empty"),
        ({"test_list": [1]}, "test_list[0]: must be text"),
        ({"test": 1}, "test: must be text"),
        ({"official_tests": [{"input": "1"}]}, "official_tests[0].output: must be text, not NoneType"),
        ({"official_tests": [{"input": "1", "output": "1"}], "input_mode": "file"}, "input_mode: 'file'"),
        ({"public_test_cases": "[]", "private_test_cases": "!"}, "private_test_cases: not base64"),
        (
            {"public_test_cases": "[]", "private_test_cases": base64.b64encode(b"x").decode()},
            "private_test_cases:",
        ),
        (
            {"public_test_cases": [{"input": "1", "output": "1", "testtype": "functional"}]},
            "metadata.func_name:",
        ),
        (
            {"operations": ["A", "b; c"], "arguments": [[], []], "expected": [0, 0]},
            "operations: not all are names",
        ),
        ({"input_output": {"fn_name": "f", "inputs": [[1]], "outputs": [float("nan")]}}, "expected"),
    ],
)
def test_what_is_wrong_is_named(row: Any, message: str) -> None:
    with pytest.raises(RowError) as caught:
        code_task(row)
    assert message in str(caught.value)
