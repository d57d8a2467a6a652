"""What the service answers: verdicts of each kind, rewards, reasons, and the caller's mistakes."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pydantic import ValidationError

from guerdon.types import CodeTask, CodeTest, Compare, Limits, Status
from guerdon_services.code.service import CodeOptions, CodeSettings

SUM = "print(sum(map(int, input().split())))"


@pytest.mark.parametrize(
    ("program", "verdict"),
    [
        (SUM, "AC"),
        ("print(7)", "WA"),
        ("print(6", "CE"),
        ("print(6)\x00", "CE"),
        ("print(6)\nraise SystemExit(1)", "RE"),
        ("print(6)\n1/0", "RE"),
        ("print(6)\nimport os; os._exit(0)", "WA"),
        ("print(6, flush=True)\nimport os; os._exit(0)", "AC"),
        ("print(6)\nexit()", "AC"),
        ("import sys\nprint(6)\nsys.exit('bad')", "RE"),
        ("x = [0] * 10**9", "MLE"),
        ("def f(n): return f(n + 1)\nf(0)", "RE"),
        ("import atexit\natexit.register(print, 6)", "AC"),
        ("import threading\nthreading.Thread(target=print, args=(6,)).start()", "AC"),
        ("import tempfile, os\nopen('x', 'w').write('6'); print(open('x').read()); os.remove('x')", "AC"),
        ("from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\nprint(A(6).x)", "AC"),
        ("import asyncio\nasync def f(): await asyncio.sleep(0); print(6)\nasyncio.run(f())", "AC"),
        ("import decimal, sqlite3, zoneinfo, http.client, xml.dom.minidom\nprint(6)", "AC"),
        ("import resource\nresource.setrlimit(resource.RLIMIT_STACK, (-1, -1))\nprint(6)", "AC"),
        ("if __name__ == '__main__':\n    print(6)", "AC"),
        ("print('\\ud800')", "RE"),
        ("import sys\nprint(6)\nsys.stdout.close()", "AC"),
        ("import sys\nprint(6)\nsys.stdout = None", "AC"),
        ("import io, sys\nprint(6)\nsys.stdout = io.StringIO()\nprint(7)", "AC"),
        ("\ufeffprint(6)", "AC"),
        ("print(6)\ufeff", "CE"),
    ],
)
def test_stdio_verdicts(ask: Any, program: str, verdict: str) -> None:
    assert ask.stdio(program, "1 2 3\n") == verdict


@pytest.mark.parametrize(
    ("program", "args", "expected", "compare", "verdict"),
    [
        ("def f(a, b): return a + b", [1, 2], 3, {}, "AC"),
        ("class Solution:\n    def f(self, a, b): return a + b", [1, 2], 3, {}, "AC"),
        ("def f(a, b): return float(a + b)", [1, 2], 3, {}, "WA"),
        ("def f(a, b): return float(a + b)", [1, 2], 3, {"rel": 1e-9}, "AC"),
        ("def f(a, b): return float(a + b)", [1, 2], 3, {"mode": "float"}, "AC"),
        ("def f(x): return True", [1], 1, {}, "WA"),
        ("def f(x): return x", [10**40], 10**40, {}, "AC"),
        ("def f(x): return x", [{"é": [None, True, 1.5]}], {"é": [None, True, 1.5]}, {}, "AC"),
        ("def f(x): return (x, x)", [1], [1, 1], {}, "WA"),
        ("def f(x): return (x, x)", [1], [1, 1], {"tuple_as_list": True}, "AC"),
        ("def f(): print('noise'); return None", [], None, {}, "AC"),
        ("def f(x): raise KeyError(x)", [1], 1, {}, "RE"),
        ("def g(x): return x", [1], 1, {}, "RE"),
        ("f = 3", [1], 1, {}, "RE"),
        ("def f(x) return x", [1], 1, {}, "CE"),
        ("def f(x): return {x}", [1], [1], {}, "WA"),
        ("import numpy\ndef f(x): return numpy.array(x) * 2", [[1, 2]], [2, 4], {}, "AC"),
        ("import sys\ndef f(x): sys.exit(0)", [1], 1, {}, "RE"),
        ("def f(x): return '\\ud800'", [1], "x", {}, "WA"),
    ],
)
def test_call_verdicts(
    ask: Any, program: str, args: list[Any], expected: Any, compare: dict[str, Any], verdict: str
) -> None:
    assert ask.call(program, args, expected, **compare) == verdict


def test_modes_reach_the_comparison(ask: Any) -> None:
    assert ask.stdio("print(2); print(1)", output="1\n2\n", mode="unordered_lines") == "AC"
    assert ask.stdio("print(2); print(1)", output="1\n2\n", mode="lines_rstrip") == "WA"
    assert ask.stdio("print(2)", output="1\n", outputs=["3", "2"], mode="any_of") == "AC"
    assert ask.stdio("print(4)", output="1\n", outputs=["3", "2"], mode="any_of") == "WA"
    assert ask.stdio("print(0.30000001)", output="0.3\n", mode="float", abs=1e-6) == "AC"
    assert ask.stdio("print(6, end='')", output="6\n", mode="exact") == "WA"


CHECKER = "def check(input, output, expected):\n    return int(output) * int(input) == int(expected)"


@pytest.mark.parametrize(
    ("program", "checker", "verdict"),
    [
        ("print(3)", CHECKER, "AC"),
        ("print(4)", CHECKER, "WA"),
        # Garbage that breaks a sound checker is a wrong answer: it accepts the expected output.
        ("print('x')", "def check(i, o, e): return int(o) * 2 == int(e) or int(o) == int(e)", "WA"),
        (
            "print(3)",
            "def check(i, o, e): return undefined",
            "invalid_input: code.compare.checker: RE: NameError",
        ),
        ("print(3)", "def check(i, o, e) return", "invalid_input: code.compare.checker: CE: SyntaxError"),
        ("print(3)", "def check(i, o, e): return 'yes'", "invalid_input: code.compare.checker: returned str"),
        ("print(3)\n1/0", CHECKER, "RE"),
    ],
)
def test_checker(ask: Any, program: str, checker: str, verdict: str) -> None:
    answer = ask.stdio(program, "2", "6", mode="checker", checker=checker)
    assert answer.startswith(verdict)


def test_checker_of_a_call_sees_arguments_and_value(ask: Any) -> None:
    checker = (
        "def check(arguments, value, expected): return sorted(value) == expected and len(arguments) == 1"
    )
    assert ask.call("def f(x): return x[::-1]", [[1, 2]], [1, 2], mode="checker", checker=checker) == "AC"
    assert ask.call("def f(x): return x[1:]", [[1, 2]], [1, 2], mode="checker", checker=checker) == "WA"


IN_PLACE: dict[str, tuple[str, list[Any], list[Any], str]] = {
    "sorts": ("def f(x): x.sort()", [[2, 1]], [[1, 2]], "AC"),
    "returns what it should have changed": ("def f(x): return sorted(x)", [[2, 1]], [[1, 2]], "WA"),
    "changes too little": ("def f(x): x[0] = 1", [[2, 1]], [[1, 2]], "WA"),
    "changes what it should not": ("def f(x, y): x.sort(); y.clear()", [[2, 1], [3]], [[1, 2], [3]], "WA"),
    "an item within": ("def f(x): x[0][0] = 1", [[[2], 1]], [[[1], 1]], "AC"),
    "an object": ("def f(x): x['a'] = [1]", [{"b": 2}], [{"b": 2, "a": [1]}], "AC"),
    "a name of its own": ("def f(x): x = [1, 2]", [[2, 1]], [[1, 2]], "WA"),
    "a slice": ("def f(x): x[:] = x[::-1]", [[2, 1]], [[1, 2]], "AC"),
    "one list in another": ("def f(x, y): x.append(y); y.append(1)", [[], []], [[[1]], [1]], "AC"),
    "True for 1": ("def f(x): x[:] = [True, 2]", [[2, 1]], [[1, 2]], "WA"),
    "a method": ("class Solution:\n    def f(self, x): x.sort()", [[2, 1]], [[1, 2]], "AC"),
    "fails afterwards": ("def f(x): x.sort(); 1 / 0", [[2, 1]], [[1, 2]], "RE"),
    "leaves afterwards": ("import os\ndef f(x): x.sort(); os._exit(0)", [[2, 1]], [[1, 2]], "RE"),
    "puts it into itself": ("def f(x): x[:] = [x]", [[2, 1]], [[1, 2]], "RE"),
    "an integer that is equal to everything": (
        "class I(int):\n    def __eq__(self, other): return True\ndef f(x): x[:] = [I(0), I(0)]",
        [[2, 1]],
        [[1, 2]],
        "WA",
    ),
    "an object that is equal to everything": (
        "class E:\n    def __eq__(self, other): return True\ndef f(x): x[:] = [E(), E()]",
        [[2, 1]],
        [[1, 2]],
        "WA",
    ),
    "other builtins": (
        "import builtins\nbuiltins.len = builtins.list = builtins.iter = lambda *a: [[1, 2]]\ndef f(x): pass",
        [[2, 1]],
        [[1, 2]],
        "RE",
    ),
    "one argument more, in the caller's frame": (
        "import sys\ndef f(x):\n    x.sort()\n    sys._getframe(1).f_locals['arguments'].append(3)",
        [[2, 1]],
        [[1, 2]],
        "WA",
    ),
    "other arguments written down before": (
        "import os\ndef f(x): os.write(3, b'VNl' + (0).to_bytes(8, 'little'))",
        [[2, 1]],
        [[1, 2]],
        "RE",
    ),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_arguments_are_compared_after_the_call(ask: Any, name: str) -> None:
    program, arguments, after, expected = IN_PLACE[name]
    assert ask.in_place(program, arguments, after) == expected


def test_what_a_call_returns_counts_beside_its_arguments_if_given(ask: Any) -> None:
    program = "def f(x):\n    x.sort()\n    return x[0]"

    def judged(code: str, **expected: Any) -> str:
        return ask.in_place(code, [[2.5, 1.5]], [[1.5, 2.5]], "float", **expected)

    assert judged(program) == "AC"
    assert judged(program, expected=1.5) == "AC"
    assert judged(program, expected=2.5) == "WA"
    assert judged(program, expected=None) == "WA"
    assert judged("def f(x): x[:] = [1.5, 2.5000000001]", expected=None) == "AC"
    assert judged("def f(x): x[:] = [1.5, 2.6]", expected=None) == "WA"
    assert judged("def f(x): return 1.5", expected=1.5) == "WA"


ASSERTS = [
    ("def f(x): return x + 1", "assert f(1) == 2", "assert", "AC"),
    ("def f(x): return x + 1", "assert f(1) == 3", "assert", "WA"),
    ("def f(x): return x + 1", "def check(candidate):\n    assert candidate(1) == 2", "assert", "RE"),
    ("def f(x): raise KeyError(x)", "assert f(1) == 2", "assert", "RE"),
    ("def f(x): raise KeyError(x)", "try:\n    f(1)\nexcept KeyError:\n    pass", "assert", "AC"),
    ("def f(x) return x", "assert f(1) == 2", "assert", "CE"),
    ("def f(x): return {(1, x): {2}, 'a': (1,)}", "assert f(1) == {(1, 1): {2}, 'a': (1,)}", "assert", "AC"),
    ("def f(x, *, y=1): return x + y", "assert f(1, y=5) == 6 and f(1) == 2", "assert", "AC"),
    ("def f(x): return x", "from solution import f\nassert f('a') == 'a'", "assert", "AC"),
    ("def f(x): return None", "assert abs(f(1) - 1) < 1", "assert", "WA"),
    ("def f(x): return x", "assert f(1) = 2", "assert", "invalid_input: code.tests: SyntaxError"),
    (
        "def f(x): return x",
        "import absent\nassert f(1)",
        "assert",
        "invalid_input: code.tests: No module named",
    ),
    ("def f(x): import absent", "assert f(1)", "assert", "RE"),
    (
        "n = 0\ndef f():\n    global n\n    n += 1\n    return n",
        "assert f() == 1 and f() == 2",
        "assert",
        "AC",
    ),
]
CASE = """
import unittest
class Test(unittest.TestCase):
    def test_value(self): self.assertEqual(f(1), 2)
    def test_error(self):
        with self.assertRaises(ValueError): f(None)
