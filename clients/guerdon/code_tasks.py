"""Rows of public code data sets as tasks for the `code` service.

    from guerdon.code_tasks import code_task
    Sample(response=response, code=code_task(row))

The shape is told by the row's fields: HumanEval, HumanEval+, LeetCodeDataset (`test`, `entry_point`), KodCode and other
sources of tests (`test`), MBPP and MBPP+ (`test_list`), APPS and TACO (`input_output`), LiveCodeBench
(`public_test_cases`), Codeforces (`official_tests`), verl, PRIME and DeepCoder ground truths (`inputs`, `outputs`;
`tests`; `reward_model.ground_truth`), and class designs (`operations`, `arguments`, `expected`).
"""

import ast
import base64
import binascii
import json
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any, cast

from pydantic import ValidationError

from guerdon.types import CodeTask, CodeTest, Compare, Limits

Row = Mapping[str, Any]

#: LiveCodeBench's private tests are compressed: what they may grow to.
MAX_DECODED_BYTES = 1 << 30
#: What data sets of function calls mean by equal: 2 is 2.0 (but True is not 1), a tuple is a list.
_VALUES = Compare(mode="value", tuple_as_list=True, abs=0.0)
_TOKENS = Compare(mode="tokens")


class RowError(ValueError):
    """The row has no shape that is known, or a field that does not hold what it should; the message names it."""


def code_task(row: Row | str, *, challenge: bool = False) -> CodeTask:
    """The task of one row; `row` may also be the JSON text of a ground truth.

    Tests keep their order. `challenge` adds MBPP's `challenge_test_list`.

    Raises:
        RowError: the row has no known shape, or several, or a field is not as it should be.
    """
    if isinstance(row, str):
        row = _object("row", _json("row", row))
    found = [name for name, shape in _SHAPES.items() if all(row.get(field) is not None for field in shape[0])]
    if "test_list" in found and "test" in found:
        found.remove("test_list")  # MBPP+: the source holds the list's tests and more
    if len(found) != 1:
        known = ", ".join(" and ".join(fields) for fields, _ in _SHAPES.values())
        problem = f"fields of several shapes: {', '.join(found)}" if found else f"none of {known}"
        raise RowError(f"row: {problem}; it has {', '.join(sorted(map(str, row))) or 'no fields'}")
    try:
        return _mbpp(row, challenge) if found == ["test_list"] else _SHAPES[found[0]][1](row)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise RowError(f"{found[0]}: {where}: {first['msg']}") from None


def _source(row: Row) -> CodeTask:
    """One source of tests: with `check(candidate)`, or unittest cases, or functions in pytest's manner."""
    test = _text("test", row["test"])
    entry = row.get("entry_point")
    if entry is None or "def check(" not in test:
        kind = "unittest" if "TestCase" in test else "assert"
        return CodeTask(kind=kind, tests=[CodeTest(test=test)])
    function = _text("entry_point", entry).rpartition(".")[2]
    prompt = _text("prompt", row.get("prompt") or "")
    return CodeTask(
        kind="assert",
        function=function,
        tests=[CodeTest(test=test)],
        setup=_without_function(prompt, function) or None,
    )


def _without_function(prompt: str, name: str) -> str:
    """What a prompt brings before the function to write: imports and helpers, which its tests may use."""
    lines = prompt.splitlines(keepends=True)
    try:
        tree = ast.parse(prompt)
    except SyntaxError:
        start = next(
            (index for index, line in enumerate(lines) if line.startswith(f"def {name}(")), len(lines)
        )
        source = "".join(lines[:start])
        return source if _parses(source) else ""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            return "".join(lines[: first - 1] + lines[node.end_lineno :]).strip()
    return prompt


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def _mbpp(row: Row, challenge: bool = False) -> CodeTask:
    """One assertion per test. What they need goes with each, for it may need the program's own types."""
    asserts = _list("test_list", row["test_list"])
    if challenge:
        asserts = asserts + _list("challenge_test_list", row.get("challenge_test_list") or [])
    needs = [_text("test_imports", line) for line in _list("test_imports", row.get("test_imports") or [])]
    needs += [_text("test_setup_code", row.get("test_setup_code") or "")]
    setup = "".join(f"{part}\n" for part in needs if part)
    tests = [CodeTest(test=setup + _text(f"test_list[{index}]", test)) for index, test in enumerate(asserts)]
    return CodeTask(kind="assert", tests=_some("test_list", tests))


