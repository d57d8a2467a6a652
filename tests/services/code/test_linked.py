"""What tests may do with the program's functions, types and objects, and that objects gain nothing by lying."""

import os
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from guerdon.types import Limits

#: All pairs of a lie and a test; by default one in three.
FULL = os.environ.get("GUERDON_FULL") == "1"

STACK = """
class EmptyError(Exception):
    def __init__(self, size):
        super().__init__(f"empty: {size}")
        self.size = size
class Stack:
    kind = "lifo"
    def __init__(self, items=()):
        self.items = list(items)
    def push(self, item):
        self.items.append(item)
        return self
    def pop(self):
        if not self.items: raise EmptyError(0)
        return self.items.pop()
    @property
    def top(self): return self.items[-1]
    @staticmethod
    def of(*items): return Stack(items)
    @classmethod
    def empty(cls): return cls()
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
    def __contains__(self, item): return item in self.items
    def __getitem__(self, index): return self.items[index]
    def __setitem__(self, index, value): self.items[index] = value
    def __eq__(self, other): return isinstance(other, Stack) and self.items == other.items
    def __lt__(self, other): return len(self) < len(other)
    def __add__(self, other): return Stack(self.items + other.items)
    def __mul__(self, n): return Stack(self.items * n)
    __rmul__ = __mul__
    def __repr__(self): return f"Stack({self.items})"
    def __bool__(self): return bool(self.items)
    def __enter__(self): return self
    def __exit__(self, *error): self.items.clear()
    def __call__(self, n): return n + 1
"""

ON_OBJECTS = {
    "methods and state": "s = Stack(); s.push(1); s.push(2); assert s.pop() == 2 and s.pop() == 1",
    "chains": "assert Stack().push(1).push(2).pop() == 2",
    "attributes": "s = Stack([1]); assert s.items == [1] and s.top == 1 and Stack.kind == 'lifo'",
    "setting attributes": "s = Stack(); s.items = [4]; assert s.pop() == 4; del s.items\n"
    "assert not hasattr(s, 'items')",
    "static and class methods": "assert Stack.of(1, 2).top == 2 and len(Stack.empty()) == 0",
    "length, index, in": "s = Stack([1, 2]); assert len(s) == 2 and s[0] == 1 and 2 in s and 3 not in s",
    "slices and assignment": "s = Stack([1, 2, 3]); s[0] = 9; assert s[:2] == [9, 2]",
    "iteration": "assert list(Stack([1, 2])) == [1, 2] and [x for x in Stack([3])] == [3] and sum(Stack([1, 2])) == 3",
    "equality": "assert Stack([1]) == Stack([1]) and Stack([1]) != Stack([2]) and Stack([1]) != [1]",
    "in containers": "assert [Stack([1])] == [Stack([1])] and Stack([1]) in [Stack([1])]",
    "order": "assert Stack() < Stack([1]) and sorted([Stack([1, 2]), Stack()])[0] == Stack()",
    "arithmetic": "assert (Stack([1]) + Stack([2])).items == [1, 2]",
    "arithmetic with numbers": "assert (Stack([1]) * 2).items == [1, 1] and 2 * Stack([1]) == Stack([1, 1])",
    "text and truth": "assert repr(Stack([1])) == 'Stack([1])' and str(Stack()) == 'Stack([])' and f'{Stack()}'\n"
    "assert not Stack() and Stack([1])",
    "types": "assert isinstance(Stack(), Stack) and not isinstance(3, Stack) and type(Stack()) is Stack",
    "names of types": "assert type(Stack()).__name__ == 'Stack' and Stack.__name__ == 'Stack'",
    "context": "with Stack([1]) as s:\n    assert len(s) == 1\nassert len(s) == 0",
    "calls": "assert Stack()(1) == 2",
    "own exceptions": "try:\n    Stack().pop()\n    assert False\nexcept EmptyError as e:\n"
    "    assert e.size == 0 and str(e) == 'empty: 0' and e.args == ('empty: 0',)",
    "made exceptions": "assert str(EmptyError(3)) == 'empty: 3' and issubclass(EmptyError, Exception)",
    "identity": "s = Stack(); assert s.push(1) is s",
    "copies": "import copy\ns = Stack([1]); t = copy.deepcopy(s); t.push(2); assert len(s) == 1 and len(t) == 2",
    "objects as arguments": "assert Stack([Stack([1])]).pop() == Stack([1])",
    "no attribute": "assert not hasattr(Stack(), 'absent') and getattr(Stack(), 'absent', 3) == 3",
    "import by name": "from solution import Stack, EmptyError\nassert len(Stack()) == 0",
    "import of all": "from solution import *\nassert len(Stack()) == 0",
    "import of the module": "import solution\nassert len(solution.Stack()) == 0",
}


