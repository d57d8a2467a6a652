"""Turns a sample into tests ready to run, or says which field is wrong."""

import json
from dataclasses import dataclass
from typing import Any

from guerdon.code_tasks import RowError, code_task
from guerdon.types import CodeTask, CodeTest, Compare, Sample
from guerdon_services.code.languages import named
from guerdon_services.code.languages.language import Language
from guerdon_services.code.supervision import RunLimits
from guerdon_services.runtime.scorer import Unscorable

STDIO_MODES = frozenset({"exact", "tokens", "lines_rstrip", "unordered_lines", "any_of", "float", "checker"})
CALL_MODES = frozenset({"value", "float", "checker"})


@dataclass(frozen=True)
class Test:
    """One test. What the program gets (`stdin` or `arguments`) and what only the supervisor knows."""

    stdin: bytes
    #: JSON text of the list of arguments.
    arguments: str
    outputs: tuple[bytes, ...]
    expected: Any
    #: Source of an assert or unittest test.
    source: str = ""
    #: What the arguments are after the call; None where nobody asks.
    expected_arguments: list[Any] | None = None
    #: False where the value that a call returns does not matter.
    compares_value: bool = True


@dataclass(frozen=True)
class Plan:
    """All that is needed to judge one program, without the program."""

    language: Language
    kind: str
    function: str
    setup: str
    compare: Compare
    limits: RunLimits
    tests: tuple[Test, ...]


@dataclass(frozen=True)
class LimitRange:
    """What a task gets when it asks for nothing, and the most it may ask for."""

    default: RunLimits
    most: RunLimits


def with_task(sample: Sample) -> Sample:
    """The sample with its task: a row of a public data set may stand for it, as `metadata.row`.

    Raises:
        Unscorable: the row has no known shape, or a field is not as it should be.
    """
    row = None if sample.code or not sample.metadata else sample.metadata.get("row")
    if row is None:
        return sample
    if not isinstance(row, dict):
        raise Unscorable("metadata.row: must be an object, a row of a data set")
    try:
        return sample.model_copy(update={"code": code_task(row)})
    except RowError as error:
        raise Unscorable(f"metadata.row: {error}") from None


def plan(sample: Sample, limits: LimitRange) -> Plan:
    """The tests of the sample, checked.

    Raises:
        Unscorable: a field is missing, contradicts another or asks for too much; the message names it.
    """
    task = sample.code
    if task is None:
        raise Unscorable(
            "code: this service needs the tests of the program (or metadata.row, a row of a data set)"
        )
    language = _language(task)
    if not task.tests:
        raise Unscorable("code.tests: empty; without a test there is nothing to judge by")
    if task.kind == "call" and not task.function:
        raise Unscorable("code.function: kind 'call' needs the name of the function")
    compare = _compare(task)
    return Plan(
        language=language,
        kind=task.kind,
        function=task.function or "",
        setup=_text("code.setup", task.setup or "").decode(),
        compare=compare,
        limits=_limits(task, limits),
        tests=tuple(
            _test(f"code.tests[{index}]", test, task.kind, compare.mode)
            for index, test in enumerate(task.tests)
        ),
    )


def _language(task: CodeTask) -> Language:
    try:
        language = named(task.language)
    except KeyError as error:
        raise Unscorable(f"code.language: {error.args[0]}") from None
    if language.find is not None:  # not Python
        if task.kind != "stdio":
            raise Unscorable(f"code.kind: {task.kind!r} is for Python, {language.name} has only 'stdio'")
        if task.setup:
            raise Unscorable(f"code.setup: is Python source, which {language.name} cannot use")
    return language


def _compare(task: CodeTask) -> Compare:
    compare = task.compare or Compare(mode="tokens" if task.kind == "stdio" else "value")
    if task.kind in ("assert", "unittest"):
        return compare  # the tests compare for themselves
    allowed = STDIO_MODES if task.kind == "stdio" else CALL_MODES
    if compare.mode not in allowed:
        raise Unscorable(f"code.compare.mode: {compare.mode!r} does not go with kind {task.kind!r}")
    if compare.mode == "checker" and not compare.checker:
        raise Unscorable("code.compare.checker: mode 'checker' needs its source")
    return compare


def _test(name: str, test: CodeTest, kind: str, mode: str) -> Test:
    if kind == "call":
        return _call_test(name, test, mode)
    if test.expected_args is not None:
        raise Unscorable(f"{name}.expected_args: only for kind 'call', not {kind!r}")
    if kind in ("assert", "unittest"):
        if not test.test:
            raise Unscorable(f"{name}.test: kind {kind!r} needs the source of the test")
        return Test(b"", "", (), None, _text(f"{name}.test", test.test).decode())
    outputs = [test.output] if test.output is not None else []
    if mode == "any_of":
        outputs += test.outputs
    if not outputs and mode != "checker":
        raise Unscorable(f"{name}.output: kind 'stdio' needs the expected output")
    return Test(
        stdin=_text(f"{name}.input", test.input or ""),
        arguments="",
        outputs=tuple(_text(f"{name}.output", output) for output in outputs),
        expected=test.output,
    )


def _call_test(name: str, test: CodeTest, mode: str) -> Test:
    if test.args is None:
        raise Unscorable(f"{name}.args: kind 'call' needs a list of arguments")
    after = test.expected_args
    if after is not None and len(after) != len(test.args):
        raise Unscorable(f"{name}.expected_args: {len(after)} of them, but there are {len(test.args)} args")
    if after is not None and mode == "checker":
        raise Unscorable(f"{name}.expected_args: mode 'checker' is given the returned value alone")
    return Test(
        stdin=b"",
        arguments=json.dumps(test.args),
        outputs=(),
        expected=test.expected,
        expected_arguments=after,
        compares_value=after is None or "expected" in test.model_fields_set,
    )


def _text(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Unscorable(f"{name}: not valid Unicode ({error.reason})") from None


def _limits(task: CodeTask, limits: LimitRange) -> RunLimits:
    asked = task.limits
    if asked is None:
        return limits.default
    default, most = limits.default, limits.most
    # Processor time decides; a caller who names only one of the two times means it for both.
    cpu_s = asked.cpu_s or asked.wall_s or default.cpu_s
    wall_s = asked.wall_s or max(default.wall_s, 2 * cpu_s)
    chosen = RunLimits(
        cpu_s=cpu_s,
        wall_s=wall_s,
        memory_mb=asked.memory_mb or default.memory_mb,
        output_bytes=asked.output_kb * 1024 if asked.output_kb else default.output_bytes,
    )
    for field, wanted, ceiling in (
        ("cpu_s", chosen.cpu_s, most.cpu_s),
        ("wall_s", chosen.wall_s, most.wall_s),
        ("memory_mb", chosen.memory_mb, most.memory_mb),
        ("output_kb", chosen.output_bytes / 1024, most.output_bytes / 1024),
    ):
        if wanted > ceiling:
            raise Unscorable(f"code.limits.{field}: {wanted:g} is over this service's limit of {ceiling:g}")
    return chosen