def _input_output(row: Row) -> CodeTask:
    field = "input_output"
    content = _object(field, _maybe_json(field, row[field]))
    return _inputs_outputs(content | ({"fn_name": row["fn_name"]} if row.get("fn_name") else {}), f"{field}.")


def _inputs_outputs(content: Row, prefix: str = "") -> CodeTask:
    """Parallel lists of inputs and outputs; with `fn_name` they are arguments and results."""
    if content.get("assert_case"):
        return _mbpp({"test_list": content["assert_case"]})
    inputs = _list(f"{prefix}inputs", content.get("inputs"))
    outputs = _list(f"{prefix}outputs", content.get("outputs"))
    if len(inputs) != len(outputs):
        raise RowError(f"{prefix}outputs: {len(outputs)}, but there are {len(inputs)} inputs")
    _some(f"{prefix}inputs", inputs)
    function = content.get("fn_name")
    if not function:
        tests = [
            CodeTest(
                input=_lines(f"{prefix}inputs[{index}]", given),
                output=_lines(f"{prefix}outputs[{index}]", output),
            )
            for index, (given, output) in enumerate(zip(inputs, outputs, strict=True))
        ]
        return CodeTask(kind="stdio", tests=tests, compare=_TOKENS)
    arguments = [_arguments(f"{prefix}inputs[{index}]", given) for index, given in enumerate(inputs)]
    results = [
        _result(f"{prefix}outputs[{index}]", output, given)
        for index, (given, output) in enumerate(zip(inputs, outputs, strict=True))
    ]
    if all(isinstance(result, list) and len(cast("list[Any]", result)) == 1 for result in results):
        results = [result[0] for result in results]  # APPS wraps each result in a list
    return _calls(_text(f"{prefix}fn_name", function), list(zip(arguments, results, strict=True)))


def _calls(function: str, cases: list[tuple[list[Any], Any]]) -> CodeTask:
    tests = [CodeTest(args=arguments, expected=expected) for arguments, expected in cases]
    return CodeTask(kind="call", function=function.rpartition(".")[2], tests=tests, compare=_VALUES)


def _live_code_bench(row: Row) -> CodeTask:
    """Public tests, then private ones; `metadata` names the function of a functional problem."""
    cases = _list("public_test_cases", _maybe_json("public_test_cases", row["public_test_cases"]))
    private = row.get("private_test_cases")
    if private:
        cases = cases + _list("private_test_cases", _private_tests(private))
    metadata = _object("metadata", _maybe_json("metadata", row.get("metadata") or {}))
    return _cases("public_test_cases", cases, metadata.get("func_name"))


def _private_tests(value: Any) -> Any:
    if not isinstance(value, str) or value.lstrip().startswith("["):
        return _maybe_json("private_test_cases", value)
    try:
        stream = zlib.decompressobj()
        pickled = stream.decompress(base64.b64decode(value, validate=True), MAX_DECODED_BYTES)
        text = pickled_text(pickled) if stream.eof else None
    except (binascii.Error, zlib.error, ValueError) as error:
        raise RowError(f"private_test_cases: not base64 of zlib of a pickled text: {error}") from None
    if text is None:
        raise RowError(f"private_test_cases: cut short, or over {MAX_DECODED_BYTES} bytes")
    return _json("private_test_cases", text)


