"""The program's exceptions as the tests meet them."""

from collections.abc import Callable
from typing import Any, NoReturn, cast


class Unsupported(BaseException):
    """The tests need something that two processes cannot give. Not an Exception: tests must not catch it."""


class ProgramRaised(Exception):
    """The program raised; instances are also of the builtin or own type that it raised."""

    _message = ""
    _ask: Callable[..., Any] | None = None
    _number: int | None = None

    def __str__(self) -> str:
        return self._message

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self._ask is None:
            raise AttributeError(name)
        return self._ask("apply", "getattr", self, name)


class ErrorType(type):
    """The type of a stand-in for an exception type of the program."""

    ask: Callable[..., Any]
    number: int

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **more: Any) -> NoReturn:
        raise Unsupported("the tests extend an exception of the program, which lives in another process")

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        return cls.ask("call", cls, list(arguments), keywords, False)


def error_type(name: str, bases: list[Any]) -> Any:
    """A type that is an exception of the program's and extends those of `bases` that are exceptions."""
    usable = [
        cast("type[Any]", base) for base in bases if isinstance(base, type) and issubclass(base, Exception)
    ]
    if not any(issubclass(base, ProgramRaised) for base in usable):
        usable.insert(0, ProgramRaised)
    try:
        return type.__new__(ErrorType, name, tuple(usable), {"__module__": "solution"})
    except TypeError:  # their layouts or orders do not fit together
        return type.__new__(ErrorType, name, (ProgramRaised,), {"__module__": "solution"})


_builtin_types: dict[type[Any], Any] = {}


def error_instance(
    kind: Any, ask: Callable[..., Any], number: int, message: str, arguments: list[Any]
) -> ProgramRaised:
    """An exception of that type, without running any code of the type's own."""
    if not isinstance(kind, ErrorType):
        if kind not in _builtin_types:
            _builtin_types[kind] = error_type(kind.__name__, [kind])
        kind = _builtin_types[kind]
    error = cast("ProgramRaised", _new(kind, arguments))
    error.args = tuple(arguments)
    error._message = str(message)  # pyright: ignore[reportPrivateUsage]
    error._ask, error._number = ask, number  # pyright: ignore[reportPrivateUsage]
    return error


def _new(kind: Any, arguments: list[Any]) -> Any:
    try:
        return kind.__new__(kind, *arguments)
    except TypeError:
        return kind.__new__(kind)
