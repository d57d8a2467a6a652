"""Pure tests share a process: what counts as pure, that verdicts stay the same, and no program reaches the next."""

import inspect
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guerdon.types import CodeTask, CodeTest, Limits
from guerdon_services.code import pure, pure_names
from guerdon_services.code.service import CodeScorer, CodeSettings
from guerdon_services.code.warm import WarmTests

CHECK = "def check(candidate):\n    assert candidate(2) == 3\n    assert candidate([1, 2]) == [2, 3]\n"
RIGHT = "def f(x): return [y + 1 for y in x] if isinstance(x, list) else x + 1"
WRONG = "def f(x): return x"


@pytest.fixture(scope="module")
def scorer() -> Iterator[CodeScorer]:
    """A verifier of this file's own, with one slot: whatever runs here runs in the same processes."""
    scorer = CodeScorer(CodeSettings(workers=1))
    scorer.open()
    yield scorer
    scorer.close()


@pytest.fixture
def warm(ask: Any) -> Any:
    """Pids of the processes that run pure tests."""
    return lambda: [slot.warm.pid for slot in ask.scorer.slots if slot.warm.pid]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Any:
    """From now on every source of tests gets a sandbox of its own."""
    return lambda: monkeypatch.setattr(WarmTests, "takes", lambda *_: False)


PURE = {
    "HumanEval": "METADATA = {'a': 1}\n\n" + CHECK,
    "MBPP": "assert f(1) == 2\nassert f([1]) == [2]",
    "helpers": "def near(a, b): return abs(a - b) < 1e-6\ndef check(c):\n    assert near(c(1), 2)",
    "loops": "import random\ndef check(c):\n    for i in range(3):\n        x = random.randint(0, 9)\n"
    "        assert c(x) == x + 1, f'{x}'",
    "library": "from math import sqrt\nimport math, string\nassert f(1) == math.floor(2.5) and sqrt(4) == f(1)",
    "in place": "xs = [1]; ys = list(xs); f(xs); assert xs == ys or len(xs) == 1",
    "types": "def check(c):\n    assert type(c(1)) is int and isinstance(c([1]), list)",
    "annotations": "from typing import List\ndef same(a: List[int], b: list) -> bool: return a == b\n"
    "assert same(f([1]), [2])",
}
IMPURE = {
    "attributes": "f.x = 1",
    "items": "d = {}\nd[0] = 1",
    "deleting": "x = 1\ndel x",
    "globals": "def check(c):\n    global x\n    x = 1",
    "nonlocals": "def a():\n    x = 1\n    def b():\n        nonlocal x\n        x = 2",
    "classes": "class A: pass",
    "decorators": "@print\ndef check(c): pass",
    "other modules": "import os",
    "parts of modules": "from random import seed",
    "modules under cover": "import math as __builtins__",
    "all of a module": "from math import *",
    "relative": "from . import math",
    "dunder attributes": "(1).__class__",
    "dunder names": "__builtins__",
    "dunder parameters": "def a(__builtins__): pass",
    "frames": "(x for x in []).gi_frame",
    "eval": "eval('1')",
    "setattr": "setattr(f, 'x', 1)",
    "a builtin's name elsewhere": "def a():\n    vars = 1\nvars(f)",
    "new types": "t = type\nt('A', (), {})",
    "try": "try:\n    f(1)\nexcept ValueError: pass",
    "with": "with f: pass",
    "raise": "raise ValueError",
    "yield": "def a(): yield 1",
    "async": "async def a(): pass",
    "format": "'{0.__class__}'.format(1)",
    "walrus": "(x := 1)",
    "match": "match 1:\n    case 1: pass",
    "seeding": "import random\nrandom.seed(1)",
    "ellipsis": "f(...)",
    "pytest": "def test_a(): assert f(1) == 2",
    "star": "from solution import f",
    "no syntax": "assert (",
    "nested too deeply": "(" * 500 + ")" * 500,
    "null bytes": "a\0",
}


@pytest.mark.parametrize("name", list(PURE))
def test_pure_tests_share_a_process(ask: Any, warm: Any, name: str) -> None:
    pure.compiled(PURE[name], "<tests>", "f")
    assert ask.asserts(RIGHT, PURE[name], function="f") == "AC"
    [pid] = warm()
    assert ask.asserts(WRONG, PURE[name], function="f") in ("WA", "AC")
    assert ask.asserts(RIGHT, PURE[name], function="f") == "AC"
    assert warm() == [pid]


@pytest.mark.parametrize("name", list(IMPURE))
def test_what_could_last_is_not_pure(name: str) -> None:
    with pytest.raises(pure_names.NotPure):
        pure.compiled(IMPURE[name], "<tests>", "f")


