"""What happens inside the walls: compile the program and run it on one input. Standard library only.

The report pipe carries the `READY` byte that the server's child wrote, then either `COMPILE_ERROR` or `SETUP_ERROR` and
a message, or the `BEGUN` byte. All of that is written before the program's first instruction. What follows `BEGUN`
is the program's: `VALUE` and an encoded value (call), with the list of arguments as they are then, if asked. A hostile
one may write there what it likes: the worst it can do is return a value it could have returned.

Kinds: stdio; call; serve, a program that answers the calls of tests elsewhere; assert and unittest, those tests
(`linked` has both ends); warm, which runs one pure source of tests after the other (`warm_side`).
"""

import atexit
import io
import json
import os
import sys
import threading
from types import CodeType, ModuleType
from typing import Any, NoReturn, NotRequired, TextIO, TypedDict

from guerdon_services.code import codec, linked, warm_side
from guerdon_services.code.sandbox import REPORT_FD

READY, BEGUN, COMPILE_ERROR, SETUP_ERROR, VALUE, BROKEN = b"R", b"B", b"C", b"I", b"V", b"S"
#: Exit codes; they refine a failure and never mean success.
EXIT_EXCEPTION, EXIT_MEMORY = 1, 78

_MODULE_NAMES = {"stdio": "__main__", "assert": "tests", "unittest": "tests"}


class Job(TypedDict):
    """One run of one program, marshalled in a sealed file. It never holds an expected value."""

    kind: str
    code: str
    setup: str
    function: str
    arguments: str
    #: The arguments as codec bytes in hexadecimal; wins over `arguments`.
    encoded_arguments: str
    cpu_s: float
    memory_mb: int
    #: Whether a call also reports its arguments as it left them.
    report_arguments: NotRequired[bool]


def run(job: Job) -> NoReturn:
    """Run the job and end the process."""
    if job["kind"] == "warm":
        warm_side.serve()
    _open_streams()
    module = ModuleType(_MODULE_NAMES.get(job["kind"], "solution"))
    module.__dict__["__builtins__"] = __builtins__
    sys.modules[module.__name__] = module
    if job["setup"]:
        _set_up(module, job["setup"])
    code = _compile(job["code"], "<solution>", COMPILE_ERROR)
    _report(BEGUN, b"")
    if job["kind"] in ("assert", "unittest"):
        linked.run_tests(module, code, job["function"], job["kind"], lambda outcome: _report(outcome, b""))
    if job["kind"] == "call":
        _call(module, code, job)
    os.close(REPORT_FD)
    if job["kind"] == "stdio":
        stdout = sys.stdout
        _finish(_execute(module, code), stdout)
    _serve(module, code)


def _open_streams() -> None:
    stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
    sys.stdin = sys.__stdin__ = stdin  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _writer(1, line_buffering=False)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _writer(2, line_buffering=True)  # type: ignore[misc]


def _writer(descriptor: int, *, line_buffering: bool) -> io.TextIOWrapper:
    binary = io.BufferedWriter(io.FileIO(descriptor, "wb", closefd=False))
    errors = "backslashreplace" if descriptor == 2 else "strict"
    return io.TextIOWrapper(
        binary, encoding="utf-8", errors=errors, newline="\n", line_buffering=line_buffering
    )


def _report(tag: bytes, body: bytes) -> None:
    message = memoryview(tag + body)
    while message:
        message = message[os.write(REPORT_FD, message) :]


def _set_up(module: ModuleType, source: str) -> None:
    """Run the task's own trusted code, before any of the program's."""
    code = _compile(source, "<setup>", SETUP_ERROR)
    try:
        exec(code, module.__dict__)
    except BaseException as error:
        _give_up(SETUP_ERROR, error)


def _compile(source: str, name: str, failure: bytes) -> CodeType:
    try:
        # A file may begin with the mark of its encoding.
        return compile(source.removeprefix("\ufeff"), name, "exec", dont_inherit=True)
    except BaseException as error:  # SyntaxError, null bytes, nesting, memory: no program came of it
        _give_up(failure, error)


def _give_up(failure: bytes, error: BaseException) -> NoReturn:
    _report(failure, f"{type(error).__name__}: {error}".encode("utf-8", "replace")[:1000])
    os._exit(EXIT_EXCEPTION)


def _execute(module: ModuleType, code: CodeType) -> int:
    """Run code as the interpreter would run a script; returns its exit code."""
    try:
        exec(code, module.__dict__)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return (stop.code or 0) & 0xFF
        print(stop.code, file=sys.stderr)
        return EXIT_EXCEPTION
    except MemoryError:
        return EXIT_MEMORY
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return EXIT_EXCEPTION
    return 0


def _finish(exit_code: int, stdout: TextIO) -> NoReturn:
    """End as the interpreter does: join threads, run exit handlers, flush what is open. A failed flush is a failure.

    `stdout` is what it was before the program began, which may have put another in its place.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
        for stream in (sys.stdout, stdout):
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
    except MemoryError:
        exit_code = exit_code or EXIT_MEMORY
    except BaseException:
        exit_code = exit_code or EXIT_EXCEPTION
    os._exit(exit_code)


def _call(module: ModuleType, code: CodeType, job: Job) -> NoReturn:
    encode, report, end = codec.encode, _report, os._exit
    arguments_too = job.get("report_arguments", False)
    exit_code = EXIT_EXCEPTION
    try:
        if job["encoded_arguments"]:
            arguments = codec.decode(bytes.fromhex(job["encoded_arguments"]))
        else:
            arguments = json.loads(job["arguments"])
        exit_code = _execute(module, code)
        if exit_code == 0:
            value = _function(module, job["function"])(*arguments)
            report(VALUE, encode(value) + (encode(arguments) if arguments_too else b""))
    except MemoryError:
        exit_code = EXIT_MEMORY
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        exit_code = EXIT_EXCEPTION
    end(exit_code)


def _serve(module: ModuleType, code: CodeType) -> NoReturn:
    end = os._exit
    exit_code = EXIT_EXCEPTION
    try:
        exit_code = _execute(module, code)
        if exit_code == 0:
            linked.serve(lambda name: _function(module, name))
    except MemoryError:
        exit_code = EXIT_MEMORY
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        exit_code = EXIT_EXCEPTION
    end(exit_code)


def _function(module: ModuleType, name: str) -> Any:
    """The function called `name`, or the method of that name of a fresh `Solution`."""
    found = module.__dict__.get(name)
    if found is None and "Solution" in module.__dict__:
        found = getattr(module.__dict__["Solution"](), name, None)
    if found is None:
        raise NameError(f"the program defines no function {name!r}")
    return found
