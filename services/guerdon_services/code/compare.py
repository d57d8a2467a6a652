"""Decides whether what a program produced is what was expected. Runs in the supervisor only.

Nothing here calls into the program's objects: outputs are bytes, values come decoded as plain types.
"""

import math
import re
from collections.abc import Sequence
from typing import Any, cast

_NUMERAL = re.compile(rb"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NOT_A_NUMBER = re.compile(rb"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
DEFAULT_ABS = 1e-9
DEFAULT_REL = 1e-6


def text_matches(
    mode: str, output: bytes, expected: bytes, *, rel: float | None = None, abs: float | None = None
) -> bool:
    """True when `output` equals `expected` under a text mode.

    exact: byte for byte. tokens: the same words whatever the white space. lines_rstrip: the same lines but for
    trailing white space and trailing empty lines. unordered_lines: those lines in any order. float: the same
    words, numerals (ASCII) within max(abs, rel * |expected|); nan and infinities match nothing.
    """
    if mode == "exact":
        return output == expected
    if mode == "tokens":
        return output.split() == expected.split()
    if mode == "lines_rstrip":
        return _lines(output) == _lines(expected)
    if mode == "unordered_lines":
        return sorted(_lines(output)) == sorted(_lines(expected))
    return _words_close(
        output.split(),
        expected.split(),
        DEFAULT_REL if rel is None else rel,
        DEFAULT_ABS if abs is None else abs,
    )


def _lines(text: bytes) -> list[bytes]:
    lines = [line.rstrip() for line in text.split(b"\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _words_close(output: Sequence[bytes], expected: Sequence[bytes], rel: float, abs: float) -> bool:
    return len(output) == len(expected) and all(
        _word_close(mine, theirs, rel, abs) for mine, theirs in zip(output, expected, strict=True)
    )


def _word_close(output: bytes, expected: bytes, rel: float, abs: float) -> bool:
    if _NOT_A_NUMBER.fullmatch(output) or _NOT_A_NUMBER.fullmatch(expected):
        return False
    if output == expected:
        return True
    if not (_NUMERAL.fullmatch(output) and _NUMERAL.fullmatch(expected)):
        return False
    return _close(float(output), float(expected), rel, abs)


def _close(output: float, expected: float, rel: float, abs_: float) -> bool:
    if not (math.isfinite(output) and math.isfinite(expected)):
        return False
    return abs(output - expected) <= max(abs_, rel * abs(expected))


def value_matches(
    output: Any,
    expected: Any,
    *,
    tuple_as_list: bool = False,
    rel: float | None = None,
    abs: float | None = None,
) -> bool:
    """True when a decoded value equals an expected JSON value, types included.

    True is not 1 and 1 is not 1.0; a tuple is a list only with `tuple_as_list`. With `rel` or `abs` numbers (never
    booleans) of either type may differ by max(abs, rel * |expected|). nan and infinities match nothing.
    """

    def equal(mine: Any, theirs: Any) -> bool:
        if tuple_as_list and type(mine) is tuple:
            mine = list(cast("tuple[Any, ...]", mine))
        if type(theirs) in (int, float) and type(mine) in (int, float):
            return _numbers_equal(mine, theirs, rel, abs)
        if type(mine) is not type(theirs):
            return False
        if isinstance(theirs, list):
            items = cast("list[Any]", theirs)
            return len(mine) == len(items) and all(map(equal, mine, items))
        if isinstance(theirs, dict):
            fields = cast("dict[str, Any]", theirs)
            return mine.keys() == fields.keys() and all(equal(mine[key], fields[key]) for key in fields)
        return bool(mine == theirs)

    return equal(output, expected)


def _numbers_equal(output: float, expected: float, rel: float | None, abs: float | None) -> bool:
    if type(output) is float and not math.isfinite(output):
        return False
    if type(output) is type(expected) and output == expected:
        return True
    if rel is None and abs is None:
        return False
    try:
        return _close(float(output), float(expected), rel or 0.0, abs or 0.0)
    except OverflowError:  # an integer beyond the range of floats is close to nothing but itself
        return False