def test_pure_tests_reach_nothing_that_lasts() -> None:
    """What they can import, and every attribute of it that they may name, is a function, a type or cannot change."""
    fixed = (int, float, str, bytes, bool, type(None))
    for name in pure_names.MODULES:
        module = pure_names.from_library(name)
        for attribute in pure_names.ATTRIBUTES & set(dir(module)):
            value = getattr(module, attribute)
            assert callable(value) or isinstance(value, fixed), f"{name}.{attribute}"
            assert not inspect.ismodule(value)
    assert set(pure_names.BUILTINS) < set(dir(__import__("builtins")))


def test_what_is_asked_ahead() -> None:
    def foreseen(source: str, function: str = "f") -> tuple[list[Any], bool]:
        found = pure.compiled(source, "<tests>", function)
        return [arguments[0] for group in found.foreseen for _, arguments, _ in group], found.complete

    assert foreseen(CHECK) == ([2, [1, 2]], True)
    assert foreseen("assert f(1) == 2 and f(2) == 3\nassert f(3)") == ([1], False)
    assert foreseen("assert 1 < f(1) < f(2)") == ([1], False)
    assert foreseen("assert f(f(1)) == 2") == ([1], False) or foreseen("assert f(f(1)) == 2") == ([], False)
    assert foreseen("x = 3\nassert f(1) == 2\nassert f(x) == 4") == ([1], False)
    assert foreseen("for x in [1]: assert f(1)\nassert f(2)") == ([], False)
    assert foreseen("assert f(1)\nf([2])") == ([1], False)
    assert foreseen("def g(): return f(1)\nassert f(0)\nassert g()\nassert f(2)") == ([0], False)
    assert foreseen("assert list(map(f, [1]))\nassert f(2)") == ([], False)
    assert foreseen("assert [f(1) for _ in [1, 2]]\nassert f(2)") == ([], False)
    assert foreseen("assert f(1) == g(2)", "") == ([1, 2], True)
    assert foreseen("assert abs(f(1) - 2) < 1\nassert not f(-1), 'no'") == ([1, -1], True)


PROGRAMS = {
    "right": RIGHT,
    "wrong": WRONG,
    "nothing": "def f(x): pass",
    "raises": "def f(x): raise KeyError('a', x)",
    "raises its own": "class E(Exception):\n    def __str__(s): return 'mine'\ndef f(x): raise E",
    "raises a failed assertion": "def f(x): raise AssertionError('no')",
    "raises a stop": "def f(x): raise StopIteration(3)",
    "text that raises": "class X(Exception):\n    def __str__(s): raise s\ndef f(x): raise X",
    "raises later": "def f(x): return 3 if x == 2 else x.absent",
    "no function": "def g(x): return x",
    "a type": "class f(int):\n    def __eq__(s, o): return True",
    "a method": "class Solution:\n    def f(self, x): return x + 1 if x == 2 else [2, 3]",
    "an object": "class E:\n    def __eq__(s, o): return True\ndef f(x): return E()",
    "a subclass": "class I(int):\n    def __eq__(s, o): return True\ndef f(x): return I(7)",
    "a tuple": "def f(x): return 3 if x == 2 else (2, 3)",
    "a truth": "def f(x): return True",
    "a list of objects": "def f(x): return [object()]",
    "an iterator": "def f(x): return iter([x])",
    "exits": "import sys\ndef f(x): sys.exit(0)",
    "exits at once": "import sys\nsys.exit(0)",
    "exits with 3": "import os\ndef f(x): os._exit(3)",
    "does not compile": "def f(x) return x",
    "fails at once": "1/0",
    "prints much": "def f(x):\n    print('x' * 50_000_000)\n    return x + 1",
    "prints much when asked again": "def f(x):\n    if x != 2: print('x' * 50_000_000)\n    return 0",
    "takes memory": "def f(x): return bytearray(10**9)",
    "spins when asked again": "def f(x):\n    while x != 2: pass\n    return 3",
    "sleeps": "import time\ndef f(x): time.sleep(9)",
    "nan": "def f(x): return float('nan')",
    "changes what it gets": "def f(x):\n    if x == 2: return 3\n    x[:] = [2, 3]\n    return x",
    "is different each time": "n = 1\ndef f(x):\n    global n\n    n += 1\n    return 3 if n == 2 else [2, n]",
    "surrogates": "def f(x): return '\\ud800'",
}
TESTS = {"check": CHECK, "in place": "xs = [1, 2]\nf(xs)\nassert xs in ([1, 2], [2, 3])\nassert f(2) == 3"}


