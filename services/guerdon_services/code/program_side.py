"""The program's side of the connection: its objects stay here, the tests hold numbers that stand for them.

Nothing here is to be trusted: the program shares this process. All it can do is answer wrongly.
"""

import asyncio
import builtins
import copy
import enum
import operator
import sys
from collections.abc import Callable
from types import CoroutineType
from typing import Any, cast

from guerdon_services.code import codec, known
from guerdon_services.code.peer import RAISED, Peer

_MESSAGE_CHARACTERS = 300
_OF_OPERATOR = """
add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift
eq ne lt le gt ge neg pos invert getitem setitem delitem contains index
"""
_BUILTIN = """
abs bool delattr divmod float format getattr hash int isinstance issubclass iter len next repr reversed round setattr
str
"""


def _enter(value: Any) -> Any:
    return cast("Any", type(value)).__enter__(value)


def _exit(value: Any) -> Any:
    return cast("Any", type(value)).__exit__(value, None, None, None)


#: What the tests may ask of an object beside calling it.
OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in _OF_OPERATOR.split()},
    **{name: getattr(builtins, name) for name in _BUILTIN.split()},
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "enter": _enter,
    "exit": _exit,
}


class Callback:
    """A function of the tests, in the program's hands."""

    def __init__(self, number: int, name: str, call: Callable[..., Any]) -> None:
        self.number = number
        self.__name__ = name
        self._call = call

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._call(self.number, list(arguments), keywords)


class ProgramSide:
    """Answers the tests' questions about the program."""

    def __init__(self, find: Callable[[str], Any]) -> None:
        self._find = find
        self._peer = Peer(self)
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        #: One loop for all coroutines, since what they share may belong to it.
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Names of the types of the task's own setup; their instances cross as records.
        self._record_types: frozenset[str] = frozenset()

    def serve(self, frame: bytes) -> None:
        """Answer that question, and what follows until the tests are over."""
        self._peer.serve(frame)

    def answer(self, question: list[Any]) -> Any:
        """What the question asks for; see `standins` for the other end."""
        kind, *parts = question
        if kind == "call":
            return self._called(*parts)
        if kind == "apply":
            name, *operands = parts
            return OPERATIONS[name](*operands)
        if kind == "look up":
            names, record_types = parts
            self._record_types = frozenset(record_types)
            return [self._look_up(name) for name in names]
        if kind == "await":
            return self._awaited(self._objects[parts[0]])
        if kind == "names":
            return [name for name in vars(sys.modules["solution"]) if not name.startswith("_")]
        raise ValueError(f"unknown question {kind!r}")

    def _called(self, function: Any, arguments: list[Any], keywords: dict[str, Any], effects: bool) -> Any:
        callee = self._find(function) if isinstance(function, str) else function
        before = codec.encode(arguments, self._describe_quietly) if effects else b""
        value = callee(*arguments, **keywords)
        if isinstance(callee, type) and not codec.is_plain(value):
            # What the tests made themselves stays an object, even if its type extends list or int.
            value = _Kept(value)
        if not effects:
            return value
        changed = codec.encode(arguments, self._describe_quietly) != before
        return [value, arguments if changed else None]

    def _awaited(self, coroutine: Any) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        return self._loop.run_until_complete(coroutine)

    def _describe_quietly(self, value: Any) -> list[Any] | None:
        return None if isinstance(value, _Kept) else self.describe(value)

    def _look_up(self, name: str) -> list[Any]:
        try:
            found = self._find(name)
        except Exception:
            return ["missing", None]
        if callable(found) and not isinstance(found, type):
            return ["function", None]
        return ["value", found]

    def describe(self, value: Any) -> list[Any] | None:
        """How a value crosses: as a copy, as a number that stands for it, or (None) as what it extends."""
        if isinstance(value, _Kept):
            return known.describe(value.value) or self._reference(value.value)
        if isinstance(value, Callback):
            return ["callback", value.number]
        if isinstance(value, CoroutineType):
            return ["coroutine", self._number(value)]
        described = known.describe(value)
        if described is not None:
            return described
        if isinstance(value, type):
            return self._describe_type(cast("type[Any]", value))
        if isinstance(value, BaseException):
            return self._describe_error(value)
        if isinstance(value, (int, float, str, bytes, list, tuple, dict, set, frozenset)) or (
            type(value).__module__ == "numpy" and hasattr(value, "tolist")
        ):
            return None
        return self._reference(value)

    def _reference(self, value: Any) -> list[Any]:
        return ["object", self._number(value), type(value)]

    def _number(self, value: Any) -> int:
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)  # kept, so that its id stays its own
        return number

    def _describe_type(self, kind: type[Any]) -> list[Any]:
        is_error = issubclass(kind, Exception)
        return ["type", self._number(kind), kind.__name__, list(kind.__bases__) if is_error else []]

    def _describe_error(self, error: BaseException) -> list[Any]:
        arguments = [value if codec.is_plain(value) else type(value).__name__ for value in error.args]
        return ["error", self._number(error), type(error), _message(error), arguments]

    def rebuild(self, described: list[Any]) -> Any:
        """The value or the object that the tests mean."""
        kind, *parts = described
        if kind == "object":
            return self._objects[parts[0]]
        if kind == "name":
            return self._find(parts[0])
        if kind == "function":
            number, name = parts
            return Callback(number, name, self._call_back)
        if kind == "iterator":
            return iter(parts[0])
        return known.rebuild(described)

    def _call_back(self, number: int, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        kind, value = self._peer.ask(["call back", number, arguments, keywords])
        if kind != RAISED:
            return value
        if isinstance(value, BaseException):
            raise value
        _, type_name, message = value
        error_type: Any = getattr(builtins, type_name, Exception)
        try:
            error = error_type(message)
        except TypeError:  # a type that wants other arguments
            error = Exception(message)
        raise error

    def record_type(self, value: Any) -> str | None:
        """The name of the value's type if the tests know such a type."""
        kind = cast("type[Any]", type(value))
        if (
            kind.__name__ in self._record_types
            and kind.__module__ == "solution"
            and hasattr(value, "__dict__")
        ):
            return None if isinstance(value, (type, enum.Enum, BaseException)) else kind.__name__
        return None

    def new_record(self, type_name: str) -> Any:
        """An instance of the program's type of that name, or of an empty one."""
        kind: Any = vars(sys.modules["solution"]).get(type_name)
        if not isinstance(kind, type):
            kind = type(type_name, (), {"__module__": "solution"})
        self._record_types |= {type_name}
        return object.__new__(cast("type[Any]", kind))

    def error(self, error: Exception) -> Any:
        """An exception of the program crosses as itself."""
        return error


class _Kept:
    """Marks a value that must not cross as the builtin type that it extends."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _message(error: BaseException) -> str:
    try:
        return str(error)[:_MESSAGE_CHARACTERS]
    except Exception:
        return ""