def pickled_text(data: bytes) -> str:
    """The text that a pickle holds, if it holds one text and nothing else. Nothing is ever unpickled.

    Raises:
        ValueError: it is not, or holds, anything else.
    """
    lengths = {b"\x8c": "<B", b"X": "<I", b"\x8d": "<Q"}
    skipped = {b"\x80": 1, b"\x95": 8, b"\x94": 0, b"q": 1, b"r": 4}
    text: bytes | None = None
    position = 0
    while position < len(data):
        code = data[position : position + 1]
        position += 1
        if code in lengths and text is None:
            size = struct.calcsize(lengths[code])
            if len(data) - position < size:
                break
            [length] = struct.unpack_from(lengths[code], data, position)
            position += size
            text = data[position : position + length]
            position += length
            if len(text) != length:
                break
        elif code == b"." and text is not None and position == len(data):
            return text.decode("utf-8")
        elif code in skipped:
            position += skipped[code]
        else:
            raise ValueError(f"a pickle with opcode {code!r}, which is no plain text")
    raise ValueError("a pickle that is cut short")


def _cases(field: str, cases: list[Any], function: Any) -> CodeTask:
    """A list of `{input, output}`; with a function the lines of each input are its arguments, as JSON."""
    stdio: list[CodeTest] = []
    calls: list[tuple[list[Any], Any]] = []
    for index, item in enumerate(_some(field, cases)):
        case = _object(f"{field}[{index}]", item)
        name = f"{field}[{index}]"
        if case.get("testtype", "functional" if function else "stdin") == "functional":
            function = function or _object(f"{name}.metadata", case.get("metadata") or {}).get("func_name")
            calls.append(
                (
                    _arguments(f"{name}.input", case.get("input")),
                    _result(f"{name}.output", case.get("output"), case.get("input")),
                )
            )
        else:
            given, output = (
                _lines(f"{name}.input", case.get("input")),
                _lines(f"{name}.output", case.get("output")),
            )
            stdio.append(CodeTest(input=given, output=output))
    if stdio and calls:
        raise RowError(f"{field}: some tests are functional and some are not")
    if not calls:
        return CodeTask(kind="stdio", tests=stdio, compare=_TOKENS)
    if not function:
        raise RowError("metadata.func_name: missing, but the tests are functional")
    return _calls(_text("metadata.func_name", function), calls)


def _tests(row: Row) -> CodeTask:
    tests = _maybe_json("tests", row["tests"])
    if isinstance(tests, dict):
        return _inputs_outputs(cast("dict[str, Any]", tests), "tests.")
    metadata = _object("metadata", _maybe_json("metadata", row.get("metadata") or {}))
    return _cases("tests", _list("tests", tests), row.get("fn_name") or metadata.get("func_name"))


def _ground_truth(row: Row) -> CodeTask:
    model = _object("reward_model", row["reward_model"])
    return code_task(
        _object("reward_model.ground_truth", _maybe_json("reward_model", model.get("ground_truth")))
    )


def _codeforces(row: Row) -> CodeTask:
    """`time_limit` in seconds of processor time, `memory_limit` in MB; `generated_checker` where there is one."""
    if row.get("input_mode", "stdio") not in ("stdio", None):
        raise RowError(f"input_mode: {row['input_mode']!r}, only 'stdio' is supported")
    if row.get("interactive_format"):
        raise RowError("interactive_format: interactive problems are not supported")
    task = _cases("official_tests", _list("official_tests", row["official_tests"]), None)
    limits = Limits(
        cpu_s=None if row.get("time_limit") is None else float(row["time_limit"]),
        memory_mb=None if row.get("memory_limit") is None else int(row["memory_limit"]),
    )
    checker = row.get("generated_checker")
    if checker:
        source = _CHECKER.format(source=_text("generated_checker", checker))
        task = task.model_copy(update={"compare": Compare(mode="checker", checker=source)})
    return task.model_copy(update={"limits": limits})


