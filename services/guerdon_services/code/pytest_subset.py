"""What tests written for pytest use of it: raises, approx, parametrize, fixtures, skip, fail. Standard library only.

pytest itself needs files, plug-ins and processes that a sandbox does not have.
"""

import inspect
import math
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack
from types import ModuleType, TracebackType
from typing import Any, cast
from unittest import SkipTest as Skipped

from guerdon_services.code.errors import Unsupported

_MARKS = "_guerdon_marks"
_FIXTURE = "_guerdon_fixture"
_PLAIN = (int, float, complex)


class Raises:
    """The context of `pytest.raises`; afterwards `value` and `type` tell what was raised."""

    def __init__(self, expected: Any, match: str | None) -> None:
        self._expected = expected
        self._match = match
        self.value: Any = None
        self.type: Any = None

    def __enter__(self) -> "Raises":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> bool:
        if error is None:
            raise AssertionError(f"did not raise {self._expected}")
        if not isinstance(error, self._expected):
            return False
        self.value, self.type = error, kind
        if self._match is not None and not re.search(self._match, str(error)):
            raise AssertionError(f"the message {str(error)!r} does not match {self._match!r}")
        return True

    def match(self, pattern: str) -> bool:
        """Check the message, as pytest's ExceptionInfo does."""
        assert re.search(pattern, str(self.value))
        return True


def raises(expected: Any, *arguments: Any, match: str | None = None, **keywords: Any) -> Any:
    """As a context, or with a function to call."""
    context = Raises(expected, match)
    if not arguments:
        return context
    with context:
        arguments[0](*arguments[1:], **keywords)
    return context


class approx:
    """Equal to numbers, and containers of numbers, that are close; nan only with `nan_ok`."""

    __hash__ = None  # type: ignore[assignment]
    __array_ufunc__ = None
    __array_priority__ = 100

    def __init__(
        self, expected: Any, rel: float | None = None, abs: float | None = None, nan_ok: bool = False
    ) -> None:
        self._expected = expected
        self._rel = rel
        self._abs = abs
        self._nan_ok = nan_ok

    def __eq__(self, actual: object) -> bool:
        return self._same(actual, self._expected)

    def __repr__(self) -> str:
        return f"approx({self._expected!r})"

    def _same(self, actual: Any, expected: Any) -> bool:
        if hasattr(expected, "tolist"):
            expected = expected.tolist()
        if type(actual).__module__ == "numpy":
            actual = actual.tolist()
        if isinstance(expected, dict):
            fields = cast("dict[Any, Any]", expected)
            return (
                isinstance(actual, dict)
                and actual.keys() == fields.keys()
                and all(self._same(actual[key], fields[key]) for key in fields)
            )
        if isinstance(expected, (list, tuple)):
            items = cast("Sequence[Any]", expected)
            if not isinstance(actual, (list, tuple)) or len(cast("Sequence[Any]", actual)) != len(items):
                return False
            return all(map(self._same, cast("Sequence[Any]", actual), items))
        if isinstance(expected, bool) or not isinstance(expected, _PLAIN):
            return bool(actual == expected)
        return isinstance(actual, _PLAIN) and self._close(actual, expected)

    def _close(self, actual: Any, expected: Any) -> bool:
        if actual == expected:
            return True
        if expected != expected:
            return self._nan_ok and actual != actual
        if isinstance(expected, float) and math.isinf(expected):
            return False
        least = 1e-12 if self._abs is None else self._abs
        relative = 1e-6 if self._rel is None else self._rel
        if self._rel is None and self._abs is not None:
            relative = 0.0
        return abs(actual - expected) <= max(least, relative * abs(expected))