@pytest.mark.parametrize("name", list(ON_OBJECTS))
def test_objects_of_the_program(ask: Any, name: str) -> None:
    assert ask.asserts(STACK, ON_OBJECTS[name]) == "AC"
    # And the right program's verdict is not for everybody.
    assert ask.asserts("def Stack(*a): raise ValueError\nEmptyError = None", ON_OBJECTS[name]) in ("WA", "RE")


VALUES = {
    "dates": (
        "import datetime\ndef f(d): return d + datetime.timedelta(1)",
        "from datetime import date, datetime, timezone\nassert f(date(2024, 2, 28)) == date(2024, 2, 29)\n"
        "assert f(datetime(2024, 1, 1, tzinfo=timezone.utc)).day == 2",
    ),
    "exact numbers": (
        "def f(x): return x / 2",
        "from decimal import Decimal\nfrom fractions import Fraction\nassert f(Decimal('1.50')) == Decimal('0.75')\n"
        "assert f(Fraction(1, 2)) == Fraction(1, 4) and f(1j) == 0.5j",
    ),
    "named tuples": (
        "from collections import namedtuple\nPoint = namedtuple('Point', 'x y')\ndef f(x): return Point(x, 2)",
        "p = f(1); assert p.x == 1 and p == (1, 2) and isinstance(p, Point) and Point(1, 2) == p",
    ),
    "enums": (
        "import enum\nclass Color(enum.Enum):\n    RED = 1\n    BLUE = 2\ndef f(n): return Color(n)",
        "assert f(1) == Color.RED and f(1) is Color.RED and f(2).value == 2 and f(2).name == 'BLUE'\n"
        "assert [c.name for c in Color] == ['RED', 'BLUE'] and Color['RED'] == f(1) and len(Color) == 2",
    ),
    "dataclasses": (
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n    y: int = 0\ndef f(x): return P(x)",
        "assert f(1) == P(1) and f(1) != P(2) and f(1).x == 1 and P(x=3, y=4).y == 4",
    ),
    "generators": (
        "def f(n):\n    for i in range(n): yield i",
        "assert list(f(3)) == [0, 1, 2]; g = f(2); assert next(g) == 0 and next(g) == 1 and next(g, None) is None\n"
        "try:\n    next(g); assert False\nexcept StopIteration: pass\nassert 2 in f(3) and 5 not in f(3)",
    ),
    "closures": ("def f(n): return lambda x: x + n", "add = f(2); assert add(1) == 3 and callable(add)"),
    "callbacks": (
        "def f(g, xs): return [g(x) for x in xs]",
        "assert f(lambda x: x * 2, [1, 2]) == [2, 4] and f(str, [1]) == ['1'] and f(abs, [-1]) == [1]\n"
        "seen = []; f(seen.append, [1, 2]); assert seen == [1, 2]",
    ),
    "decorators": (
        "import functools\ndef f(g):\n    @functools.wraps(g)\n    def inner(*a): return g(*a) + 1\n    return inner",
        "@f\ndef double(x): return x * 2\nassert double(2) == 5",
    ),
    "exceptions of callbacks": (
        "def f(g):\n    try: return g()\n    except ValueError: return 'caught'",
        "def bad(): raise ValueError('x')\nassert f(bad) == 'caught'",
    ),
    "types as values": (
        "def f(x): return type(x)",
        "assert f(1) is int and f(f(1)) is type and f('') == str",
    ),
    "iterators as arguments": (
        "def f(xs): return list(xs)",
        "assert f(iter([1])) == [1] and f(x for x in 'ab') == ['a', 'b'] and f({1: 2}.keys()) == [1]",
    ),
    "ranges, bytes, deques": (
        "from collections import deque\ndef f(x): return x",
        "from collections import deque\nfor x in (range(3), bytearray(b'a'), b'a', deque([1])): assert f(x) == x",
    ),
    "arrays": (
        "import numpy as np\ndef f(x): return x * np.array([1, 2])",
        "import numpy as np\nr = f(np.array([3, 4])); assert r.shape == (2,) and (r == np.array([3, 8])).all()\n"
        "assert np.allclose(f(2.0), [2, 4]) and r.dtype == np.int64",
    ),
    "constants": ("LIMIT = 10\nNAMES = ['a']", "assert LIMIT == 10 and NAMES == ['a']"),
    "library exceptions": (
        "import json\nf = json.loads",
        "import json\ntry:\n    f('{'); assert False\nexcept json.JSONDecodeError: pass",
    ),
    "in place": (
        "def f(xs): xs.sort()",
        "xs = [3, 1, 2]; f(xs); assert xs == [1, 2, 3]\nd = {'a': 1}; ys = [[2, 1]]",
    ),
    "nested, in place": (
        "def f(m):\n    for row in m: row.reverse()\n    m.append([0])",
        "row = [1, 2]; m = [row]; f(m); assert m == [[2, 1], [0]] and row == [2, 1]",
    ),
    "in place through a method": (
        "class Solution:\n    def f(self, nums): nums[:] = nums[1:]",
        "nums = [1, 2]; f(nums); assert nums == [2]\nnums = [1, 2]; Solution().f(nums); assert nums == [2]",
    ),
    "functions under several names": ("def f(x): return x\ndef g(x): return x + 1", "assert g(f(1)) == 2"),
    "attributes of functions": (
        "import functools\n@functools.cache\ndef f(x): return x",
        "f(1); f(1); assert f.cache_info().hits == 1",
    ),
}


