"""The tests' side of the connection: what the tests hold in place of the program's functions, types and objects.

A stand-in asks the program and gets plain values, copies or further stand-ins back. What the program must never
learn is an expected value, so a value of the tests reaches it only as an argument, an index, an attribute, or in
arithmetic with an object that the tests themselves made. `==` with anything but another of its objects is False
and asks nobody.
"""

import opcode
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn, Protocol, cast

from guerdon_services.code.errors import Unsupported, error_type
from guerdon_services.code.peer import LinkLost

_Ask = Callable[..., Any]
_ATTRIBUTES = frozenset({"__dict__", "__name__", "__qualname__", "__annotations__"})
_POP_TOP = opcode.opmap["POP_TOP"]
_MUTABLE = (list, dict, set, bytearray)


class Asker:
    """How stand-ins reach the program: `ask` is the connection; the rest is what the tests did so far."""

    def __init__(self, ask: _Ask) -> None:
        self.ask = ask
        #: Stand-ins by the program's number, so that one object has one stand-in.
        self.objects: dict[int, Any] = {}
        self.types: dict[int, Any] = {}
        #: Numbers of the types that the tests call by a capitalised name.
        self.named: set[int] = set()

    def call(self, function: Any, arguments: list[Any], keywords: dict[str, Any], caller: FrameType) -> Any:
        """Call, and give the arguments their new contents where the tests call for that effect alone."""
        effects = wants_effects(arguments, caller)
        answer = self.ask("call", function, arguments, keywords, effects)
        if not effects:
            return answer
        if type(answer) is not list or len(cast("list[Any]", answer)) != 2:
            raise LinkLost("the program did not say what became of the arguments")
        value, changed = cast("list[Any]", answer)
        give_contents(arguments, changed)
        return value

    def typed(self, kind: type[Any] | tuple[type[Any], ...], name: str, *operands: Any) -> Any:
        """The answer to an operation whose answer must be of exactly this type."""
        answer = self.ask("apply", name, *operands)
        if type(answer) not in (kind if isinstance(kind, tuple) else (kind,)):
            raise LinkLost(f"{name} of an object of the program is a {type(answer).__name__}")
        return answer


def wants_effects(arguments: list[Any], caller: FrameType) -> bool:
    """Whether the tests call for what becomes of the arguments."""
    return any(type(argument) in _MUTABLE for argument in arguments) and _discarded(caller)


def _discarded(frame: FrameType) -> bool:
    """True when the caller does nothing with the value of the call it is in: `f(x)` as a statement.

    Only then are arguments changed: in `assert f(x) == sorted(x)` the program could else choose what is expected.
    """
    code, index = frame.f_code.co_code, frame.f_lasti + 2
    while code[index] == 0:  # inline caches
        index += 2
    return code[index] == _POP_TOP


def give_contents(mine: Any, theirs: Any) -> None:
    """Make mutable containers hold what the program's copies of them hold."""
    if not _same_container(mine, theirs):
        return
    if type(mine) is list:
        _give_items(cast("list[Any]", mine), theirs)
    elif type(mine) is bytearray:
        mine[:] = theirs
    else:
        mine.clear()
        mine.update(theirs)


def _give_items(mine: list[Any], theirs: list[Any]) -> None:
    for index, (old, new) in enumerate(zip(mine, theirs, strict=False)):
        if _same_container(old, new):
            give_contents(old, new)
        else:
            mine[index] = new
    mine[:] = mine[: len(theirs)] + theirs[len(mine) :]


def _same_container(mine: Any, theirs: Any) -> bool:
    return type(mine) in _MUTABLE and type(mine) is type(theirs)


class Asking(Protocol):
    """What a function asks."""

    def ask(self, *question: Any) -> Any:
        """The answer to a question."""
        ...

    def call(self, function: Any, arguments: list[Any], keywords: dict[str, Any], caller: FrameType) -> Any:
        """The value of a call."""
        ...


class Function:
    """A function of the program, by name; each call of a `Solution` method gets a fresh instance there."""

    def __init__(self, asker: Asking, name: str) -> None:
        self._asker = asker
        self.__name__ = self.__qualname__ = name

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._asker.call(self.__name__, list(arguments), keywords, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._asker.ask("apply", "getattr", self, name)

    def __copy__(self) -> Any:
        return self  # as functions are copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self


class State:
    """What a stand-in knows about itself."""

    __slots__ = ("asker", "derived", "made", "number")

    def __init__(self, asker: Asker, number: int) -> None:
        self.asker = asker
        self.number = number
        #: The tests called a type by name to make it.
        self.made = False
        #: It came of arithmetic with a value of the tests: it is no number any more.
        self.derived = False


def state(stand_in: Any) -> State:
    """The state of an `Object`."""
    return object.__getattribute__(stand_in, "_state")


def _unary(name: str, kind: type[Any] | None = None) -> Callable[[Any], Any]:
    def method(self: Any) -> Any:
        own = state(self)
        if own.derived and name in ("abs", "float", "int", "index", "bool"):
            raise TypeError(f"{name} of what the tests computed with an object of the program")
        if kind is None:
            return own.asker.ask("apply", name, self)
        return own.asker.typed(kind, name, self)

    return method


def _arithmetic(name: str, *, reflected: bool = False) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        own = state(self)
        operands = (other, self) if reflected else (self, other)
        if isinstance(other, Object):
            return own.asker.ask("apply", name, *operands)
        if not own.made or type(other) not in (int, float):
            return NotImplemented
        # The number may be the expected one: what comes back must not be a number that the program chose.
        answer = own.asker.ask("apply", name, *operands)
        if not isinstance(answer, Object):
            raise TypeError(f"{name} of an object of the program and a number is no object of the program")
        state(answer).derived = state(answer).made = True
        return answer

    return method


def _comparison(name: str) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, Object):
            return NotImplemented
        answer = state(self).asker.ask("apply", name, self, other)
        if name in ("eq", "ne") and type(answer) is not bool:
            return name == "ne"
        return answer if type(answer) is bool else NotImplemented

    return method


