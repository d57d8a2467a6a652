"""Assert and unittest tests: the tests in one sandbox, the program in another, joined by a socket pair.

The tests are the caller's trusted code, and they meet no hostile object: what they hold of the program are stand-ins
(`standins`, `tests_side`) that send plain arguments over the link (`peer`) and get plain values back; the objects
stay with the program (`program_side`). The program never sees the tests. Only the tests report an outcome,
over their own pipe.
"""

import builtins
import dis
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any, NoReturn

from guerdon_services.code import plain_side, pytest_subset, suites
from guerdon_services.code.errors import ProgramRaised, Unsupported
from guerdon_services.code.peer import LINK_FD, LinkLost, receive
from guerdon_services.code.program_side import ProgramSide
from guerdon_services.code.standins import Function, ObjectType
from guerdon_services.code.tests_side import TestsSide

#: What the tests report.
PASSED, FAILED, BROKEN, PROGRAM_RAISED, LINK_LOST = b"P", b"F", b"I", b"E", b"L"
_MESSAGE_CHARACTERS = 300
#: Names that tests use without importing them, as the program's own imports would bring them: here they come from
#: the library, for a program must not choose what `isclose` says. "module" or "module.name".
_MODULES = """
cmath collections copy datetime decimal fractions functools itertools json math operator random re string sys time
numpy pytest typing unittest
"""
_MEMBERS = """
collections.Counter collections.OrderedDict collections.defaultdict collections.deque copy.deepcopy decimal.Decimal
fractions.Fraction math.isclose typing.Any typing.Dict typing.List typing.Optional typing.Set typing.Tuple
"""
LIBRARY = {name.rpartition(".")[2]: name for name in (_MODULES + _MEMBERS).split()} | {"np": "numpy"}


def serve(find: Callable[[str], Any]) -> None:
    """The program's side: answer what the tests ask until they are over."""
    try:
        frame = receive(LINK_FD)
    except EOFError:
        return
    if frame.startswith(plain_side.CALLS):
        plain_side.serve(find, frame)
    else:
        ProgramSide(find).serve(frame)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A code and all that is defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _names(code: CodeType) -> Iterator[str]:
    for each in _codes(code):
        yield from each.co_names


def _read_and_stored(code: CodeType) -> tuple[set[str], set[str]]:
    """The names that tests read, of all that is not local to a function, and those that they give a value."""
    steps = [step for each in _codes(code) for step in dis.get_instructions(each)]
    read = {step.argval for step in steps if step.opname in ("LOAD_NAME", "LOAD_GLOBAL")}
    return read, {step.argval for step in steps if step.opname in ("STORE_NAME", "STORE_GLOBAL")}


def _bind(side: TestsSide, module: ModuleType, code: CodeType, function: str) -> Any:
    """Give the tests a stand-in for every name that they do not define themselves; returns the candidate."""
    namespace = module.__dict__
    used = [
        name for name in dict.fromkeys(_names(code)) if not hasattr(builtins, name) and name not in namespace
    ]
    for name in used:
        if name in LIBRARY and name != function:
            namespace[name] = _from_library(LIBRARY[name])
    wanted = [name for name in used if name not in namespace]
    if function:
        read, stored = _read_and_stored(code)
        wanted = [function, *(name for name in wanted if name in read - stored - {function, "candidate"})]
    if len(wanted) == 1 and function and not function[:1].isupper() and not side.has_records:
        # Whatever the program calls by that name, the tests call it: no need to ask.
        stand_ins: dict[str, Any] = {function: Function(side.asker, function)}
    else:
        stand_ins = dict(zip(wanted, _stand_ins(side, wanted), strict=True))
    namespace.update(
        stand_ins
    )  # a named function is the program's, even where the setup has one of that name
    if function:
        namespace.setdefault("candidate", stand_ins[function])
    sys.modules["solution"] = _solution(side, used)
    return stand_ins[function] if function else Function(side.asker, "candidate")


def _from_library(name: str) -> Any:
    if name == "pytest":
        return pytest_subset.module()
    module, _, attribute = name.partition(".")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError:  # numpy, where it is not offered
        return None
    return getattr(found, attribute) if attribute else found


def _stand_ins(side: TestsSide, names: list[str]) -> list[Any]:
    """What the tests hold for these names: types and constants of the program where it has such, else functions."""
    stand_ins: list[Any] = []
    for name, (kind, value) in zip(names, side.look_up(names), strict=True):
        if kind == "value" and isinstance(value, ObjectType):
            if not name[:1].isupper():
                # Called for a result, not to make an object: a function that is a type gains nothing by it.
                value = Function(side.asker, name)
            else:
                side.asker.named.add(value.number)
        stand_ins.append(value if kind == "value" else Function(side.asker, name))
    return stand_ins


def _solution(side: TestsSide, used: list[str]) -> ModuleType:
    """The module that tests import from by name."""

    def get(name: str) -> Any:
        if name == "__all__":
            offered = side.ask("names")
            return [name for name in used if name in offered and name not in LIBRARY]
        if name.startswith("__"):
            raise AttributeError(name)
        [stand_in] = _stand_ins(side, [name])
        return stand_in

    solution = ModuleType("solution")
    solution.__dict__["__getattr__"] = get
    return solution


def run_tests(
    module: ModuleType, code: CodeType, function: str, kind: str, report: Callable[[bytes], None]
) -> NoReturn:
    """The tests' side: run them and report one outcome."""
    sys.modules["pytest"] = pytest_subset.module()
    side = TestsSide(module)
    try:
        outcome = _outcome(side, module, code, function, kind)
    except BaseException as error:
        outcome = FAILED + described(error)
    # Bare `except` clauses of tests and of test runners hide neither of these.
    if side.unsupported is not None:
        outcome = BROKEN + side.unsupported.encode("utf-8", "replace")
    elif side.lost is not None:
        outcome = LINK_LOST + side.lost.encode("utf-8", "replace")
    report(outcome[:1000])
    os._exit(0)


def _outcome(side: TestsSide, module: ModuleType, code: CodeType, function: str, kind: str) -> bytes:
    try:
        candidate = _bind(side, module, code, function)
        exec(code, module.__dict__)
        suites.run(module, kind, candidate)
        if not side.asked:
            raise suites.NoTests("they never ask the program anything")
        return PASSED
    except LinkLost as error:
        return LINK_LOST + str(error).encode("utf-8", "replace")
    except ProgramRaised as error:
        return PROGRAM_RAISED + described(error)
    except (ModuleNotFoundError, suites.NoTests, Unsupported) as error:
        # The source's fault: no answer of the program makes a module go away.
        return BROKEN + str(error).encode("utf-8", "replace")


def described(error: BaseException) -> bytes:
    """Its type and the beginning of its message."""
    try:
        text = str(error)[:_MESSAGE_CHARACTERS]
    except BaseException:
        text = ""
    return f"{type(error).__name__}: {text}".encode("utf-8", "replace")