@pytest.mark.parametrize("name", list(VALUES))
def test_values_that_cross(ask: Any, name: str) -> None:
    program, test = VALUES[name]
    assert ask.asserts(program, test) == "AC"


NODES = "class Node:\n    def __init__(self, val, next=None): self.val, self.next = val, next\n"
NODES += "    def __eq__(self, other):\n        return type(other) is Node and self.val == other.val"
NODES += " and self.next == other.next\n"


def test_records_of_the_setup_cross_by_their_attributes(ask: Any) -> None:
    reverse = "def f(node):\n    last = None\n"
    reverse += "    while node: node.next, last, node = last, node, node.next\n    return last"
    test = "assert f(Node(1, Node(2))) == Node(2, Node(1)) and f(None) is None"
    assert ask.asserts(reverse, test, setup=NODES) == "AC"
    assert ask.asserts("def f(node): return node", test, setup=NODES) == "WA"
    long = "n = None\nfor i in range(5000): n = Node(i, n)\n"
    long += "m = f(n); k = 0\nwhile m: m = m.next; k += 1\nassert k == 5000"
    assert ask.asserts(reverse, long, setup=NODES) == "AC"
    circle = "n = Node(1); n.next = n\nm = f(n)\nassert m.next is m"
    assert ask.asserts("def f(node): return node", circle, setup=NODES) == "AC"


def test_records_that_only_the_tests_define(ask: Any) -> None:
    test = NODES + "assert f(Node(1, Node(5))) == 6 and g(Node(3)) == Node(3)"
    program = "def f(n): return n.val + n.next.val\ndef g(n): return n"
    assert ask.asserts(program, test) == "AC"


MANNERS = {
    "pytest functions": "def test_a(): assert f(1) == 2\ndef test_b(): assert f(2) == 3",
    "pytest classes": "class TestF:\n    def setup_method(self): self.x = 1\n"
    "    def test_a(self): assert f(self.x) == 2",
    "raises": "import pytest\ndef test_a():\n    with pytest.raises(TypeError, match='NoneType') as e: f(None)\n"
    "    assert 'NoneType' in str(e.value) and e.type.__name__ == 'TypeError'\n    assert f(1) == 2",
    "approx": "import pytest\ndef test_a():\n    assert f(1.1) == pytest.approx(2.1) and 2.1 == pytest.approx(f(1.1))\n"
    "    assert [f(0.1)] == pytest.approx([1.1])",
    "parametrize": "import pytest\n@pytest.mark.parametrize('x, y', [(1, 2), pytest.param(2, 3)])\n"
    "@pytest.mark.parametrize('z', [0])\ndef test_a(x, y, z): assert f(x) == y + z",
    "fixtures": "import pytest\n@pytest.fixture\ndef one():\n    yield 1\n"
    "@pytest.fixture\ndef two(one): return one + 1\n"
    "def test_a(one, two): assert f(one) == two",
    "unittest cases": "import unittest\nclass T(unittest.TestCase):\n    def setUp(self): self.x = 1\n"
    "    def test_a(self): self.assertEqual(f(self.x), 2)\n    def test_b(self): self.assertAlmostEqual(f(0.1), 1.1)\n"
    "    def test_c(self):\n        with self.subTest(x=2): self.assertEqual(f(2), 3)\n"
    "        self.assertRaises(TypeError, f, None)\nif __name__ == '__main__': unittest.main()",
    "tolerance": "import math, numpy as np\nassert math.isclose(f(0.1), 1.1) and abs(f(0.1) - 1.1) < 1e-9\n"
    "assert np.allclose([f(0.1)], [1.1]) and round(f(0.1), 3) == 1.1",
    "tolerance without its import": "assert math.isclose(f(0.1), 1.1) and np.isclose(f(0.1), 1.1)",
}


