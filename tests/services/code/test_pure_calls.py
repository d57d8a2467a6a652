"""What programs gain by calls that are asked ahead, and by the process that asks them: nothing, in either direction."""

from typing import Any

import pytest

from guerdon.types import CodeTask, CodeTest, Limits
from guerdon_services.code import pure
from guerdon_services.code.warm import WarmTests

SHORT = Limits(cpu_s=1, wall_s=2, memory_mb=256, output_kb=64)


def groups(source: str) -> list[list[Any]]:
    found = pure.compiled(source, "<tests>", "f")
    return [[arguments[0] for _, arguments, _ in group] for group in found.foreseen]


def test_no_argument_is_asked_ahead_that_tells_what_is_expected() -> None:
    def asserts(*lines: str) -> list[list[Any]]:
        return groups("\n".join(f"assert {line}" for line in lines))

    assert asserts("f('ab') == 'ba'", "f('ba') == 'ab'") == [["ab"], ["ba"]]
    assert asserts("'ba' == f('ab')", "f('ba') == 'ab'") == [["ab"], ["ba"]]
    assert asserts("f('ab') == 'ba'", "f('cd') == 'dc'", "f('ba') == 'ab'") == [["ab", "cd"], ["ba"]]
    assert asserts("f([1, 2]) == (2, 1)", "f([2, 1])") == [[[1, 2]], [[2, 1]]]
    assert asserts("f(1) == ['ba']", "f(['ab', 'ba'])") == [[1], [["ab", "ba"]]]
    assert asserts("f(2) == -1", "f(-1)") == [[2], [-1]]
    assert asserts("f(2) == {'a': [1, 2]}", "f({'a': [1, 2]})") == [[2], [{"a": [1, 2]}]]
    # Numbers inside of others, truths and what is empty tell nothing.
    assert asserts("f([1]) == 2", "f([2, 3]) == 3", "f([1, 3])") == [[[1], [2, 3], [1, 3]]]
    assert asserts("f('a') == ''", "f('') is None", "f(None) is True", "f(True)") == [["a", "", None, True]]
    assert asserts("f(0.5) - 1.5 < 1e-6", "abs(f(2.5) - 3.5) < 1e-6", "f(4.5)") == [[0.5, 2.5, 4.5]]


@pytest.mark.parametrize(
    "first",
    [
        "assert f('ab') == 'a' + 'b'",
        "assert f('ab') == 'xab'[1:]",
        "assert f('ab') == 'ba'.title()",
        "assert f('ab').lower() == 'ba'",
        "assert f('ab')[0] == 'b'",
        "assert sorted(f('ab')) == ['a']",
        "assert f('ab') + 'b' == 'bab'",
        "assert -f('ab') == -1",
        "assert abs(f('ab')) == 1",
        "assert f('ab') == x",
        "assert f('ab') == f'{1}'",
        "assert [f('ab')] == [c for c in 'a']",
        "y = f('ab')",
    ],
)
def test_who_computes_what_is_expected_asks_nothing_ahead(first: str) -> None:
    assert groups(f"x = 1\n{first}\nassert f('zz')\nassert f('yy')") == [["ab"], ["zz", "yy"]]


def test_two_answers_of_one_statement_are_asked_one_by_one() -> None:
    assert groups("assert (f('ab'), f('ba')) == ('ba', 'ab')\nassert f('c')") == [["ab"], ["ba"], ["c"]]


@pytest.mark.parametrize("ending", ["return", "if len('a') == 1: return"])
def test_calls_that_may_not_come_are_not_asked(ask: Any, ending: str) -> None:
    source = (
        f"def check(candidate):\n    assert candidate(1) == 1\n    {ending}\n    assert candidate(2) == 2"
    )
    assert groups(source) == [[1]]
    assert (
        ask.asserts("import os\ndef f(x): return x if x == 1 else os._exit(3)", source, function="f") == "AC"
    )


def test_calls_that_never_come_cost_no_verdict(ask: Any) -> None:
    source = "def check(candidate): assert candidate(1) == 1\ncheck = 1\nassert f(2) == 2"
    assert (
        ask.asserts("import os\ndef f(x): return x if x == 2 else os._exit(3)", source, function="f") == "AC"
    )


SPY = """
import sys
seen = []
def f(x):
    frame, seen_now = sys._getframe(), []
    while frame:
        for value in list(frame.f_locals.values()):
            if type(value) is list:
                seen_now += [call[1][0] for call in value if type(call) is tuple and len(call) == 4]
        frame = frame.f_back
    seen.append(x)
    return ([y for y in seen + seen_now if y != x and sorted(y) == sorted(x)] or [x])[0]
"""


