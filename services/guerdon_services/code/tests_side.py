"""What the tests' side of the connection says of its values and makes of the program's."""

import enum
import io
import itertools
import unittest
from collections.abc import Iterator
from types import ModuleType
from typing import Any, cast

from guerdon_services.code import known
from guerdon_services.code.errors import ErrorType, ProgramRaised, Unsupported, error_instance
from guerdon_services.code.peer import RAISED, LinkLost, Peer
from guerdon_services.code.standins import (
    Asker,
    Function,
    Object,
    ObjectType,
    object_instance,
    object_type,
    state,
)

_MOST_ITEMS = 100_000
_MESSAGE_CHARACTERS = 300
_NOT_RECORDS = (type, enum.Enum, BaseException, unittest.TestCase)


class _NotSendable(TypeError):
    """A value of the tests that cannot cross."""


class TestsSide:
    """Asks the program, on behalf of the tests in `module`."""

    __test__ = False

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._peer = Peer(self)
        self._functions: list[Any] = []
        self._record_types = {
            name
            for name, kind in vars(module).items()
            if _is_record_type(kind) and kind.__module__ == module.__name__
        }
        self.asker = Asker(self.ask)
        #: Whether the tests asked anything at all; what they lack; both outlive a bare `except`.
        self.asked = False
        self.unsupported: str | None = None

    @property
    def lost(self) -> str | None:
        """Why the program can no longer be asked."""
        return self._peer.lost

    @property
    def has_records(self) -> bool:
        """Whether there are types whose instances the program may return by their attributes."""
        return bool(self._record_types)

    def ask(self, *question: Any) -> Any:
        """The answer to one question.

        Raises:
            ProgramRaised: it raised.
            LinkLost: it is gone, or its answer is none.
            Unsupported: an argument cannot be sent.
        """
        self.asked = True
        try:
            kind, value = self._peer.ask(list(question))
        except _NotSendable as error:
            self.unsupported = str(error)
            raise Unsupported(self.unsupported) from None
        if kind != RAISED:
            return value
        if isinstance(value, ProgramRaised):
            raise value
        self._peer.lost = "the program raised what is no exception"
        raise LinkLost(self._peer.lost)

    def look_up(self, names: list[str]) -> list[tuple[str, Any]]:
        """What the program calls by these names: "missing", "function" or "value", and the value."""
        asked = self.asked
        answers = self.ask("look up", names, sorted(self._record_types))
        found: list[tuple[str, Any]] = []
        for answer in cast("list[Any]", answers) if type(answers) is list else []:
            pair = cast("list[Any]", answer)
            if type(answer) is list and len(pair) == 2:
                found.append((str(pair[0]), pair[1]))
        if len(found) != len(names):
            raise LinkLost("the program does not know what it defines")
        # Looking functions and types up is no test; a constant may be all that is tested.
        self.asked = asked or any(
            kind == "value" and not isinstance(value, (ObjectType, ErrorType)) for kind, value in found
        )
        return found

    def answer(self, question: list[Any]) -> Any:
        """Call back a function that the tests handed over; there is nothing else to ask of them."""
        kind, number, arguments, keywords = question
        if kind != "call back":
            raise ValueError(f"unknown question {kind!r}")
        return self._functions[number](*arguments, **keywords)

    def error(self, error: Exception) -> Any:
        """An exception of a called back function: its type if it is builtin, and its message."""
        if isinstance(error, ProgramRaised):
            return error
        return ["error", type(error).__name__, str(error)[:_MESSAGE_CHARACTERS]]

    def describe(self, value: Any) -> list[Any] | None:
        """How a value of the tests crosses.

        Raises:
            TypeError: it cannot.
        """
        if isinstance(value, Object):
            return ["object", state(value).number]
        if type(value) is Function:
            return ["name", value.__name__]
        if isinstance(value, (ObjectType, ErrorType)):
            return ["object", value.number]
        if isinstance(value, ProgramRaised):
            return ["object", value._number]  # pyright: ignore[reportPrivateUsage]
        described = known.describe(value)
        if described is not None or isinstance(
            value, (int, float, str, bytes, list, tuple, dict, set, frozenset)
        ):
            return described
        if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
            return None
        return self._describe_stranger(value)

    def _describe_stranger(self, value: Any) -> list[Any]:
        if isinstance(value, io.StringIO):
            return ["iterator", value.getvalue().splitlines(keepends=True)]
        if isinstance(value, Iterator):
            items = list(itertools.islice(cast("Iterator[Any]", value), _MOST_ITEMS + 1))
            if len(items) > _MOST_ITEMS:
                raise ValueError(f"more than {_MOST_ITEMS} items")
            return ["iterator", items]
        if type(value).__name__ in ("dict_keys", "dict_values", "dict_items"):
            return ["iterator", list(value)]
        if callable(value):
            self._functions.append(value)
            return ["function", len(self._functions) - 1, str(getattr(value, "__name__", "function"))]
        raise _NotSendable(f"the tests hand the program a {type(value).__name__}")

    def rebuild(self, described: list[Any]) -> Any:
        """The stand-in for what the program described."""
        kind, *parts = described
        if kind == "object":
            number, object_kind = parts
            return object_instance(self.asker, number, object_kind)
        if kind == "type":
            return object_type(self.asker, *parts)
        if kind == "error":
            number, error_kind, message, arguments = parts
            return error_instance(error_kind, self.ask, number, message, arguments)
        if kind == "callback":
            return self._functions[parts[0]]
        if kind == "coroutine":
            return self._awaited(parts[0])
        return known.rebuild(described)

    async def _awaited(self, number: int) -> Any:
        """What a coroutine of the program returns; it runs there, all of it, once the tests await this one."""
        return self.ask("await", number)

    def record_type(self, value: Any) -> str | None:
        """The name of the value's type if the tests or their setup define it."""
        kind = cast("type[Any]", type(value))
        if (
            kind.__module__ != self._module.__name__
            or not _is_record_type(kind)
            or not hasattr(value, "__dict__")
        ):
            return None
        self._record_types.add(kind.__name__)
        return kind.__name__

    def new_record(self, type_name: str) -> Any:
        """An instance of such a type, without attributes.

        Raises:
            ValueError: there is no such type.
        """
        kind: Any = vars(self._module).get(type_name)
        if type_name not in self._record_types or not isinstance(kind, type):
            raise ValueError(f"the tests have no type {type_name!r}")
        return object.__new__(cast("type[Any]", kind))


def _is_record_type(kind: Any) -> bool:
    return (
        isinstance(kind, type)
        and not issubclass(kind, _NOT_RECORDS)
        and "__call__" not in vars(cast("type[Any]", kind))
    )