class _Marks:
    """`pytest.mark`: parametrize, skip and skipif count, other marks change nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def mark(*arguments: Any, **keywords: Any) -> Any:
            bare = len(arguments) == 1 and not keywords
            if bare and (inspect.isroutine(arguments[0]) or inspect.isclass(arguments[0])):
                return _marked(arguments[0], name, (), {})

            def apply(target: Any) -> Any:
                return _marked(target, name, arguments, keywords)

            return apply

        return mark


def _marked(target: Any, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    marks = [*getattr(target, _MARKS, ()), (name, arguments, keywords)]
    setattr(target, _MARKS, marks)
    return target


class Parameters:
    """`pytest.param`: one set of values."""

    def __init__(self, *values: Any, id: Any = None, marks: Any = ()) -> None:
        self.values = values


def fixture(function: Any = None, *, autouse: bool = False, name: str | None = None, **more: Any) -> Any:
    """Marks a function as a fixture; it is made anew for every test."""

    def mark(function: Any) -> Any:
        if "params" in more:
            raise Unsupported("fixtures with parameters are not supported")
        setattr(function, _FIXTURE, (name or function.__name__, autouse))
        return function

    return mark if function is None else mark(function)


def skip(reason: str = "", **more: Any) -> None:
    """End the running test without a verdict."""
    raise Skipped(reason)


def fail(reason: str = "", pytrace: bool = True) -> None:
    """End the running test as failed."""
    raise AssertionError(reason)


def warns(*expected: Any, **more: Any) -> None:
    """The program's warnings are given in its own process.

    Raises:
        Unsupported: always.
    """
    raise Unsupported("pytest.warns is not supported")


def fixtures_of(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """The fixtures among these, by name."""
    found = [value for value in namespace.values() if inspect.isfunction(value) and hasattr(value, _FIXTURE)]
    return {getattr(value, _FIXTURE)[0]: value for value in found}


def parameters_of(function: Any, kind: type[Any] | None) -> list[dict[str, Any]]:
    """One dict of arguments for every run of a test; none when it is marked to be skipped."""
    runs: list[dict[str, Any]] = [{}]
    for name, arguments, keywords in [*getattr(kind, _MARKS, ()), *getattr(function, _MARKS, ())]:
        if name == "skip" or (name == "skipif" and arguments and arguments[0]):
            return []
        if name == "parametrize":
            runs = [run | values for values in _sets(*arguments, **keywords) for run in runs]
    return runs


def _sets(argnames: Any, argvalues: Iterable[Any], **more: Any) -> list[dict[str, Any]]:
    names = (
        [name.strip() for name in argnames.split(",") if name.strip()]
        if isinstance(argnames, str)
        else argnames
    )
    sets: list[dict[str, Any]] = []
    for values in argvalues:
        if isinstance(values, Parameters):
            values = values.values if len(names) > 1 else values.values[0]
        sets.append(dict(zip(names, values if len(names) > 1 else [values], strict=True)))
    return sets


def filled(
    function: Any, fixtures: dict[str, Any], values: dict[str, Any], stack: ExitStack, instance: Any
) -> dict[str, Any]:
    """The arguments of one run: parameters, and fixtures, which end with `stack`.

    Raises:
        Unsupported: an argument is neither.
    """
    made: dict[str, Any] = {}

    def make(name: str) -> Any:
        if name in values:
            return values[name]
        if name not in fixtures:
            raise Unsupported(f"the fixture {name!r} is not supported")
        if name not in made:
            made[name] = _made(fixtures[name], make, stack, instance)
        return made[name]

    for name, value in fixtures.items():
        if getattr(value, _FIXTURE)[1]:
            make(name)
    return {name: make(name) for name in _wanted(function, instance)}


def _wanted(function: Callable[..., Any], instance: Any) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.default is inspect.Parameter.empty]
    return [name for name in names if not (instance is not None and name == "self")]


def _made(function: Any, make: Callable[[str], Any], stack: ExitStack, instance: Any) -> Any:
    own = [instance] if "self" in inspect.signature(function).parameters else []
    value = function(*own, **{name: make(name) for name in _wanted(function, instance) if name != "self"})
    if not inspect.isgenerator(value):
        return value
    generator = cast("Generator[Any, None, None]", value)
    stack.callback(lambda: next(generator, None))
    return next(generator)


def module() -> ModuleType:
    """The module that tests import as pytest."""
    offered = ModuleType("pytest")
    for name, value in {
        "raises": raises,
        "approx": approx,
        "fixture": fixture,
        "skip": skip,
        "fail": fail,
    }.items():
        setattr(offered, name, value)
    offered.__dict__.update(mark=_Marks(), param=Parameters, warns=warns, main=lambda *arguments: 0)  # pyright: ignore[reportUnknownLambdaType]
    return offered
