"""The tests' side of many runs in one process: for pure tests (`pure`) of programs that answer with plain values.

Whatever is not plain, on either side of the connection, ends the run without an outcome: those tests are then run in
a sandbox of their own. So nothing of a program is ever here but numbers, text and containers of them, and nobody who
could keep them: the names of a run go with it.

    supervisor -> here   a marshalled `Asked`, and the tests' end of the connection
    here -> supervisor   its number, `KEEP` or `REPLACE`, and the outcome as `linked` reports it, or why there is none
"""

import json
import marshal
import os
import random
import resource
import select
import signal
import socket
import struct
import sys
import warnings
from types import FrameType, FunctionType
from typing import Any, NoReturn, TypedDict, cast

from guerdon_services.code import codec, linked, pure, pure_names
from guerdon_services.code.peer import LINK_FD, LinkLost, send
from guerdon_services.code.plain_side import CALLS, JSON, RAISED, VALUE, Call
from guerdon_services.code.standins import Function, give_contents, wants_effects

KEEP, REPLACE = b"K", b"R"
#: In place of an outcome: this run, or every run of these tests, is not for this process.
OTHERS, NEVER = b"?", b"!"
NUMBER = struct.Struct("<Q")
MAX_MESSAGE = 64 * 1024
_SOURCES_KEPT = 64
#: A process that was ever larger than at its start by this is replaced.
_GROWTH_KB = 64 * 1024
_MESSAGE_CHARACTERS = 300
_LONGEST_ANSWER = 4 << 20
#: Most programs have answered all within this time.
_QUICK_MS = 5
#: What the interpreter itself takes for more than an error.
_NOT_ORDINARY = frozenset({"StopIteration", "StopAsyncIteration", "GeneratorExit"})
_Sources = tuple[pure.Pure | None, pure.Pure]


class Asked(TypedDict):
    """One run of one source of tests."""

    setup: str
    source: str
    function: str
    cpu_s: float
    #: Comes back with the report: no run is taken for another.
    number: int


class _NotPlain(BaseException):
    """A value that cannot cross by itself. Not an Exception: nobody on the way may take it for one."""


class _Raised(BaseException):
    """The program raised. Pure tests have no way to catch it."""


class WarmSide:
    """Asks the program at the other end of `descriptor`; takes plain values only."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._received = bytearray()
        #: Calls that were asked before the tests came to them, the last one first.
        self._ahead: list[bytes] = []
        #: Groups of calls that are still to be asked, the last one first, and whether there are no others.
        self._groups: list[list[Call]] = []
        self._complete = False
        self.asked = False

    def foresee(self, groups: list[list[Call]], *, complete: bool) -> None:
        """Ask each of these groups at once, when its first call comes; `complete`: there will be no other calls."""
        self._groups = groups[::-1]
        self._complete = complete

    def end(self) -> None:
        """The tests are over.

        Raises:
            NotPure: a call that was foreseen did not come.
        """
        if self._ahead or self._groups:
            raise pure_names.NotPure("it does not make all the calls that were foreseen")

    def _ask_group(self) -> None:
        """Ask for the values of the next group; after the last one, wait for the program's end a while."""
        asked = [(*call, False) for call in self._groups.pop()]
        last = self._complete and not self._groups
        self._ahead = [_marshalled(call) for call in reversed(asked)]
        self._send(CALLS + _marshalled((last, asked)))
        if last:
            # Whoever waits for answers is woken by each of them.
            ending = select.poll()
            ending.register(self._descriptor, select.POLLRDHUP)
            ending.poll(_QUICK_MS)

    def call(self, function: Any, arguments: list[Any], keywords: dict[str, Any], caller: FrameType) -> Any:
        """As `Asker.call`, for names and plain values.

        Raises:
            NotPure: another call was foreseen.
        """
        self.asked = True
        effects = wants_effects(arguments, caller)
        call = (function, arguments, keywords, effects)
        if not self._ahead and self._groups:
            self._ask_group()
        if self._ahead or self._complete:
            if not self._ahead or self._ahead.pop() != _marshalled(call):
                raise pure_names.NotPure("it makes a call that was not foreseen")
        elif _has_set((arguments, keywords)):
            raise pure_names.NotPure("a set would arrive in another order")  # marshal sorts it
        else:
            self._send(CALLS + _marshalled((False, [call])))
        answer = self._answer()
        if not effects:
            return answer
        if type(answer) is not list or len(cast("list[Any]", answer)) != 2:
            raise LinkLost("the program did not say what became of the arguments")
        value, changed = cast("list[Any]", answer)
        give_contents(arguments, changed)
        return value

    def ask(self, *question: Any) -> Any:
        """Nothing else can be asked of plain functions."""
        raise _NotPlain(f"{question[:2]}")

    def _answer(self) -> Any:
        """The next answer.

        Raises:
            _Raised: the program raised.
            _NotPlain: a value is not plain.
            LinkLost: the program is gone, or its answer is none.
        """
        try:
            frame = self._frame()
            kind, body = frame[:1], frame[1:]
            if kind == JSON:
                return json.loads(body)
            if kind == VALUE:
                return codec.decode(body)
            if kind == RAISED:
                type_name, message = json.loads(body)
                if type_name in _NOT_ORDINARY:
                    raise _NotPlain(type_name)
                raise _Raised(f"{str(type_name)[:100]}: {str(message)[:_MESSAGE_CHARACTERS]}")
        except (EOFError, OSError) as error:
            raise LinkLost(f"{error}") from None
        except (ValueError, TypeError) as error:
            raise _NotPlain(f"{error}") from None
        raise _NotPlain("an answer")

    def _frame(self) -> bytes:
        received = self._received
        while len(received) < 8:
            self._receive()
        length = int.from_bytes(received[:8], "little")
        if length > _LONGEST_ANSWER:
            raise _NotPlain(f"an answer of {length} bytes")
        while len(received) < 8 + length:
            self._receive()
        frame = bytes(received[8 : 8 + length])
        del received[: 8 + length]
        return frame

    def _receive(self) -> None:
        part = os.read(self._descriptor, 1 << 16)
        if not part:
            raise EOFError("the connection ended")
        self._received += part

    def _send(self, body: bytes) -> None:
        try:
            send(self._descriptor, body)
        except OSError as error:
            raise LinkLost(f"{error}") from None