@pytest.mark.parametrize("name", list(PROGRAMS))
@pytest.mark.parametrize("test", list(TESTS))
def test_verdicts_are_those_of_a_sandbox_alone(ask: Any, alone: Any, name: str, test: str) -> None:
    def judged() -> tuple[str, str | None]:
        task = CodeTask(
            kind="assert",
            function="f",
            tests=[CodeTest(test=TESTS[test])],
            limits=SHORT,
        )
        result = ask.task(PROGRAMS[name], task)
        assert result.verdict, result.reason
        [one] = result.verdict.tests
        return one.verdict, one.message

    together = judged()
    alone()
    found = judged()
    assert together[0] == found[0]
    # Times differ, and so do the words for an exception of the interpreter's own lack of memory.
    if found[0] != "TLE" and name != "takes memory":
        assert together == found


def test_a_failed_test_ends_what_was_asked_ahead(ask: Any) -> None:
    hangs = "def f(x):\n    while x != 2: pass\n    return 4"
    limits = Limits(cpu_s=40, wall_s=120)
    task = CodeTask(kind="assert", function="f", tests=[CodeTest(test=CHECK)], limits=limits)
    [test] = ask.task(hangs, task).verdict.tests
    assert test.verdict == "WA"
    assert test.cpu_ms < 20_000  # of the 40,000 that it would have taken


FRAME = "import os, struct, json\ndef say(kind, body): os.write(4, struct.pack('<Q', len(body) + 1) + kind + body)\n"
SHORT = Limits(cpu_s=1, wall_s=2, memory_mb=256)
PLANTS = {
    "a list that the tests keep": "xs = [3]\ndef f(x): return xs",
    "a huge number": "def f(x): return 10 ** 200_000",
    "many huge numbers": "def f(x): return [10 ** 20_000] * 200",
    "deep lists": "def f(x):\n    y = []\n    for _ in range(190): y = [y]\n    return y",
    "deeper lists": "def f(x):\n    y = []\n    for _ in range(5000): y = [y]\n    return y",
    "a circle": "def f(x):\n    y = []\n    y.append(y)\n    return y",
    "numbers with one hash": "def f(x): return {i * (2**61 - 1) for i in range(1, 20_000)}",
    "a long list": "def f(x): return list(range(2_000_000))",
    "long text": "def f(x): return 'x' * 30_000_000",
    "endless recursion": "def f(x): return f(x)",
    "exceptions of many types": "def f(x): raise type('E%d' % x, (ValueError,), {})('x' * 10**6)",
    "objects": "class E:\n    def __eq__(s, o): return True\n    __hash__ = lambda s: 3\ndef f(x): return [E(), E()]",
    "functions": "def f(x): return f",
    "types": "def f(x): return int",
    "named tuples": "from collections import namedtuple\ndef f(x): return namedtuple('list', 'append')(3)",
    "answers before the questions": FRAME + "for _ in range(50): say(b'J', b'3')\ndef f(x): return 3",
    "more answers than questions": FRAME + "def f(x):\n    for _ in range(50): say(b'J', b'3')\n    return 3",
    "questions of its own": FRAME + "def f(x):\n    say(b'Q', b'l' + bytes(8))\n    return 3",
    "another kind": FRAME + "def f(x):\n    say(b'Z', b'3')\n    return 3",
    "code": FRAME + "import marshal\ndef f(x):\n    say(b'C', marshal.dumps((True, [])))\n    return 3",
    "JSON cut short": FRAME + "def f(x):\n    say(b'J', b'[3')\n    return 3",
    "deep JSON": FRAME + "def f(x):\n    say(b'J', b'[' * 100_000)\n    return 3",
    "JSON that cannot be read": FRAME + "def f(x):\n    say(b'J', bytes([255, 254]))\n    return 3",
    "a number with many digits": FRAME + "def f(x):\n    say(b'J', b'9' * 100_000)\n    return 3",
    "an exception that is none": FRAME + "def f(x):\n    say(b'X', b'[[], {}]')\n    return 3",
    "an exception without a name": FRAME + "def f(x):\n    say(b'X', b'3')\n    return 3",
    "a length that is a lie": "import os\ndef f(x):\n    os.write(4, b'\\xff' * 8)\n    return 3",
    "half a length": "import os\ndef f(x):\n    os.write(4, b'\\x03')\n    os._exit(0)",
    "half an answer": "import os\ndef f(x):\n    os.write(4, bytes([9]) + bytes(7) + b'J3')\n    os._exit(0)",
    "a closed connection": "import os\ndef f(x):\n    os.close(4)\n    return 3",
    "threads that go on": FRAME + "import threading\ndef go():\n    while True: say(b'J', b'3')\n"
    "def f(x):\n    threading.Thread(target=go, daemon=True).start()\n    return 4",
    "what the calls were": FRAME + "import gc\ndef f(x):\n    for y in gc.get_objects():\n"
    "        if type(y) is list: y.clear()\n    return 3",
}
KEEPING = "def check(candidate):\n    x = candidate(2)\n    x.append(4)\n    assert x == [3, 4]"


