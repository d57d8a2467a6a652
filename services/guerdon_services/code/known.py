"""Values beyond the plain ones that cross between the tests and the program as copies: dates, exact numbers, arrays ...

Each is described by a list of plain values, its kind first, and rebuilt by the receiver's own types: what arrives
behaves as the receiver's library says, whatever the sender claims.
"""

import builtins
import collections
import datetime
import decimal
import fractions
import re
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, cast

_Parts = tuple[type[Any], Callable[[Any], list[Any]]]
_DTYPE = re.compile(r"[<>|=]?[biufc][0-9]{1,2}")
#: Exceptions that tests name and programs raise; what could steer a test runner (skipping) is not among them.
_ERRORS = {
    "binascii": ("Error",),
    "dataclasses": ("FrozenInstanceError",),
    "decimal": ("DivisionByZero", "InvalidOperation", "Overflow"),
    "json.decoder": ("JSONDecodeError",),
    "queue": ("Empty", "Full"),
    "re": ("error",),
    "statistics": ("StatisticsError",),
    "struct": ("error",),
}


def _parts_of_timedelta(value: datetime.timedelta) -> list[Any]:
    return [value.days, value.seconds, value.microseconds]


_VALUES: dict[str, _Parts] = {
    "bytearray": (bytearray, lambda value: [bytes(value)]),
    "complex": (complex, lambda value: [value.real, value.imag]),
    "slice": (slice, lambda value: [value.start, value.stop, value.step]),
    "range": (range, lambda value: [value.start, value.stop, value.step]),
    "decimal": (decimal.Decimal, lambda value: [str(value)]),
    "fraction": (fractions.Fraction, lambda value: [value.numerator, value.denominator]),
    "deque": (collections.deque, lambda value: [list(value), value.maxlen]),
    "date": (datetime.date, lambda value: [value.year, value.month, value.day]),
    "timedelta": (datetime.timedelta, _parts_of_timedelta),
    "timezone": (datetime.timezone, lambda value: [value.utcoffset(None)]),
    "datetime": (datetime.datetime, lambda value: [value.isoformat()]),
    "time": (datetime.time, lambda value: [value.isoformat()]),
}
_KINDS = {kind: name for name, (kind, _) in _VALUES.items()}
_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "datetime": datetime.datetime.fromisoformat,
    "time": datetime.time.fromisoformat,
}


def describe(value: Any) -> list[Any] | None:
    """What stands for a value with a known type, else None."""
    kind = cast("type[Any]", type(value))
    if kind in _KINDS:
        name = _KINDS[kind]
        return [name, *_VALUES[name][1](value)]
    if isinstance(value, type):
        return _describe_type(value)
    if issubclass(kind, tuple):
        fields: Any = getattr(value, "_fields", None)
        items: list[Any] = list(tuple.__iter__(value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
        return (
            ["namedtuple", kind.__name__, list(cast("tuple[str, ...]", fields)), items]
            if isinstance(fields, tuple)
            else None
        )
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray" and _DTYPE.fullmatch(value.dtype.str):
        return ["array", value.dtype.str, list(value.shape), value.tobytes()]
    return None


def _describe_type(kind: type[Any]) -> list[Any] | None:
    if getattr(builtins, kind.__name__, None) is kind:
        return ["builtin", kind.__name__]
    if kind.__name__ in _ERRORS.get(kind.__module__, ()) and _loaded(kind.__module__, kind.__name__) is kind:
        return ["error type", kind.__module__, kind.__name__]
    return None


def rebuild(described: list[Any]) -> Any:
    """The value that `describe` described.

    Raises:
        ValueError, TypeError, LookupError, ArithmeticError: it describes none.
    """
    name, *parts = described
    if name in _FROM_TEXT:
        [text] = parts
        return _FROM_TEXT[name](text)
    if name in _VALUES:
        return _VALUES[name][0](*parts)
    if name == "builtin":
        return _builtin(*parts)
    if name == "error type":
        module, error = parts
        if error not in _ERRORS[module]:
            raise ValueError(f"{module}.{error} is not known")
        return _loaded(module, error)
    if name == "namedtuple":
        type_name, fields, values = parts
        return _namedtuple(type_name, tuple(fields))(*values)
    if name == "array":
        return _array(*parts)
    raise ValueError(f"unknown kind {name!r}")


def _loaded(module: str, name: str) -> Any:
    # Not imported for this: a module that the receiver has not loaded has no type that its code could name.
    return getattr(sys.modules.get(module), name, Exception)


def _builtin(name: str) -> type[Any]:
    found = getattr(builtins, name)
    if not isinstance(found, type):
        raise TypeError(f"{name!r} is not a builtin type")
    return cast("type[Any]", found)


@cache
def _namedtuple(name: str, fields: tuple[str, ...]) -> Callable[..., Any]:
    return collections.namedtuple(name, fields)  # type: ignore[misc]


def _array(dtype: str, shape: list[int], content: bytes) -> Any:
    if not _DTYPE.fullmatch(dtype):
        raise ValueError(f"arrays of {dtype!r} are not known")
    numpy = sys.modules.get("numpy")
    if numpy is None:
        raise ValueError("numpy is not loaded")
    return numpy.frombuffer(content, dtype=dtype).reshape(shape).copy()