def _marshalled(value: Any) -> bytes:
    """Its bytes, the same for equal values of equal types."""
    try:
        return marshal.dumps(value, 2)
    except ValueError:
        raise _NotPlain("an argument") from None


def _has_set(value: Any) -> bool:
    kind = cast("type[Any]", type(value))
    if kind is dict:
        return any(map(_has_set, value)) or any(map(_has_set, value.values()))
    if kind is list or kind is tuple:
        return any(map(_has_set, value))
    return kind is set or kind is frozenset


def serve() -> NoReturn:
    """Run tests until the supervisor goes, or asks for another process."""
    # All three, for the walls forbid to ask what kind of a socket it is.
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, LINK_FD)
    control.send(str(os.getpid()).encode())
    # Nobody reads what the interpreter has to say of the tests: it would block once the pipes are full.
    warnings.simplefilter("ignore")
    sys.stdout = sys.stderr = None
    most_kb = _memory_kb() + _GROWTH_KB
    sources: dict[tuple[str, str, str], _Sources] = {}
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, MAX_MESSAGE, 1)
        if not message:
            os._exit(0)
        asked: Asked = marshal.loads(message)
        # The default action of the signal ends the process.
        signal.setitimer(signal.ITIMER_PROF, asked["cpu_s"])
        report = _report(asked, descriptors[0], sources)
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.close(descriptors[0])
        if _memory_kb() > most_kb:
            report = REPLACE + report[1:]
        control.send(NUMBER.pack(asked["number"]) + report)


def _report(asked: Asked, descriptor: int, sources: dict[tuple[str, str, str], _Sources]) -> bytes:
    key = (asked["setup"], asked["source"], asked["function"])
    namespace: dict[str, Any] = {"__name__": "tests", "__builtins__": pure_names.BUILTINS}
    try:
        found = sources.get(key)
        if found is None:
            setup = pure.compiled(asked["setup"], "<setup>") if asked["setup"] else None
            found = (setup, pure.compiled(asked["source"], "<solution>", asked["function"]))
            if len(sources) < _SOURCES_KEPT:
                sources[key] = found
        side = WarmSide(descriptor)
        _run(side, namespace, found, asked["function"])
        return KEEP + (linked.PASSED if side.asked else NEVER + b"they ask nothing")
    except pure_names.NotPure as error:
        return KEEP + NEVER + str(error).encode("utf-8", "replace")[:1000]
    except _NotPlain as error:
        return KEEP + OTHERS + str(error).encode("utf-8", "replace")[:1000]
    except _Raised as error:
        return KEEP + linked.PROGRAM_RAISED + str(error).encode("utf-8", "replace")[:999]
    except AssertionError as error:
        return KEEP + linked.FAILED + linked.described(error)[:999]
    except LinkLost as error:
        return KEEP + linked.LINK_LOST + str(error).encode("utf-8", "replace")[:999]
    except NameError as error:
        # It may be another name of the program: the function asked for need not be all that the tests use.
        return KEEP + OTHERS + str(error).encode("utf-8", "replace")[:1000]
    except (RecursionError, MemoryError) as error:
        return REPLACE + OTHERS + type(error).__name__.encode()
    except Exception as error:
        return REPLACE + linked.FAILED + linked.described(error)[:999]
    finally:
        namespace.clear()


def _run(side: WarmSide, namespace: dict[str, Any], sources: _Sources, function: str) -> None:
    """As `linked.run_tests` does it for tests that are not pure."""
    setup, tests = sources
    if tests.random or (setup and setup.random):
        random.seed()
    if setup:
        try:
            exec(setup.code, namespace)
        except Exception as error:
            raise pure_names.NotPure(f"the setup: {error}") from None
    candidate = _bind(side, namespace, tests, function)
    side.foresee(tests.foreseen, complete=tests.complete)
    exec(tests.code, namespace)
    check = namespace.get("check")
    if isinstance(check, FunctionType):
        check(*[candidate][: _parameters(check)])
    side.end()


def _bind(side: WarmSide, namespace: dict[str, Any], tests: pure.Pure, function: str) -> Any:
    """Give the tests what they do not define themselves; returns the candidate."""
    unknown = [name for name in tests.globals if name not in namespace]
    for name in unknown:
        if name in linked.LIBRARY and name != function:
            namespace[name] = pure_names.from_library(linked.LIBRARY[name])
    if function:
        candidate = namespace[function] = Function(side, function)
        namespace.setdefault("candidate", candidate)
        return candidate
    wanted = [name for name in unknown if name not in namespace]
    if not tests.called.issuperset(wanted):
        raise pure_names.NotPure("what may be a constant of the program")
    namespace.update({name: Function(side, name) for name in wanted})
    return Function(side, "candidate")


def _parameters(function: FunctionType) -> int:
    code = function.__code__
    stars = bool(code.co_flags & 4) + bool(code.co_flags & 8)
    return code.co_argcount + code.co_kwonlyargcount + stars


def _memory_kb() -> int:
    """The most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