@pytest.mark.parametrize("name", list(MANNERS))
@pytest.mark.parametrize("kind", ["assert", "unittest"])
def test_manners_of_testing(ask: Any, name: str, kind: str) -> None:
    if kind == "unittest" and "tolerance" in name:
        pytest.skip("top-level asserts are no test case")
    assert ask.asserts("def f(x): return x + 1", MANNERS[name], kind) == "AC"
    assert ask.asserts("def f(x): return x and x + 3", MANNERS[name], kind) in ("WA", "RE")


COROUTINES = {
    "run": "import asyncio\nassert asyncio.run(f(1)) == 2",
    "check": "async def check():\n    assert await f(1) == 2\n    assert await f(2) == 3",
    "functions": "async def test_a(): assert await f(1) == 2",
    "classes": "class TestA:\n    async def test_a(self): assert await f(1) == 2",
    "parametrize": "import pytest\n@pytest.mark.parametrize('x', [1, 2])\n"
    "async def test_a(x): assert await f(x) == x + 1",
    "together": "import asyncio\nasync def main(): return await asyncio.gather(f(1), f(2), f(3))\n"
    "assert asyncio.run(main()) == [2, 3, 4]",
    "unittest": "import unittest\nclass T(unittest.IsolatedAsyncioTestCase):\n"
    "    async def test_a(self): self.assertEqual(await f(1), 2)",
    "methods": "import asyncio\nassert asyncio.run(A(1).f()) == 2",
    "errors": "import asyncio\ntry:\n    asyncio.run(f(None))\n    assert False\nexcept TypeError: pass\n"
    "assert asyncio.run(f(1)) == 2",
}
ASYNC_PROGRAM = """
import asyncio
lock = asyncio.Lock()
async def f(x):
    async with lock:
        await asyncio.sleep(0.001)
        return x + {step}
class A:
    def __init__(self, x): self.x = x
    async def f(self): return await f(self.x)
"""


@pytest.mark.parametrize("name", list(COROUTINES))
def test_programs_of_coroutines(ask: Any, name: str) -> None:
    kind, test = "unittest" if name == "unittest" else "assert", COROUTINES[name]
    assert ask.asserts(ASYNC_PROGRAM.format(step=1), test, kind) == "AC"
    assert ask.asserts(ASYNC_PROGRAM.format(step=2), test, kind) in ("WA", "RE")


def test_a_coroutine_that_is_not_awaited_is_no_value(ask: Any) -> None:
    assert ask.asserts(ASYNC_PROGRAM.format(step=1), "assert f(1) == 2") == "WA"


def test_awaiting_gives_a_program_no_way_round_its_limits_or_its_tests(ask: Any) -> None:
    test = "import asyncio\nassert asyncio.run(f(1)) == 2"
    short = Limits(cpu_s=1, wall_s=2)
    assert ask.asserts("import asyncio\nasync def f(x): await asyncio.sleep(60)", test, limits=short) == "TLE"
    assert ask.asserts("async def f(x):\n    while True: pass", test, limits=short) == "TLE"
    assert ask.asserts("import os\nasync def f(x): os._exit(0)", test) == "RE"
    assert (
        ask.asserts("class E:\n    def __eq__(self, o): return True\nasync def f(x): return E()", test)
        == "WA"
    )
    assert ask.asserts("async def f(x): return f(x)", test) == "WA"


NOT_TESTS = {
    "nothing asked": ("x = 1\nassert x == 1", "never ask"),
    "only skipped": (
        "import unittest\nclass T(unittest.TestCase):\n    @unittest.skip('x')\n    def test_a(self): f(1)",
        "skips itself",
    ),
    "only skipped functions": ("import pytest\n@pytest.mark.skip\ndef test_a(): f(1)", "skips itself"),
    "an unknown fixture": ("def test_a(capsys): f(1)", "capsys"),
    "extending the program": ("class A(F): pass", "extend"),
    "a stranger as argument": ("import threading\nf(threading.Lock())", "lock"),
    "a coroutine as argument": ("async def g(): return 1\nf(g())", "coroutine"),
}


