"""Runs what a source of tests defines: `check`, unittest cases, or functions and classes in pytest's manner."""

import asyncio
import inspect
import unittest
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from types import FunctionType, ModuleType
from typing import Any, cast

from guerdon_services.code import pytest_subset
from guerdon_services.code.errors import ProgramRaised, Unsupported
from guerdon_services.code.peer import LinkLost


class NoTests(Exception):
    """The source of the tests holds none: nothing was judged."""


def run(module: ModuleType, kind: str, candidate: Any) -> None:
    """Run all tests of the executed module; returns when all passed.

    Raises:
        NoTests: there are none, or all skip themselves.
        Exception: what the first failing test raised.
    """
    check = module.__dict__.get("check")
    if kind == "assert" and isinstance(check, FunctionType):
        _call(check, *[candidate][: len(inspect.signature(check).parameters)])
        return
    own = [
        value
        for value in list(module.__dict__.values())
        if getattr(value, "__module__", "") == module.__name__
    ]
    cases = [value for value in own if isinstance(value, type) and issubclass(value, unittest.TestCase)]
    count = _run_cases(cases) + _run_functions(module, own)
    if kind == "unittest" and count == 0:
        raise NoTests("they define no test case")


def _run_cases(cases: list[type[unittest.TestCase]]) -> int:
    """Run unittest's cases; returns how many ran and did not skip themselves."""
    suite = unittest.TestSuite(map(unittest.defaultTestLoader.loadTestsFromTestCase, cases))
    result = _Result()
    suite.run(result)
    problem = result.problem
    if isinstance(problem, ProgramRaised):
        raise AssertionError(f"{type(problem).__name__}: {problem}")
    if problem:
        raise problem
    if suite.countTestCases() and len(result.skipped) == result.testsRun:
        raise NoTests("every test skips itself")
    if not result.wasSuccessful():
        raise AssertionError("a test passed that should fail")
    return result.testsRun - len(result.skipped)


class _Result(unittest.TestResult):
    """Keeps the first failure as it was raised; what is no failure of a test ends the run."""

    problem: BaseException | None = None

    def addError(self, test: Any, err: Any) -> None:
        self._keep(err[1])

    def addFailure(self, test: Any, err: Any) -> None:
        self._keep(err[1])

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err:
            self._keep(err[1])

    def _keep(self, error: BaseException) -> None:
        if self.problem is None or isinstance(error, (LinkLost, Unsupported)):
            self.problem = error
        self.stop()


def _run_functions(module: ModuleType, own: list[Any]) -> int:
    fixtures = pytest_subset.fixtures_of(vars(module))
    count = 0
    for value in own:
        if isinstance(value, FunctionType) and value.__name__.startswith("test"):
            count += _run_function(value, fixtures, None)
        elif (
            inspect.isclass(value)
            and value.__name__.startswith("Test")
            and not issubclass(value, unittest.TestCase)
        ):
            count += _run_class(value, fixtures)
    if own and count == 0 and any(_is_test(value) for value in own):
        raise NoTests("every test skips itself")
    return count


def _is_test(value: Any) -> bool:
    return isinstance(value, FunctionType) and value.__name__.startswith("test")


def _run_class(kind: type[Any], fixtures: dict[str, Any]) -> int:
    fixtures = fixtures | pytest_subset.fixtures_of(vars(kind))
    count = 0
    with _around(kind, "setup_class", "teardown_class"):
        for name, function in list(vars(kind).items()):
            if name.startswith("test") and callable(function):
                count += _run_function(function, fixtures, kind)
    return count


def _run_function(function: Any, fixtures: dict[str, Any], kind: type[Any] | None) -> int:
    """Run one test with all its parameters; returns how many runs did not skip themselves."""
    count = 0
    for values in pytest_subset.parameters_of(function, kind):
        instance = kind() if kind else None
        with ExitStack() as stack:
            if instance is not None:
                stack.enter_context(_around(instance, "setup_method", "teardown_method"))
            filled = pytest_subset.filled(function, fixtures, values, stack, instance)
            try:
                _call(function, *([instance] if instance is not None else []), **filled)
                count += 1
            except pytest_subset.Skipped:
                pass
    return count


def _call(test: Callable[..., Any], *arguments: Any, **keywords: Any) -> None:
    """Call one test; what a test that is a coroutine does comes to its end, too."""
    outcome = test(*arguments, **keywords)
    if inspect.iscoroutine(outcome):
        asyncio.run(outcome)


@contextmanager
def _around(owner: Any, before: str, after: str) -> Generator[None]:
    _call_hook(owner, before)
    yield
    _call_hook(owner, after)


def _call_hook(owner: Any, name: str) -> None:
    hook = getattr(owner, name, None)
    if hook is not None:
        wanted = len(inspect.signature(hook).parameters)
        cast("Callable[..., Any]", hook)(*[None] * wanted)