#: A checker that reads three files, named on its command line, and prints its points, as `check`.
_CHECKER = """
import contextlib, io, sys

SOURCE = {source!r}

def check(input, output, expected):
    files = {{"input.txt": input, "correct_output.txt": expected, "solution_output.txt": output}}
    for name, text in files.items():
        with open(name, "w") as file:
            file.write(text)
    sys.argv = ["checker.py", *files]
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(SOURCE, "checker.py", "exec"), {{"__name__": "__main__"}})
    except SystemExit:
        pass
    words = printed.getvalue().split()
    return bool(words) and float(words[0]) > 0
"""


_SAME = """
def same(got, expected):
    if type(expected) in (int, float):
        return type(got) in (int, float) and abs(got - expected) <= 1e-6 * max(1, abs(expected))
    return type(got) is type(expected) and got == expected
"""


def _design(row: Row) -> CodeTask:
    """LeetCode's class designs: operations on one object, the first of which makes it."""
    operations = [_text("operations", name) for name in _list("operations", row["operations"])]
    arguments = _list("arguments", row["arguments"])
    expected = _list("expected", row["expected"])
    if not len(operations) == len(arguments) == len(expected) or len(operations) < 2:
        raise RowError("operations: as many as arguments and expected are needed, and two at least")
    if not all(name.isidentifier() for name in operations):
        raise RowError("operations: not all are names")
    lines = [_SAME, f"subject = {operations[0]}(*{_list('arguments[0]', arguments[0])!r})"]
    for index, name in enumerate(operations[1:], 1):
        given = _list(f"arguments[{index}]", arguments[index])
        lines.append(f"got = subject.{name}(*{given!r})")
        lines.append(f"assert same(got, {expected[index]!r}), {name!r}")
    return CodeTask(kind="assert", tests=[CodeTest(test="\n".join(lines))])


#: By name: the fields that tell the shape, and what reads it.
_SHAPES: dict[str, tuple[tuple[str, ...], Callable[[Row], CodeTask]]] = {
    "test": (("test",), _source),
    "test_list": (("test_list",), _mbpp),
    "input_output": (("input_output",), _input_output),
    "public_test_cases": (("public_test_cases",), _live_code_bench),
    "official_tests": (("official_tests",), _codeforces),
    "inputs": (("inputs", "outputs"), _inputs_outputs),
    "tests": (("tests",), _tests),
    "reward_model": (("reward_model",), _ground_truth),
    "operations": (("operations", "arguments", "expected"), _design),
    "assert_case": (("assert_case",), _inputs_outputs),
}


def _arguments(field: str, given: Any) -> list[Any]:
    """A list as it is; text as one JSON value per line."""
    if isinstance(given, str):
        return [_json(field, line) for line in given.split("\n") if line.strip()]
    return _list(field, given)


def _result(field: str, output: Any, given: Any) -> Any:
    """The result as it is, or from JSON where its arguments are text too."""
    return _json(field, output) if isinstance(output, str) and isinstance(given, str) else output


def _lines(field: str, value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(_text(field, line) for line in cast("list[Any]", value))
    return _text(field, value)


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise RowError(f"{field}: must be text, not {type(value).__name__}")
    return value


def _list(field: str, value: Any) -> list[Any]:
    if hasattr(value, "tolist"):  # a column read by pandas
        value = value.tolist()
    if not isinstance(value, (list, tuple)):
        raise RowError(f"{field}: must be a list, not {type(value).__name__}")
    return list(cast("list[Any]", value))


def _some(field: str, values: list[Any]) -> list[Any]:
    if not values:
        raise RowError(f"{field}: empty; without a test there is nothing to judge by")
    return values


def _object(field: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise RowError(f"{field}: must be an object, not {type(value).__name__}")
    return dict(cast("Mapping[str, Any]", value))


def _json(field: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise RowError(f"{field}: not JSON: {error}") from None


def _maybe_json(field: str, value: Any) -> Any:
    return _json(field, value) if isinstance(value, str) else value
