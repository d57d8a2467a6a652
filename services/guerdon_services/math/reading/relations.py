"""Equations and inequalities, and the values and intervals that many of them are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from guerdon_services.math.notation.brackets import split_with
from guerdon_services.math.notation.denials import is_denial
from guerdon_services.math.notation.lexer import Token
from guerdon_services.math.notation.tree import symbols
from guerdon_services.math.reading.leaves import both_signs, words
from guerdon_services.math.reading.shapes import (
    ABOVE_ALL,
    BELOW_ALL,
    REALS,
    Labelled,
    Many,
    Quantity,
    Relation,
    Shape,
    Without,
    canonical,
    interval,
)

if TYPE_CHECKING:
    from guerdon_services.math.reading.reader import Reader

SIGNS = frozenset({"=", "<", ">", r"\leq", r"\geq", r"\neq", r"\approx", r"\in", r"\notin", r"\equiv"})
MIRRORED = {"<": ">", ">": "<", r"\leq": r"\geq", r"\geq": r"\leq", "=": "=", r"\neq": r"\neq"}
_UP, _DOWN = frozenset({"<", r"\leq"}), frozenset({">", r"\geq"})
_MAX_LABEL = 60
_LABEL = re.compile(
    r"(?:\\?[a-zA-Z]+(?:\s?[a-zA-Z])*)(?:_(?:\{[^{}]*\}|\w)|'|\^\{-1\})*\s*(?:\((?P<arguments>[\w\s,\\]*)\))?|\|(?:[A-Z]{1,3}|z)\|"
    r"|\([a-zA-Z]\w*(?:\s*,\s*[a-zA-Z]\w*)*\)|[A-Z](?:\w|_\{\w+\})*\s*:\s*[A-Z](?:\w|_\{\w+\})*"
    r"|\\frac\{[A-Z]+\}\{[A-Z]+\}|\\frac\{d\w?\}\{d\w\}|[PE]\s*\([^()]{1,40}\)"
    r"|\\angle\s*\{?\w+\}?|\\bar \w+|[A-Z](?:\s*\\c[au]p\s*[A-Z])+|\\lim_\{[^{}]*\}.{1,20}"
)
_CONSTANT = re.compile(r"\\(?:pi|infty|emptyset)|[ei]")


def related(reader: Reader, tokens: list[Token], depth: int) -> Shape | None:
    """The relation, labelled value or interval that the tokens are; None when there is no sign between them."""
    parts, signs = split_with(tokens, SIGNS)
    if not signs or not all(parts[1:]):
        return None
    if signs == ["="] and parts[0] and any(token.text in (r"\pm", r"\mp") for token in tokens):
        # 3x \pm 4y = 0 is two equations.
        return Many("list", tuple(reader.read(each, depth + 1) for each in both_signs(tokens)))
    if not parts[0]:
        if len(signs) == 1 and signs[0] in ("=", r"\approx", r"\in"):
            return reader.read(parts[1], depth + 1)
        if len(signs) == 1:
            return half_line(reader.read(parts[1], depth + 1), signs[0], "")
        parts, signs = parts[1:], signs[1:]
    return _related(reader, parts, signs, depth)


def _other_integers(one: list[Token], other: list[Token]) -> bool:
    """7 \\approx 8: two integers are not about the same."""
    whole = len(one) == len(other) == 1 and one[0].text.isdigit() and other[0].text.isdigit()
    return whole and one[0].text != other[0].text


def _related(reader: Reader, parts: list[list[Token]], signs: list[str], depth: int) -> Shape | None:
    if r"\approx" in signs:
        cut = signs.index(r"\approx")
        if cut == 0 and _other_integers(parts[0], parts[1]):
            return None
        if cut == 0:
            named = is_label(canonical(parts[0]))
            return _labelled(reader, parts[:2], ["="], depth) if named else reader.read(parts[0], depth + 1)
        return _related(reader, parts[: cut + 1], signs[:cut], depth)
    if signs == [r"\in"] and is_label(canonical(parts[0])):
        return reader.read(parts[1], depth + 1)
    if set(signs) == {"="}:
        if all(is_label(canonical(part)) for part in parts[:-1]):
            return _labelled(reader, parts, signs, depth)
        if len(parts) == 2 and is_label(canonical(parts[1])) and not is_label(canonical(parts[0])):
            return _labelled(reader, parts[::-1], signs, depth)
    return _interval(reader, parts, signs, depth) or _relation(reader, parts, signs, depth)


def _relation(reader: Reader, parts: list[list[Token]], signs: list[str], depth: int) -> Relation:
    # not = 12 is no product of n, o and t.
    read = [words(part) if _denies(part) else reader.read(part, depth + 1) for part in parts]
    return Relation(tuple(read), tuple(signs))


def _denies(part: list[Token]) -> bool:
    return any(len(token.text) > 1 and token.kind in ("word", "text") for token in part) and is_denial(
        canonical(part)
    )


def _labelled(reader: Reader, parts: list[list[Token]], signs: list[str], depth: int) -> Shape:
    name = canonical(parts[0])
    found = _LABEL.fullmatch(name)
    arguments = found.group("arguments") if found else None
    return Labelled(
        label=label_key(name),
        arguments=tuple(argument.strip() for argument in (arguments or "").split(",") if argument.strip()),
        value=reader.read(parts[-1], depth + 1),
        relation=_relation(reader, parts, signs, depth),
    )


def label_key(label: str) -> str:
    """What two spellings of one label share."""
    return re.sub(r"\\text|[\s{}]", "", label)


def is_label(text: str) -> bool:
    """Whether a text is a name that a value can be given: a variable, f(x), |AB|, (x, y)."""
    text = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", text).strip()
    if len(text) > _MAX_LABEL or _CONSTANT.fullmatch(text):
        return False
    return _LABEL.fullmatch(text) is not None and not is_denial(text)


def _interval(reader: Reader, parts: list[list[Token]], signs: list[str], depth: int) -> Shape | None:
    """`a < x <= b`, `x >= a` or `x != a` as a set of numbers."""
    named = [is_label(canonical(part)) for part in parts]
    if len(parts) == 2 and named == [False, True] and signs[0] in MIRRORED:
        parts, signs, named = parts[::-1], [MIRRORED[signs[0]]], [True, False]
    if len(parts) == 2 and named == [True, False]:
        return half_line(reader.read(parts[1], depth + 1), signs[0], canonical(parts[0]))
    if len(parts) != 3 or named != [False, True, False]:
        return None
    if set(signs) <= _DOWN:
        parts, signs = parts[::-1], [MIRRORED[signs[1]], MIRRORED[signs[0]]]
    if not set(signs) <= _UP:
        return None
    low, high, name = reader.read(parts[0], depth + 1), reader.read(parts[2], depth + 1), canonical(parts[1])
    if _contains(low, name) or _contains(high, name):
        return None
    return interval("(" if signs[0] == "<" else "[", low, high, ")" if signs[1] == "<" else "]", name)


def _contains(end: Shape, name: str) -> bool:
    """Whether the end of an interval is not one: x^2 < x."""
    return isinstance(end, Quantity) and name in symbols(end.node)


def half_line(value: Shape, sign: str, name: str) -> Shape | None:
    """The numbers that have this sign to a value, said of `name`; None when there is no such set."""
    if _contains(value, name):
        return None
    if sign == r"\neq":
        return Without(REALS, Many("set", (value,)), name)
    if sign in _UP:
        return interval("(", BELOW_ALL, value, ")" if sign == "<" else "]", name)
    if sign in _DOWN:
        return interval("(" if sign == ">" else "[", value, ABOVE_ALL, ")", name)
    return None