@pytest.mark.parametrize("name", list(PLANTS))
def test_no_program_reaches_the_tests_of_the_next(ask: Any, name: str) -> None:
    for test in (CHECK, KEEPING, "assert f(2) == 3\nassert f(7) == 8"):
        for _ in range(2):
            answer = ask.asserts(PLANTS[name], test, function="f", limits=SHORT)
            assert answer in ("WA", "RE", "TLE", "MLE", "OLE") or (
                name.startswith("a list") and test == KEEPING
            )
            assert ask.asserts(WRONG, CHECK, function="f") == "WA"
            assert ask.asserts("def f(x): return object()", CHECK, function="f") == "WA"
            assert ask.asserts(RIGHT, CHECK, function="f") == "AC"
            assert ask.asserts("def f(x): return [3]", KEEPING, function="f") == "AC"


def test_tests_that_do_not_end_are_ended(ask: Any) -> None:
    for source in ("while True: pass", "x = 9 ** 9 ** 9", "sum(range(10**12))"):
        answer = ask.asserts(
            RIGHT,
            f"def check(candidate):\n    assert candidate(2) == 3\n    {source}",
            function="f",
            limits=SHORT,
        )
        assert answer in ("RE", "TLE")
        assert ask.asserts(RIGHT, CHECK, function="f") == "AC"
        assert ask.asserts(WRONG, CHECK, function="f") == "WA"


def test_a_killed_process_of_tests_costs_no_verdict(ask: Any, warm: Any) -> None:
    assert ask.asserts(RIGHT, CHECK, function="f") == "AC"
    for number in (signal.SIGKILL, signal.SIGPROF):
        for pid in warm():
            os.kill(pid, number)
        assert ask.asserts(RIGHT, CHECK, function="f") == "AC"
        assert ask.asserts(WRONG, CHECK, function="f") == "WA"


@pytest.mark.parametrize(("answer", "expected"), [("x + 1", "AC"), ("x", "WA")])
@pytest.mark.parametrize("server", [True, False])
def test_a_process_of_tests_killed_under_way_costs_no_verdict(
    ask: Any, warm: Any, answer: str, expected: str, *, server: bool
) -> None:
    test = "assert f(1) == 2\nassert f(2) == 3"
    program = f"import time\ndef f(x):\n    time.sleep(0.4)\n    return {answer}"
    assert ask.asserts(RIGHT, test, function="f") == "AC"
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(ask.asserts(program, test, function="f")))
    thread.start()
    time.sleep(0.3)
    for slot in ask.scorer.slots:
        if slot.warm.pid:
            os.kill(slot.warm.server_pid if server else slot.warm.pid, signal.SIGKILL)
    thread.join(60)
    assert answers == [expected]
    assert ask.asserts(RIGHT, test, function="f") == "AC"


def test_the_process_of_tests_is_behind_the_walls(ask: Any, warm: Any) -> None:
    assert ask.asserts(RIGHT, CHECK, function="f") == "AC"
    for pid in warm():
        status = dict(
            line.split(":\t", 1)
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if ":\t" in line
        )
        assert status["Seccomp"] == "2"
        assert status["NoNewPrivs"] == "1"
        assert int(status["CapEff"], 16) in (0, 4)
        assert len(os.listdir(f"/proc/{pid}/fd")) <= 6


def test_it_is_replaced_after_a_while(ask: Any, warm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("guerdon_services.code.warm._MOST_RUNS", 3)
    seen: set[int] = set()
    for slot in ask.scorer.slots:
        slot.warm.replace()
    for _ in range(8):
        assert ask.asserts(RIGHT, CHECK, function="f") == "AC"
        seen |= set(warm())
    assert len(seen) >= 3


def test_it_is_replaced_after_an_error_and_when_it_has_grown(ask: Any, warm: Any) -> None:
    adds = "def check(candidate):\n    assert candidate(2) + 1 == 4"
    grows = "def check(candidate):\n    x = 'x' * 100_000_000\n    assert candidate(2) == 3"
    for program, test, expected in (("def f(x): return None", adds, "WA"), (RIGHT, grows, "AC")):
        assert ask.asserts(RIGHT, CHECK, function="f") == "AC"
        before = set(warm())
        assert ask.asserts(program, test, function="f") == expected
        assert ask.asserts(RIGHT, CHECK, function="f") == "AC"
        assert set(warm()) != before


def test_another_memory_limit_gets_another_process(ask: Any) -> None:
    task: dict[str, Any] = {"function": "f"}
    assert ask.asserts(RIGHT, CHECK, **task) == "AC"
    big = "def check(candidate):\n    x = [0] * 50_000_000\n    assert candidate(2) == 3"
    assert ask.asserts(RIGHT, big, limits=SHORT, **task) == "WA"
    assert ask.asserts(RIGHT, CHECK, **task) == "AC"