class Object:
    """An object of the program."""

    __slots__ = ("__weakref__", "_state")
    _state: State

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in _ATTRIBUTES:
            raise AttributeError(name)
        return state(self).asker.ask("apply", "getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        state(self).asker.ask("apply", "setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        state(self).asker.ask("apply", "delattr", self, name)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return state(self).asker.call(self, list(arguments), keywords, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]

    def __getitem__(self, key: Any) -> Any:
        return state(self).asker.ask("apply", "getitem", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        state(self).asker.ask("apply", "setitem", self, key, value)

    def __delitem__(self, key: Any) -> None:
        state(self).asker.ask("apply", "delitem", self, key)

    def __contains__(self, item: Any) -> bool:
        # Asked only of what the tests made; a returned object has to show its items.
        if state(self).made or isinstance(item, Object):
            return state(self).asker.typed(bool, "contains", self, item)
        return any(item is own or item == own for own in self)

    def __iter__(self) -> Iterator[Any]:
        answer = state(self).asker.ask("apply", "iter", self)
        return cast("Iterator[Any]", answer) if isinstance(answer, Object) else iter(answer)

    def __next__(self) -> Any:
        return state(self).asker.ask("apply", "next", self)

    def __reversed__(self) -> Iterator[Any]:
        return state(self).asker.ask("apply", "reversed", self)

    def __round__(self, digits: int | None = None) -> Any:
        if state(self).derived:
            raise TypeError("round of what the tests computed with an object of the program")
        return state(self).asker.ask("apply", "round", self, digits)

    def __format__(self, specification: str) -> str:
        return state(self).asker.typed(str, "format", self, specification)

    def __enter__(self) -> Any:
        return state(self).asker.ask("apply", "enter", self)

    def __exit__(self, *error: object) -> None:
        state(self).asker.ask("apply", "exit", self)

    def __copy__(self) -> Any:
        return state(self).asker.ask("apply", "copy", self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return state(self).asker.ask("apply", "deepcopy", self)

    __hash__ = _unary("hash", int)  # type: ignore[assignment]
    __len__, __index__ = _unary("len", int), _unary("index", int)
    __bool__, __int__, __float__ = _unary("bool", bool), _unary("int", int), _unary("float", float)
    __str__, __repr__ = _unary("str", str), _unary("repr", str)  # type: ignore[assignment]
    __abs__, __neg__, __pos__, __invert__ = map(_unary, ("abs", "neg", "pos", "invert"))
    __eq__, __ne__ = _comparison("eq"), _comparison("ne")  # type: ignore[assignment]
    __lt__, __le__, __gt__, __ge__ = map(_comparison, ("lt", "le", "gt", "ge"))


_ARITHMETIC = "add sub mul truediv floordiv mod pow matmul divmod and_ or_ xor lshift rshift"
for _name in _ARITHMETIC.split():
    _dunder = _name.rstrip("_")
    setattr(Object, f"__{_dunder}__", _arithmetic(_name))
    setattr(Object, f"__r{_dunder}__", _arithmetic(_name, reflected=True))


class ObjectType(type):
    """The type of a stand-in for a type of the program."""

    asker: Asker
    number: int

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **more: Any) -> NoReturn:
        raise Unsupported("the tests extend a type of the program, which lives in another process")

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        answer = cls.asker.ask("call", cls, list(arguments), keywords, False)
        if isinstance(answer, Object):
            state(answer).made = cls.number in cls.asker.named
        return answer

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls.asker.ask("apply", "getattr", cls, name)

    def __setattr__(cls, name: str, value: Any) -> None:
        cls.asker.ask("apply", "setattr", cls, name, value)

    def __instancecheck__(cls, instance: Any) -> bool:
        if isinstance(instance, tuple):  # named tuples cross as copies
            return type(cast("Any", instance)).__name__ == cls.__name__
        return type.__instancecheck__(Object, instance) and cls.asker.typed(bool, "isinstance", instance, cls)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return isinstance(subclass, ObjectType) and cls.asker.typed(bool, "issubclass", subclass, cls)

    def __iter__(cls) -> Iterator[Any]:
        return iter(cls.asker.ask("apply", "iter", cls))

    def __len__(cls) -> int:
        return cls.asker.typed(int, "len", cls)

    def __getitem__(cls, key: Any) -> Any:
        return cls.asker.ask("apply", "getitem", cls, key)

    def __contains__(cls, item: Any) -> bool:
        return cls.asker.typed(bool, "contains", cls, item)


def object_type(asker: Asker, number: int, name: str, bases: list[Any]) -> type:
    """The one stand-in for the program's type of that number; `bases` are given for exceptions."""
    found = asker.types.get(number)
    if found is None:
        if bases:
            found = error_type(name, bases)
            found.ask, found.number = asker.ask, number
        else:
            found = type.__new__(ObjectType, name, (Object,), {"__slots__": (), "__module__": "solution"})
            type.__setattr__(found, "asker", asker)
            type.__setattr__(found, "number", number)
        asker.types[number] = found
    return found


def object_instance(asker: Asker, number: int, kind: Any) -> Any:
    """The one stand-in for the program's object of that number."""
    found = asker.objects.get(number)
    if found is None:
        if not isinstance(kind, ObjectType):
            kind = object_type(asker, -1, "object", [])
        found = object.__new__(kind)
        object.__setattr__(found, "_state", State(asker, number))
        asker.objects[number] = found
    return found