"""
ASSERTS += [
    ("def f(x):\n    if x is None: raise ValueError\n    return x + 1", CASE, "unittest", "AC"),
    ("def f(x): return x + 1", CASE, "unittest", "WA"),
    (
        "def f(x): return x",
        "import unittest",
        "unittest",
        "invalid_input: code.tests: they define no test case",
    ),
    (
        "def f(x): raise ValueError",
        CASE.replace("def test_value", "@classmethod\n    def setUpClass(c): f(1)\n    def test_value"),
        "unittest",
        "WA",
    ),
]


@pytest.mark.parametrize(("program", "test", "kind", "verdict"), ASSERTS)
def test_assert_verdicts(ask: Any, program: str, test: str, kind: str, verdict: str) -> None:
    assert ask.asserts(program, test, kind).startswith(verdict)


def test_asserts_use_the_named_function_and_the_setup(ask: Any) -> None:
    test = "def check(candidate):\n    assert candidate(two()) == [2]"
    setup = "def two(): return 2"
    assert ask.asserts("def g(x): return [x]", test, function="g", setup=setup) == "AC"
    assert ask.asserts("def g(x): return x", test, function="g", setup=setup) == "WA"


def test_asserts_use_other_names_of_the_program_beside_the_named_function(ask: Any) -> None:
    program = "class Point:\n    def __init__(self, x): self.x = x\nLIMIT = 5\n"
    helper = f"{program}def twice(x): return 2 * x\ndef f(x): return Point(x)\n"
    assert ask.asserts(helper, "assert f(2).x == 2 and Point(3).x == 3", function="f") == "AC"
    assert ask.asserts(helper, "assert f(2).x == 2 and Point(3).x == 4", function="f") == "WA"
    assert ask.asserts(helper, "assert twice(f(2).x) == 4", function="f") == "AC"
    assert ask.asserts(helper, "assert f(LIMIT).x == LIMIT == 5", function="f") == "AC"
    assert ask.asserts(program, "assert Point(3).x == 3", function="f") == "AC"


def test_a_name_that_tests_define_is_never_the_programs(ask: Any) -> None:
    test = "if f(1) == 2:\n    right = True\nassert right"
    assert ask.asserts("def f(x): return x + 1", test, function="f") == "AC"
    assert ask.asserts("right = True\ndef f(x): return 0", test, function="f") == "WA"


def test_a_large_value_costs_the_program_little_more_than_itself(ask: Any) -> None:
    assert ask.call("def f(n): return list(range(n))", [1_000_000], list(range(1_000_000))) == "AC"


NAMED_STREAMS = [
    ("print(sum(map(int, open('/dev/stdin').read().split())))", "AC"),
    ("print(sum(map(int, open('/proc/self/fd/0', 'rb').read().split())))", "AC"),
    ("print(sum(map(int, open(0).read().split())))", "AC"),
    ("import sys\nsys.stdin = open(0)\nprint(sum(map(int, input().split())))", "AC"),
    ("import sys\nsys.stdin = open('/dev/stdin')\nprint(sum(map(int, input().split())))", "AC"),
    ("import io, os\nread = io.BytesIO(os.read(0, os.fstat(0).st_size)).readline\n"
     "print(sum(map(int, read().split())))", "AC"),
    ("import mmap\nprint(sum(map(int, mmap.mmap(0, 0, access=mmap.ACCESS_READ).read().split())))", "AC"),
    ("import os\nprint(sum(map(int, os.fdopen(os.dup(0)).read().split())))", "AC"),
    ("import fileinput\nprint(sum(int(word) for line in fileinput.input() for word in line.split()))", "AC"),
    ("import numpy\nprint(int(numpy.loadtxt('/dev/stdin').sum()))", "AC"),
    ("import os, sys\nif os.path.exists('input.txt'): sys.stdin = open('input.txt')\n"
     "print(sum(map(int, input().split())))", "AC"),
    ("open('/dev/stdout', 'w').write('6')", "AC"),
    ("import sys\nsys.stdout = open('/dev/fd/1', 'w')\nprint(6)", "AC"),
    ("import sys\nsys.stdout = open(1, 'w')\nprint(6)", "AC"),
    ("import sys\nprint('noise', file=open('/dev/stderr', 'w'))\nprint(6)", "AC"),
    ("print(6)\nopen('/dev/stdin', 'r+b', 0).write(b'7')", "RE"),
    ("print(6)\nopen('/dev/tty').read()", "RE"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "verdict"), NAMED_STREAMS)
def test_streams_by_name_and_by_number(ask: Any, program: str, verdict: str) -> None:
    if "numpy" in program:
        pytest.importorskip("numpy")
    assert ask.stdio(program, "1 2 3\n") == verdict


def test_time_limits(ask: Any) -> None:
    assert ask.stdio("while True: pass", limits=Limits(cpu_s=1, wall_s=60)) == "TLE"
    assert ask.stdio("import time; time.sleep(60)", limits=Limits(cpu_s=20, wall_s=1)) == "TLE"


def test_output_limit(ask: Any) -> None:
    assert ask.stdio("print('x' * 5000)", limits=Limits(output_kb=4)) == "OLE"
    assert ask.stdio("print('x' * 4000)", output="x" * 4000, limits=Limits(output_kb=4)) == "AC"


def task(*outputs: str) -> CodeTask:
    return CodeTask(kind="stdio", tests=[CodeTest(input=output, output=output) for output in outputs])


def test_rewards_and_reasons(ask: Any) -> None:
    program = "x = input()\nprint(x if x != 'b' else 'wrong')"
    result = ask.task(program, task("a", "b", "c", "d"))
    assert (result.status, result.value) == (Status.OK, 0.75)
    assert [test.verdict for test in result.verdict.tests] == ["AC", "WA", "AC", "AC"]
    assert result.verdict.fraction == 0.75
    assert result.verdict.tests[0].cpu_ms > 0
    assert ask.task(program, task("a", "b", "c", "d"), reward="all_or_nothing").value == 0.0
    assert ask.task(program, task("a", "c"), reward="all_or_nothing").value == 1.0

    result = ask.task(program, task("a", "b", "c", "d"), stop_at_first_failure=True)
    assert [test.verdict for test in result.verdict.tests] == ["AC", "WA"]
    assert (result.value, "first failure" in result.reason) == (0.25, True)

    result = ask.task(program, task("a", "b", "c", "d"), max_tests=1)
    assert (result.value, "only the first 1 of 4 tests" in result.reason) == (1.0, True)


def test_the_program_comes_from_the_last_block(ask: Any) -> None:
    response = "First try:\n```python\nprint(0)\n```\nBetter:\n```python\nprint(input())\n```\nDone."
    result = ask.task(response, task("a"), extraction="last_block")
    assert (result.value, result.verdict.extracted) == (1.0, "print(input())\n")


def test_no_block_is_a_verdict(ask: Any) -> None:
    result = ask.task("I cannot solve this.", task("a", "b"), extraction="last_block")
    assert (result.status, result.value) == (Status.OK, 0.0)
    assert "no closed fenced code block" in result.reason
    assert [test.verdict for test in result.verdict.tests] == ["CE", "CE"]


def test_a_lone_surrogate_is_a_verdict(ask: Any) -> None:
    result = ask.task("print('\ud800')", task("a"))
    assert (result.status, result.value, result.verdict.tests[0].verdict) == (Status.OK, 0.0, "CE")


ONE = [CodeTest(input="1", output="1")]
CALL = [CodeTest(args=[1], expected=1)]


@pytest.mark.parametrize(
    ("response", "code", "field"),
    [
        ("x", None, "code:"),
        (None, CodeTask(kind="stdio", tests=ONE), "response:"),
        ("x", CodeTask(kind="stdio"), "code.tests:"),
        ("x", CodeTask(kind="stdio", tests=[CodeTest(input="1")]), "code.tests[0].output:"),
        (
            "x",
            CodeTask(kind="stdio", tests=[*ONE, CodeTest(input="\ud800", output="")]),
            "code.tests[1].input:",
        ),
        ("x", CodeTask(kind="stdio", tests=ONE, language="cobol"), "code.language:"),
        ("x", CodeTask(kind="stdio", tests=ONE, compare=Compare(mode="value")), "code.compare.mode:"),
        ("x", CodeTask(kind="stdio", tests=ONE, compare=Compare(mode="checker")), "code.compare.checker:"),
        ("x", CodeTask(kind="stdio", tests=ONE, limits=Limits(cpu_s=1e6)), "code.limits.cpu_s:"),
        ("x", CodeTask(kind="stdio", tests=ONE, limits=Limits(memory_mb=10**6)), "code.limits.memory_mb:"),
        ("x", CodeTask(kind="call", tests=CALL), "code.function:"),
        ("x", CodeTask(kind="assert", tests=ONE), "code.tests[0].test:"),
        ("x", CodeTask(kind="call", tests=ONE, function="f"), "code.tests[0].args:"),
        (
            "x",
            CodeTask(kind="call", tests=[CodeTest(args=[1], expected_args=[])], function="f"),
            "code.tests[0].expected_args:",
        ),
        (
            "x",
            CodeTask(
                kind="call",
                tests=[CodeTest(args=[1], expected_args=[1])],
                function="f",
                compare=Compare(mode="checker", checker="def check(i, o, e): return True"),
            ),
            "code.tests[0].expected_args:",
        ),
        (
            "x",
            CodeTask(kind="stdio", tests=[CodeTest(input="", output="", expected_args=[])]),
            "code.tests[0].expected_args:",
        ),
        (
            "x",
            CodeTask(kind="assert", tests=[CodeTest(test="assert f()", expected_args=[])]),
            "code.tests[0].expected_args:",
        ),
        (
            "x",
            CodeTask(kind="call", tests=CALL, function="f", compare=Compare(mode="tokens")),
            "code.compare.mode:",
        ),
        ("x", CodeTask(kind="stdio", tests=ONE * 1001), "code.tests:"),
        ("x", CodeTask(kind="stdio", tests=ONE, setup="1/0"), "code.setup:"),
        ("x", CodeTask(kind="stdio", tests=ONE, setup="1/"), "code.setup:"),
    ],
)
def test_the_callers_mistakes_name_the_field(
    ask: Any, response: str | None, code: CodeTask | None, field: str
) -> None:
    result = ask.task(response, code)
    assert (result.status, result.value) == (Status.INVALID_INPUT, None)
    assert result.reason.startswith(field)


def test_setup_is_there_for_the_program(ask: Any) -> None:
    code = CodeTask(
        kind="call", function="f", tests=[CodeTest(args=[1], expected=[1])], setup="from typing import List"
    )
    assert ask.task("def f(x: int) -> List[int]: return [x]", code).value == 1.0


def test_options_and_settings_refuse_what_they_do_not_know() -> None:
    with pytest.raises(ValidationError):
        CodeOptions(max_tests=0)
    with pytest.raises(ValidationError):
        CodeOptions(rewards="fraction")  # type: ignore[call-arg]
    with pytest.raises(ValidationError):
        CodeSettings(profile="none")  # type: ignore[arg-type]
    assert CodeSettings(packages="numpy,sympy").packages == ("numpy", "sympy")  # type: ignore[arg-type]


def test_many_threads_get_their_own_answers(ask: Any) -> None:
    def one(number: int) -> float:
        return ask.task(f"print({number})", task(str(number))).value

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(40))) == [1.0] * 40


def test_only_programs_that_name_a_package_run_where_it_is_loaded(ask: Any) -> None:
    pytest.importorskip("numpy")
    loaded = "import sys\nprint('nu' 'mpy' in sys.modules)"
    for worker in ask.scorer.workers:
        assert worker.fit("import numpy") is not worker.fit("import math", "print()")
        assert worker.fit("import math", "numpy") is worker.fit("import numpy")
    assert ask.stdio(loaded, "", "False") == "AC"
    assert ask.stdio(loaded + "  # numpy", "", "True") == "AC"
    assert ask.stdio("print(__import__('nu' 'mpy').arange(4).sum())", "", "6") == "AC"
