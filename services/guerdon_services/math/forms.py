"""Reads the outer shape of an answer: lists, tuples, sets, intervals, relations, labels, matrices.

Only brackets, separators and relation signs are understood here; what is between them stays text, a `Scalar`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

_MAX_ITEMS = 500
_MAX_DEPTH = 12
_MAX_SIGNS = 4

_OPENERS = {"(": "(", "[": "[", "{": "{", "\\{": "{"}
_TOKEN = re.compile(r"\\[{}]|\\[a-zA-Z]+|\\.|[()\[\]{}]|(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])|.", re.DOTALL)
_BRACKET = re.compile(r"\\\\|[()\[\]{}]")
_RELATIONS = ("\\leq", "\\geq", "\\neq", "\\approx", "\\in", "\\equiv", "<", ">", "=")
_LABEL = re.compile(
    r"\|?(?:\\?[a-zA-Z]+(?:\s?[a-zA-Z])*)(?:_(?:\{[^{}]*\}|\w)|'|\^\{?\\prime\}?)*\s*(?:\([^()=<>]*\))?\|?"
    r"|\([a-zA-Z]\w*(?:\s*,\s*[a-zA-Z]\w*)*\)|[A-Z](?:\w|_\{\w+\})*\s*:\s*[A-Z](?:\w|_\{\w+\})*|\\frac\{[A-Z]+\}\{[A-Z]+\}"
)
_CONSTANT = re.compile(r"\\(?:pi|infty|emptyset)\s*|[ei]\s*")
_REALS = re.compile(r"\\mathbb\s*(?:\{\s*R\s*\}|R)")
_TAIL = re.compile(
    r"\s*,?\s*(?:\\text\s*\{\s*)?\b(?:for all|for any|for every|for each|where)\b.*$", re.DOTALL
)
_MATRIX = re.compile(r"\\begin\{([bpvBV]?)matrix\}(.*)\\end\{\1matrix\}", re.DOTALL)
_BUILDER = re.compile(r"[a-zA-Z]\w*\s*(?:\\in\s*(?:\\mathbb\{?\w\}?|\w)\s*)?[|:](?P<condition>.+)", re.DOTALL)


@dataclass(frozen=True)
class Scalar:
    """An expression without outer structure."""

    text: str


@dataclass(frozen=True)
class Group:
    """Values between brackets; an interval when it has two. `left` and `right` are "" for a bare list or a union."""

    left: Literal["", "(", "[", "{"]
    right: Literal["", ")", "]", "}"]
    items: "tuple[Form, ...]"


@dataclass(frozen=True)
class Relation:
    """`parts[0] signs[0] parts[1] signs[1] …`."""

    parts: tuple[str, ...]
    signs: tuple[str, ...]


@dataclass(frozen=True)
class Labelled:
    """A value with the name that it was given: `x = 3`, `f(x) = x + 1`."""

    label: str
    value: "Form"
    relation: Relation


@dataclass(frozen=True)
class Matrix:
    """Rows of cells."""

    rows: "tuple[tuple[Form, ...], ...]"
    text: str


Form = Scalar | Group | Relation | Labelled | Matrix


class TooComplex(ValueError):
    """More items or levels than an answer may have."""


def read(text: str, depth: int = 0) -> Form:
    """The outer shape of a normalised text.

    Raises:
        TooComplex: it has too many items or levels.
    """
    if depth > _MAX_DEPTH:
        raise TooComplex(f"more than {_MAX_DEPTH} levels of brackets")
    text = text.strip()
    items = split_list(text)
    if len(items) > 1:
        return Group("", "", tuple(_list_item(item, depth + 1) for item in items))
    text = _TAIL.sub("", items[0] if items else text).strip() or text
    matrix = _MATRIX.fullmatch(text)
    if matrix:
        return _matrix(text, matrix.group(2), depth)
    if _REALS.fullmatch(text):
        return Group("(", ")", (Scalar("-\\infty"), Scalar("\\infty")))
    relation = relation_in(text)
    if relation:
        return _read_relation(relation, depth)
    pieces = _split(text, ("\\cup",))
    if len(pieces) > 1:
        return Group("", "", tuple(read(piece, depth + 1) for piece in pieces))
    return _bracketed(text, depth) or _signed(text)


def _list_item(text: str, depth: int) -> Form:
    """An item of a list; one that is itself a list ("p=5, q=2; p=7, q=2") is a tuple."""
    form = read(text, depth)
    if isinstance(form, Group) and form.left == "" and len(split_list(text)) > 1:
        return Group("(", ")", form.items)
    return form


def split_list(text: str) -> list[str]:
    """The items of a list without brackets: split at `;` if there is one, else at commas, "and" and "or"."""
    items = _split(text, (";",))
    if len(items) == 1:
        items = _split(text, (",", "and", "or"))
    return items


def _split(text: str, separators: Sequence[str], *, thousands: bool = True) -> list[str]:
    """Parts between separators outside all brackets, empty ones dropped."""
    parts: list[str] = []
    depth = start = 0
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token in ("(", "[", "{", "\\{", "\\begin"):
            depth += 1
        elif token in (")", "]", "}", "\\}", "\\end"):
            depth -= 1
        elif (
            depth == 0
            and token in separators
            and not (thousands and _is_thousands(text, match.start(), token))
        ):
            parts.append(text[start : match.start()].strip())
            start = match.end()
    parts.append(text[start:].strip())
    if len(parts) > _MAX_ITEMS:
        raise TooComplex(f"{len(parts)} items")
    return [part for part in parts if part]


def _is_thousands(text: str, index: int, token: str) -> bool:
    """Whether a comma stands in a number such as 1,234,567 and not between the values of a list."""
    if token != ",":
        return False
    before = re.search(r"[\d,]*$", text[max(0, index - 40) : index])
    after = re.match(r"[\d,]*", text[index + 1 : index + 41])
    run = f"{before.group() if before else ''},{after.group() if after else ''}"
    return re.fullmatch(r"\d{1,3}(?:,\d{3})+", run) is not None


def relation_in(text: str) -> Relation | None:
    """The relation that a text is at its outermost level, if it is one."""
    parts: list[str] = []
    signs: list[str] = []
    depth = start = 0
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token in ("(", "[", "{", "\\{", "\\begin"):
            depth += 1
        elif token in (")", "]", "}", "\\}", "\\end"):
            depth -= 1
        elif depth == 0 and token in _RELATIONS:
            parts.append(text[start : match.start()].strip())
            signs.append(token)
            start = match.end()
    parts.append(text[start:].strip())
    if not signs or len(signs) > _MAX_ITEMS or not all(parts[1:]):
        return None
    if not parts[0]:
        return Relation(tuple(parts[1:]), tuple(signs[1:])) if len(parts) > 2 else None
    return Relation(tuple(parts), tuple(signs))


def _read_relation(relation: Relation, depth: int) -> Form:
    parts, signs = relation.parts, relation.signs
    if "\\approx" in signs:
        cut = signs.index("\\approx")
        if cut == 0 and is_label(parts[0]):
            return Labelled(parts[0], read(parts[1], depth + 1), relation)
        shorter = Relation(parts[: cut + 1], signs[:cut])
        return _read_relation(shorter, depth) if shorter.signs else read(parts[0], depth + 1)
    if signs == ("\\in",):
        return read(parts[1], depth + 1)
    if set(signs) == {"="} and all(is_label(part) for part in parts[:-1]):
        return Labelled(parts[0], read(parts[-1], depth + 1), relation)
    return _interval(relation) or relation


def is_label(text: str) -> bool:
    """Whether a text is a name that a value can be given: a variable, f(x), |AB|, (x, y)."""
    return len(text) <= 60 and _LABEL.fullmatch(text) is not None and not _CONSTANT.fullmatch(text)


def _interval(relation: Relation) -> Form | None:
    """`a < x <= b`, `x >= a` or `x != a` as intervals."""
    parts, signs = relation.parts, relation.signs
    if len(parts) == 2 and is_label(parts[1]) and not is_label(parts[0]):
        return _interval(Relation(parts[::-1], tuple(_mirror(sign) for sign in signs)))
    if len(parts) == 2 and is_label(parts[0]) and not is_label(parts[1]):
        value = Scalar(parts[1])
        low, high = Scalar("-\\infty"), Scalar("\\infty")
        if signs[0] == "\\neq":
            return Group("", "", (Group("(", ")", (low, value)), Group("(", ")", (value, high))))
        if signs[0] in ("<", "\\leq"):
            return Group("(", ")" if signs[0] == "<" else "]", (low, value))
        if signs[0] in (">", "\\geq"):
            return Group("(" if signs[0] == ">" else "[", ")", (value, high))
    if len(parts) == 3 and is_label(parts[1]) and not is_label(parts[0]) and not is_label(parts[2]):
        if set(signs) <= {">", "\\geq"}:
            parts, signs = parts[::-1], (_mirror(signs[1]), _mirror(signs[0]))
        if set(signs) <= {"<", "\\leq"}:
            left, right = "(" if signs[0] == "<" else "[", ")" if signs[1] == "<" else "]"
            return Group(left, right, (Scalar(parts[0]), Scalar(parts[2])))
    return None


def _mirror(sign: str) -> str:
    return {"<": ">", ">": "<", "\\leq": "\\geq", "\\geq": "\\leq"}.get(sign, sign)


def _bracketed(text: str, depth: int) -> Form | None:
    """A text that one pair of brackets encloses."""
    tokens = list(_TOKEN.finditer(text))
    if len(tokens) < 2 or tokens[0].group() not in _OPENERS:
        return None
    level = 0
    for token in tokens:
        if token.group() in ("(", "[", "{", "\\{"):
            level += 1
        elif token.group() in (")", "]", "}", "\\}"):
            level -= 1
            if level == 0 and token is not tokens[-1]:
                return None
    if level != 0:
        return None
    left, right = tokens[0].group().removeprefix("\\"), tokens[-1].group().removeprefix("\\")
    inside = text[tokens[0].end() : tokens[-1].start()].strip()
    builder = _BUILDER.fullmatch(inside) if left == "{" else None
    if builder:
        return read(builder.group("condition"), depth + 1)
    items = _split(inside, (",", ";"), thousands=False)
    if not items:
        return None
    if len(items) == 1 and (left, right) in (("(", ")"), ("[", "]")):
        return read(inside, depth + 1)
    return _signed_group(left, right, [read(item, depth + 1) for item in items])


def _signed_group(left: str, right: str, items: list[Form]) -> Form:
    """A tuple in which an item has two signs stands for all combinations."""
    if left == "{":
        flat: list[Form] = []
        for item in items:
            flat.extend(item.items if isinstance(item, Group) and item.left == "" else (item,))
        return Group("{", "}", tuple(flat))
    choices = [item.items if isinstance(item, Group) and item.left == "" else (item,) for item in items]
    if sum(len(choice) > 1 for choice in choices) > _MAX_SIGNS:
        raise TooComplex("too many double signs")
    tuples = tuple(Group(left, right, combination) for combination in product(*choices))  # pyright: ignore[reportArgumentType]
    return tuples[0] if len(tuples) == 1 else Group("", "", tuples)


def _signed(text: str) -> Form:
    """`a \\pm b` as its two values."""
    if "\\pm" not in text and "\\mp" not in text:
        return Scalar(text)
    upper = text.replace("\\pm", "+").replace("\\mp", "-").strip().removeprefix("+").strip()
    lower = text.replace("\\pm", "-").replace("\\mp", "+").strip().removeprefix("+").strip()
    return Group("", "", (Scalar(upper), Scalar(lower)))


def _matrix(text: str, body: str, depth: int) -> Form:
    rows = [row for row in re.split(r"\\\\", body) if row.strip()]
    cells = [[cell.strip() for cell in row.split("&")] for row in rows]
    if sum(len(row) for row in cells) > _MAX_ITEMS:
        raise TooComplex("a matrix of too many cells")
    return Matrix(tuple(tuple(read(cell, depth + 1) for cell in row) for row in cells), text)


def is_balanced(text: str, levels: int) -> bool:
    """Whether the brackets of a text pair up (of whatever kind: [0, 1) does), nested at most so many levels."""
    depth = 0
    for match in _BRACKET.finditer(text):
        if match.group() in "([{":
            depth += 1
        elif match.group() in ")]}":
            depth -= 1
        if not 0 <= depth <= levels:
            return False
    return depth == 0


def flatten(group: Group) -> tuple[Form, ...]:
    """The items of a bare list, with the lists inside it (double signs, unions) taken apart."""
    flat: list[Form] = []
    for item in group.items:
        inner = item.value if isinstance(item, Labelled) else item
        if isinstance(inner, Group) and inner.left in ("", "{") and group.left in ("", "{"):
            flat.extend(flatten(inner))
        else:
            flat.append(item)
    return tuple(flat)
