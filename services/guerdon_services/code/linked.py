"""Assert and unittest tests: the tests in one sandbox, the program in another, joined by a socket pair.

The tests are the caller's trusted code, and they meet no hostile object: the program's functions are stand-ins
that send plain arguments over the link and get plain values back (`codec`, never pickle). Frames: 8 bytes of
length, then

    tests -> program   [function, arguments, keyword arguments]
    program -> tests   VALUE + value, or RAISED + [type name, message]

The program never sees the tests. Only the tests report an outcome, over their own pipe.
"""

import builtins
import io
import os
import struct
import sys
import unittest
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any, NoReturn

from guerdon_services.code import codec

#: Beside the report pipe, in both sandboxes.
LINK_FD = 4
#: What a frame starts with, and what the tests report.
VALUE, RAISED = b"V", b"X"
PASSED, FAILED, BROKEN, PROGRAM_RAISED, LINK_LOST = b"P", b"F", b"I", b"E", b"L"
_LENGTH = struct.Struct("<Q")
_MESSAGE_CHARACTERS = 300


class ProgramRaised(Exception):
    """The program's function raised; instances are also of the builtin type that it raised, if it is one."""


class LinkLost(BaseException):
    """The program ended, or sent what is no answer. Not an Exception: tests must not catch it."""


class NoTests(Exception):
    """The source of the tests holds none: nothing was judged."""


def _read(count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = os.read(LINK_FD, min(count - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def _receive() -> bytes:
    return _read(_LENGTH.unpack(_read(8))[0])


def _send(body: bytes) -> None:
    message = memoryview(_LENGTH.pack(len(body)) + body)
    while message:
        message = message[os.write(LINK_FD, message) :]


def serve(find: Callable[[str], Any]) -> None:
    """The program's side: answer calls until the tests are over."""
    receive, send, encode, decode = _receive, _send, codec.encode, codec.decode
    while True:
        try:
            request = receive()
        except EOFError:
            return
        name, arguments, keywords = decode(request)
        try:
            answer = VALUE + encode(find(name)(*arguments, **keywords))
        except Exception as error:
            answer = RAISED + encode([type(error).__name__, _message(error)])
        send(answer)


def _message(error: Exception) -> str:
    try:
        return str(error)[:_MESSAGE_CHARACTERS]
    except Exception:
        return ""


def _stand_in(name: str) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            _send(codec.encode([name, list(arguments), keywords]))
            answer = _receive()
            value = codec.decode(answer[1:])
        except (EOFError, OSError, codec.Malformed, OverflowError) as error:
            raise LinkLost(str(error)) from None
        if answer.startswith(VALUE):
            return value
        if answer.startswith(RAISED) and isinstance(value, list) and list(map(type, value)) == [str, str]:  # pyright: ignore[reportUnknownArgumentType]
            raise _raised(*value)  # pyright: ignore[reportUnknownArgumentType]
        raise LinkLost("the program sent what is no answer")

    call.__name__ = name
    return call


def _raised(type_name: str, message: str) -> ProgramRaised:
    base = getattr(builtins, type_name, None)
    if not (isinstance(base, type) and issubclass(base, Exception)):
        return ProgramRaised(f"{type_name}: {message}")
    try:
        return type(type_name, (ProgramRaised, base), {})(message)
    except TypeError:  # a type that wants other arguments
        return ProgramRaised(f"{type_name}: {message}")


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _bind(module: ModuleType, code: CodeType, function: str) -> None:
    """Give the tests a stand-in for every name that they do not define themselves."""
    wanted = [function, "candidate"] if function else _names(code)
    for name in wanted:
        if not hasattr(builtins, name) and name not in module.__dict__:
            module.__dict__[name] = _stand_in(function or name)
    solution = ModuleType("solution")
    solution.__dict__["__getattr__"] = _stand_in
    sys.modules["solution"] = solution


def run_tests(
    module: ModuleType, code: CodeType, function: str, kind: str, report: Callable[[bytes], None]
) -> NoReturn:
    """The tests' side: run them and report one outcome."""
    _bind(module, code, function)
    try:
        exec(code, module.__dict__)
        check = module.__dict__.get("check")
        if kind == "unittest":
            _run_cases(module)
        elif callable(check):
            check(_stand_in(function or "candidate"))
        outcome = PASSED
    except LinkLost as error:
        outcome = LINK_LOST + str(error).encode()
    except ProgramRaised as error:
        outcome = PROGRAM_RAISED + f"{type(error).__name__}: {error}".encode("utf-8", "replace")
    except (ModuleNotFoundError, NoTests) as error:  # the source's fault: no answer makes a module go away
        outcome = BROKEN + str(error).encode("utf-8", "replace")
    except BaseException as error:
        outcome = FAILED + f"{type(error).__name__}: {_message(error)}".encode("utf-8", "replace")  # type: ignore[arg-type]
    report(outcome[:1000])
    os._exit(0)


def _run_cases(module: ModuleType) -> None:
    cases = [
        found
        for found in module.__dict__.values()
        if isinstance(found, type)
        and issubclass(found, unittest.TestCase)
        and found.__module__ == module.__name__
    ]
    suite = unittest.TestSuite(map(unittest.defaultTestLoader.loadTestsFromTestCase, cases))
    if suite.countTestCases() == 0:
        raise NoTests("they define no test case")
    result = unittest.TextTestRunner(stream=io.StringIO()).run(suite)
    for _, text in result.failures + result.errors:
        raise AssertionError(text.strip().splitlines()[-1])