@pytest.mark.parametrize("name", list(NOT_TESTS))
def test_what_tests_cannot_do_is_said(ask: Any, name: str) -> None:
    test, message = NOT_TESTS[name]
    answer = ask.asserts("def f(x): return x\nclass F: pass", test)
    assert answer.startswith("invalid_input: code.tests:")
    assert message in answer


EQUAL = """
class E:
    def yes(self, *a): return True
    def me(self, *a): return self
    def zero(self, *a): return 0
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = yes
    __ne__ = lambda self, other: False
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __truediv__ = __getitem__ = __getattr__ = me
    __abs__ = __round__ = __int__ = __hash__ = zero
    def __float__(self): return 3.0000001
    def __index__(self): return 3
    def __iter__(self): return iter([])
"""
LIARS = {
    "equal to everything": EQUAL + "def f(*a): return E()",
    "a type in place of a function": EQUAL + "class f(E):\n    def __init__(self, *a): pass",
    "arithmetic that gives 0": EQUAL.replace("return self", "return 0") + "def f(*a): return E()",
    "a list subclass": "class L(list):\n    def __eq__(self, o): return True\ndef f(*a): return L()",
    "endless items": "import itertools\ndef f(*a): return itertools.count(9)",
    "endless length": EQUAL + "E.__len__ = lambda s: 2**62\ndef f(*a): return E()",
    "attributes that raise": "class E:\n    def __getattribute__(s, n): 1/0\ndef f(*a): return E()",
    "a hash that lies": EQUAL + "E.__hash__ = lambda s: hash(3)\ndef f(*a): return {E()}",
    "text that raises": "class X(Exception):\n    def __str__(s): raise s\ndef f(*a): raise X()",
    "skips the test": "import unittest\ndef f(*a): raise unittest.SkipTest('x')",
    "skips pytest's test": "class Skipped(Exception): pass\nSkipped.__module__ = 'unittest.case'\n"
    "Skipped.__name__ = 'SkipTest'\ndef f(*a): raise Skipped()",
    "a failed assertion": "def f(*a): raise AssertionError()",
    "ends": "import os\ndef f(*a): os._exit(0)",
    "a huge result": "def f(*a): return b'x' * 100_000_000",
    "many objects": EQUAL + "def f(*a): return [E() for _ in range(2000)]",
    "changes its arguments": "def f(a, b=0):\n    if isinstance(a, list): a.clear()\n    return a",
    "pretends to be a record": "class Node: pass\ndef f(*a): return Node()",
    "an empty exception type": "class F(Exception): pass\nf = F",
    "shadows the library": "class math:\n    isclose = lambda *a, **k: True\n"
    "class np: allclose = isclose = math.isclose\n"
    "def isclose(*a): return True\ndef len(*a): return 3\ndef sorted(*a): return []\n"
    "class pytest: approx = f = lambda *a: E()",
    "offers everything": EQUAL
    + "def f(*a): return E()\ndef __getattr__(n): return E()\nmath = np = pytest = check = E()",
}
HOLDS = {
    "equality": "assert f(1, 2) == 3",
    "reversed equality": "assert 3 == f(1, 2)",
    "inequality": "assert not f(1, 2) != 3",
    "a difference": "assert abs(f(1, 2) - 3) < 1e-6",
    "a quotient": "assert abs(f(1, 2) / 3 - 1) < 1e-6",
    "membership": "assert 3 in f(1, 2)",
    "one of several": "assert f(1, 2) in (3, 4)",
    "order": "assert 2 < f(1, 2) < 4",
    "lists": "assert [f(1, 2)] == [3]",
    "sets": "assert f(1, 2) == {3} and 3 in f(1, 2)",
    "approx": "assert f(1, 2) == pytest.approx(3)",
    "reversed approx": "assert pytest.approx([3]) == [f(1, 2)]",
    "isclose": "assert math.isclose(f(1, 2), 3, abs_tol=1e-12) and f(1, 2) == 3",
    "numpy": "import numpy\nassert numpy.isclose(f(1, 2), 3, rtol=0, atol=1e-12)",
    "numpy arrays": "import numpy\nassert numpy.array_equal(f(1, 2), numpy.array([3]))",
    "unittest": "import unittest\nclass T(unittest.TestCase):\n    def test_a(self): self.assertEqual(f(1, 2), 3)",
    "unittest, nearly": "import unittest\nclass T(unittest.TestCase):\n"
    "    def test_a(self): self.assertAlmostEqual(f(1, 2), 3)",
    "pytest": "def test_a(): assert f(1, 2) == 3",
    "a bare except": "try:\n    assert f(1, 2) == 3\n    ok = True\nexcept Exception:\n    ok = False\nassert ok",
    "sorted input": "xs = [2, 1]\nassert f(xs) == sorted(xs)",
    "a comparison by zip": "assert all(a == b for a, b in zip(f(1, 2), [3], strict=True))",
    "imported by name": "from solution import *\nassert f(1, 2) == 3 and len([1]) == 1",
    "joined text": "assert ''.join(f(1, 2)) == 'abc'",
    "a record": NODES + "assert f(1, 2) == Node(3)",
}