def test_a_program_that_looks_at_the_next_calls_learns_nothing(ask: Any) -> None:
    source = "def check(candidate):\n    assert candidate('abcd') == 'dcba'\n    assert candidate('dcba') == 'abcd'"
    assert ask.asserts(SPY, source, function="f") == "WA"
    assert ask.asserts("def f(x): return x[::-1]", source, function="f") == "AC"


@pytest.mark.parametrize("value", ["'\\ud83d\\ude00'", "['\\ud83d\\ude00']", "{'\\ud83d\\ude00': 1}"])
def test_halves_of_a_character_are_not_the_character(ask: Any, value: str) -> None:
    halves = f"def f(x): return {value}"
    whole = halves.replace("\\ud83d\\ude00", "\\U0001f600")
    source = f"def check(candidate): assert candidate(1) == {value}".replace("\\ud83d\\ude00", "\\U0001f600")
    assert ask.asserts(whole, source, function="f") == "AC"
    assert ask.asserts(halves, source, function="f") == "WA"


def test_who_has_failed_has_no_second_try(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output over the limit after a wrong answer has it run again: there it may fail in another way only."""
    program = """
import os, sys, threading
frame = sys._getframe()
def f(x):
    warm = 'plain_side' in sys._getframe(1).f_code.co_filename
    def go():
        while True: os.write(1, b'x' * 65536)
    if warm:
        threading.Thread(target=go, daemon=True).start()
        import time
        time.sleep(0.2)
    return 0 if warm else x + 1
"""
    monkeypatch.setattr(WarmTests, "_missed", lambda *_: None)
    task = CodeTask(kind="assert", function="f", tests=[CodeTest(test="assert f(1) == 2")], limits=SHORT)
    result = ask.task(program, task)
    assert result.verdict
    assert result.verdict.tests[0].verdict in ("WA", "OLE")
    assert ask.asserts("def f(x): return x + 1", "assert f(1) == 2", function="f") == "AC"


def test_what_the_interpreter_says_of_tests_blocks_nobody(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missed(*_: Any) -> None:
        raise AssertionError("the tests did not run")

    monkeypatch.setattr("guerdon_services.code.asserted._alone", missed)
    lines = "".join(f"    assert candidate({i}) is {i + 1}\n" for i in range(150))
    for number in range(12):  # each of them warns of every line
        source = f"def check(candidate):\n{lines}# {number}\n"
        assert ask.asserts("def f(x): return x + 1", source, function="f") == "AC"


def test_random_numbers_of_a_module_that_nobody_imports_are_new_ones() -> None:
    assert pure.compiled("assert f(random.randint(0, 9))", "<tests>", "f").random


def test_long_tests_of_long_characters(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = f"x = '{chr(0x1F600) * 20_000}'\nassert f(1) == 2"
    assert ask.asserts("def f(x): return x + 1", source, function="f") == "AC"
    assert ask.asserts("def f(x): return x", source, function="f") == "WA"


@pytest.mark.parametrize("made", ["{8, 0}", "frozenset([8, 0])", "[{8, 0}]", "{'a': ({8, 0},)}"])
def test_sets_arrive_in_their_order(ask: Any, made: str) -> None:
    program = "def f(x): return repr(x)"
    for number in (1, 2):
        source = f"x = {made}\nassert f(x) == repr(x)\nassert f({number}) == '{number}'"
        assert ask.asserts(program, source, function="f") == "AC"


def test_a_copied_function_is_the_function(ask: Any) -> None:
    source = (
        "import copy\ndef check(candidate):\n    assert candidate(0) == 1\n    assert candidate(3) == 4\n"
    )
    source += "    g = copy.deepcopy([candidate, copy.copy(candidate)])\n"
    source += "    assert [h(i) for h in g for i in (1, 2)] == [2, 3, 2, 3] and candidate(4) == 5"
    assert ask.asserts("def f(x): return x + 1", source, function="f") == "AC"
    assert ask.asserts("def f(x): return x + (x < 4)", source, function="f") == "WA"


def test_a_program_ended_before_its_walls_stand_costs_no_verdict(
    ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests that are seen not to be pure at once, on a machine that takes long to make a process."""
    monkeypatch.setattr("guerdon_services.code.supervision._GRACE_S", 0)
    monkeypatch.setattr("guerdon_services.code.supervision._QUICK_S", 0)
    for number in range(6):
        source = f"try: f(1)\nexcept ValueError: pass\nassert f({number}) == {number + 1}"
        assert ask.asserts("def f(x): return x + 1", source, function="f") == "AC"
        assert ask.asserts("def f(x): return x", source, function="f") == "WA"