@pytest.mark.parametrize("name", list(LIARS))
def test_no_object_is_worth_a_reward(ask: Any, still_works: Callable[[], None], name: str) -> None:
    chosen = [held for held in HOLDS if FULL or zlib.crc32(f"{name} {held}".encode()) % 3 == 0]
    answers = {held: ask.asserts(LIARS[name], HOLDS[held]) for held in chosen}
    assert {
        held: answer for held, answer in answers.items() if answer not in ("WA", "RE", "TLE", "MLE")
    } == {}


ERRORS = {
    "dies in a bare except": (
        "import os\ndef f(x): os._exit(0)",
        "try:\n    f(None)\n    ok = False\nexcept:\n    ok = True\nassert ok",
    ),
    "dies where an error is expected": (
        "import os\ndef f(x): os._exit(0)",
        "import unittest\nclass T(unittest.TestCase):\n    def test_a(self): self.assertRaises(BaseException, f, 1)",
    ),
    "a huge answer where an error is expected": (
        "def f(x): return b'x' * 100_000_000",
        "try:\n    f(None)\n    ok = False\nexcept Exception:\n    ok = True\nassert ok",
    ),
    "an exception of another type": (
        "class ValueErro(Exception): pass\ndef f(x): raise ValueErro",
        "import pytest\nwith pytest.raises(ValueError): f(1)",
    ),
    "a name is no type": (
        "class ValueError(Exception): pass\ndef f(x): raise ValueError",
        "import pytest\nwith pytest.raises(ValueError): f(1)",
    ),
}


@pytest.mark.parametrize("name", list(ERRORS))
def test_an_expected_exception_is_really_raised(ask: Any, name: str) -> None:
    program, test = ERRORS[name]
    assert ask.asserts(program, test) in ("WA", "RE")


def test_the_program_never_holds_an_expected_value(ask: Any) -> None:
    spy = """
import gc
def holds():
    wanted = int("987654321")
    return any(
        type(thing) in (list, tuple, dict)
        and any(type(item) is int and item == wanted for item in (thing.values() if type(thing) is dict else thing))
        for thing in gc.get_objects()
    )
class E:
    seen = False
    def look(self, *others):
        E.seen = E.seen or any(type(o) is int and o > 10**8 for o in others) or holds()
        return True
    __eq__ = __lt__ = __le__ = __contains__ = __sub__ = look
    __hash__ = None
def f(x): return E()
def seen(): return E.seen or holds()
"""
    tries = [f"f(1) {how} 987654321" for how in ("==", "!=", "<", ">=", "-", "+", "*")]
    tries += [f"987654321 {how} f(1)" for how in ("==", "<", "-", "/")] + [
        "f(1) in [987654321]",
        "987654321 in f(1)",
    ]
    test = "".join(f"try: {attempt}\nexcept TypeError: pass\n" for attempt in tries)
    assert ask.asserts(spy, test + "assert not seen()") == "AC"
    assert ask.asserts(spy, "f(1).look(987654321)\nassert not seen()") == "WA"


def test_records_come_back_to_a_check_as_well(ask: Any) -> None:
    test = "def check(candidate):\n    assert candidate(3) == Node(3) and candidate(4).val == 4"
    assert ask.asserts("def f(x): return Node(x)", test, setup=NODES, function="f") == "AC"
    assert ask.asserts("def f(x): return Node(3)", test, setup=NODES, function="f") == "WA"
