"""Tokens to shapes: lists, tuples, sets, intervals, relations, labels, matrices, down to single values."""

import re
from itertools import product, takewhile
from typing import Literal

from guerdon_services.math.notation.brackets import CLOSERS, OPENERS, enclosed, pairs, split
from guerdon_services.math.notation.denials import is_denial
from guerdon_services.math.notation.expression import READINGS, Reading
from guerdon_services.math.notation.lexer import Token, Unreadable
from guerdon_services.math.notation.numerals import number
from guerdon_services.math.reading import matrices
from guerdon_services.math.reading.compound import compound
from guerdon_services.math.reading.domains import (
    QUANTIFIERS,
    excepted,
    statement,
    without_domain,
    without_domains,
)
from guerdon_services.math.reading.leaves import leaf, words
from guerdon_services.math.reading.named import NUMBER_SETS
from guerdon_services.math.reading.relations import SIGNS, related
from guerdon_services.math.reading.shapes import (
    REALS,
    ZERO_UP,
    Labelled,
    Many,
    Ordered,
    Quantity,
    Restricted,
    Shape,
    Without,
    Words,
    canonical,
    is_listed,
)

_MAX_DEPTH = 12
#: Items of a tuple that may have two signs.
_MAX_SIGNS = 4

_LISTED = frozenset({",", "and", "or"})
#: Without one of these a text is a single value.
_STRUCTURAL = frozenset(
    {*OPENERS, *CLOSERS, *_LISTED, *SIGNS, ";", r"\cup", r"\setminus", r"\mathbbR", r"\mathbbR+", "end"}
) - {"{", "}"}
_TAIL_WORDS = frozenset(["for all", "for any", "for every", "for each", "for some", "where"])
#: Digits that repeat up to the end of a decimal.
_CYCLE = re.compile(r"(?:([0-8])\1\1+|(\d{2,9}?)\2+)$")
_INTRODUCTION = re.compile(r".*(?:\bis|\bare|:|=)$", re.DOTALL)
_TRAILING = frozenset(
    {
        ".",
        ";",
        ",",
        ":",
        "\\",
        r"\\",
        "*",
        "_",
        '"',
        r"\checkmark",
        r"\blacksquare",
        r"\square",
        r"\Box",
        r"\qed",
    }
)
_LEADING = frozenset({"*", ",", ";", '"', "#"})
_ANSWER_WORDS = frozenset(["the", "final", "answer", "is"])


class Reader:
    """Reads under one `Reading` of what notation leaves open."""

    def __init__(self, reading: Reading = READINGS[0]) -> None:
        self.reading = reading

    def read(self, tokens: list[Token], depth: int = 0) -> Shape:
        """The shape of an answer.

        Raises:
            Unreadable: it has too many items or levels.
        """
        if depth > _MAX_DEPTH:
            raise Unreadable(f"more than {_MAX_DEPTH} levels of brackets")
        if len(tokens) == 1 and tokens[0].kind == "number":
            return Quantity(number(tokens[0].text))
        tokens = unwrapped(tokens)
        if not tokens:
            return Words("", unread=True)
        if tokens[0].text in QUANTIFIERS:
            return Words(statement(tokens))
        if tokens[0].kind == "number" and (joined := compound(tokens)):
            return joined
        if tokens[0].kind in ("text", "word") and (rest := excepted(tokens)):
            removed = self.read(rest, depth + 1)
            return Without(REALS, removed.value if isinstance(removed, Labelled) else removed)
        if _STRUCTURAL.isdisjoint([token.text for token in tokens]):
            return leaf(_without_tail(tokens), self.reading)
        if tokens[-1].text == ")" and (rest := without_domain(tokens)) is not tokens:
            tokens = unwrapped(rest)
        items = _congruences(tokens) or split_list(tokens)
        if len(items) > 1:
            return self._list(items, _conjunction(tokens), depth)
        tokens = _without_tail(items[0] if items else tokens)
        if len(tokens) == 1 and tokens[0].text in (r"\mathbbR", r"\mathbbR+"):
            return REALS if tokens[0].text == r"\mathbbR" else ZERO_UP
        shape = related(self, tokens, depth)
        if shape:
            return shape
        return (
            self._operated(tokens, depth)
            or matrices.read(self, tokens, depth)
            or self._bracketed(tokens, depth)
        )

    def _list(self, items: list[list[Token]], kind: Literal["list", "and", "or"], depth: int) -> Shape:
        """A bare list; domains such as `k \\in \\mathbb{Z}` belong to the other items and are left out."""
        kept = without_domains(items) or items
        if len(kept) == 1:
            return self.read(kept[0], depth + 1)
        return Many(kind, tuple(self._item(item, depth + 1) for item in kept))

    def _item(self, tokens: list[Token], depth: int) -> Shape:
        """An item of a list; one that is itself a list ("p=5, q=2; p=7, q=2") is a tuple."""
        shape = self.read(tokens, depth)
        if is_listed(shape) and len(split_list(tokens)) > 1:
            return Ordered("(", ")", shape.items)
        return shape

    def _operated(self, tokens: list[Token], depth: int) -> Shape | None:
        """A union, or a set without some of its elements."""
        pieces = split(tokens, {r"\cup"})
        if len(pieces) > 1:
            return Many("union", tuple(self.read(piece, depth + 1) for piece in pieces))
        pieces = split(tokens, {r"\setminus"})
        if len(pieces) == 1 and len(tokens) > 4 and tokens[0].text in NUMBER_SETS and tokens[1].text == "-":
            pieces = [tokens[:1], tokens[2:]]
        if len(pieces) == 2:
            return Without(self.read(pieces[0], depth + 1), self.read(pieces[1], depth + 1))
        return None

    def _bracketed(self, tokens: list[Token], depth: int) -> Shape:
        """A text that one pair of brackets encloses, else a single value."""
        if not enclosed(tokens):
            if _is_point(tokens):
                return self.read(tokens[1:], depth + 1)
            return self._outward(tokens) or leaf(tokens, self.reading)
        left, right = tokens[0].text.removeprefix("\\"), tokens[-1].text.removeprefix("\\")
        inside = tokens[1:-1]
        if left == "{":
            built = _set_builder(inside)
            if built:
                domain, condition = built
                shape = _unnamed(self.read(condition, depth + 1))
                return Restricted(domain, shape) if domain else shape
        items = split(inside, {",", ";"})
        if len(items) == 1 and (left, right) in (("(", ")"), ("[", "]")) and items[0]:
            inner = self.read(inside, depth + 1)
            # (a + b) may be a factor's brackets; only what has structure inside is not a plain value
            return inner if not isinstance(inner, Quantity) else leaf(inside, self.reading)
        if not inside and left == "{":
            return Words(r"\emptyset")
        if not items or not all(items):
            return words(tokens)
        return _group(left, right, [self.read(item, depth + 1) for item in items])

    def _outward(self, tokens: list[Token]) -> Shape | None:
        """`]a, b[`, the other way to write an open interval."""
        if len(tokens) < 5 or tokens[0].text not in "])([" or tokens[-1].text not in "[()]":
            return None
        if tokens[0].text != "]" and tokens[-1].text != "[":
            return None
        items = split(tokens[1:-1], {",", ";"})
        if len(items) != 2 or not all(items):
            return None
        left, right = (
            "(" if tokens[0].text == "]" else tokens[0].text,
            ")" if tokens[-1].text == "[" else tokens[-1].text,
        )
        return Ordered(left, right, tuple(self.read(item, 1) for item in items))


def _group(left: str, right: str, items: list[Shape]) -> Shape:
    """A set, or a tuple; a tuple in which an item has two signs stands for all combinations."""
    if left == "{":
        flat: list[Shape] = []
        for item in items:
            flat.extend(item.items if is_listed(item) else (item,))
        return Many("set", tuple(flat))
    choices = [item.items if is_listed(item) else (item,) for item in items]
    if sum(len(choice) > 1 for choice in choices) > _MAX_SIGNS:
        raise Unreadable("too many double signs")
    tuples = tuple(Ordered(left, right, combination) for combination in product(*choices))
    return tuples[0] if len(tuples) == 1 else Many("list", tuples)


def split_list(tokens: list[Token]) -> list[list[Token]]:
    """The items of a list without brackets: split at `;` if there is one, else at commas, "and" and "or"."""
    items = [part for part in split(tokens, {";"}) if part]
    if len(items) == 1:
        items = [part for part in split(tokens, {"or"}) if part]
        if len(items) > 1 and all(map(_is_assignment, items)):
            return items
        items = [part for part in split(tokens, _LISTED) if part]
    return items


def _congruences(tokens: list[Token]) -> list[list[Token]]:
    """`n \\equiv 1, 4 \\pmod 6` as a congruence for each residue; nothing when it is none or has one."""
    marks = [token.text for token in tokens]
    if r"\equiv" not in marks or r"\pmod" not in marks:
        return []
    start, end = marks.index(r"\equiv") + 1, marks.index(r"\pmod")
    end -= end > 0 and marks[end - 1] == "("
    residues = [part for part in split(tokens[start:end], _LISTED) if part]
    return [[*tokens[:start], *residue, *tokens[end:]] for residue in residues] if len(residues) > 1 else []


def _is_assignment(tokens: list[Token]) -> bool:
    """`a = 1, b = 2`."""
    parts = split(tokens, {","})
    return len(parts) > 1 and all(any(token.text == "=" for token in part) for part in parts)


def unwrapped(tokens: list[Token]) -> list[Token]:
    """The tokens without what surrounds the whole: sentence marks, redundant braces, an introduction in words."""
    start, end = _introduction(tokens), len(tokens)
    while end > start and tokens[end - 1].kind == "mark" and tokens[end - 1].text in _TRAILING:
        if tokens[end - 1].text == '"' and end - start > 1 and tokens[start].text != '"':
            break  # 8" are inches
        end -= 1
    if end - start > 1 and tokens[end - 1].text == r"\dots" and "." in tokens[end - 2].text[:-1]:
        end -= 1
        tokens = [*tokens[: end - 1], _endless(tokens[end - 1])]
    while start < end and tokens[start].kind == "mark" and tokens[start].text in _LEADING:
        start += 1
    return _peeled(tokens[start:end])


def _endless(token: Token) -> Token:
    """The decimal of `0.1666…` as 0.1(6), where its last digits repeat; nines stay as they are."""
    found = _CYCLE.search(token.text, token.text.find(".") + 1) if token.kind == "number" else None
    if found and set(found.group()) == {"9"}:
        return token
    return (
        token._replace(text=f"{token.text[: found.start()]}({found.group(1) or found.group(2)})")
        if found
        else token
    )


def _peeled(tokens: list[Token]) -> list[Token]:
    """Without the braces around the whole, unless they are those of a set, and without doubled parentheses."""
    partner = pairs(tokens) if tokens and tokens[0].text in ("{", "(") else {}
    start, end = 0, len(tokens)
    while end - start > 1 and partner.get(start) == end - 1:
        inner = partner.get(start + 1) == end - 2
        if (
            tokens[start].text == "{"
            and not inner
            and "|" in [token.text for token in tokens[start + 2 : start + 8]]
        ):
            break  # {x | x > 0}
        if (tokens[start].text == "{" and (inner or len(split(tokens[start + 1 : end - 1], {","})) == 1)) or (
            tokens[start].text == "(" and inner and tokens[start + 1].text == "("
        ):
            start, end = start + 1, end - 1
        else:
            break
    return tokens[start:end]


def _introduction(tokens: list[Token]) -> int:
    """How many tokens at the start only introduce the answer."""
    if not tokens:
        return 0
    if tokens[0].kind == "text" and len(tokens) > 1:
        text = tokens[0].text.lower()
        if text in ("if", "when", "for") or (_INTRODUCTION.match(text) and not is_denial(text)):
            return 1
    named = len(list(takewhile(lambda token: token.kind in ("word", "text"), tokens)))
    if (
        named
        and not is_denial(" ".join(token.text for token in tokens[:named]))
        and len(tokens) > named + 1
        and tokens[named].text == ":"
        and len("".join(t.text for t in tokens[:named])) > 2
    ):
        return named + 1  # Ann: 12
    count = 0
    while (
        count < len(tokens) and tokens[count].kind == "word" and tokens[count].text.lower() in _ANSWER_WORDS
    ):
        count += 1
    if not count or "answer" not in [token.text.lower() for token in tokens[:count]]:
        return 0
    count += count < len(tokens) and tokens[count].text == ":"
    return count if count < len(tokens) else 0


def _unnamed(shape: Shape) -> Shape:
    """A set without the name of the variable that builds it."""
    if isinstance(shape, Ordered):
        return Ordered(shape.left, shape.right, shape.items)
    if isinstance(shape, Without):
        return Without(shape.whole, shape.removed)
    return Many(shape.kind, tuple(map(_unnamed, shape.items))) if isinstance(shape, Many) else shape


def _is_point(tokens: list[Token]) -> bool:
    """`P(3, -1)`."""
    named = (
        len(tokens) > 4 and tokens[0].kind == "word" and len(tokens[0].text) == 1 and tokens[0].text.isupper()
    )
    return named and enclosed(tokens[1:]) and len(split(tokens[2:-1], {","})) > 1


def _without_tail(tokens: list[Token]) -> list[Token]:
    """Without "for all x" and what follows it."""
    for index, token in enumerate(tokens):
        if index and token.kind in ("text", "word"):
            following = tokens[index + 1].text if index + 1 < len(tokens) else ""
            said = f"{token.text} {following}".lower() if token.kind == "word" else token.text.lower()
            ends = any(said == tail or said.startswith(f"{tail} ") for tail in _TAIL_WORDS)
            # "for some c > 1" says more than that there is one.
            said_more = SIGNS - {r"\in"} if said.startswith("for some") else {"="}
            if ends and not any(rest.text in said_more for rest in tokens[index:]):
                return unwrapped(tokens[:index])
    return tokens


def _set_builder(inside: list[Token]) -> tuple[str, list[Token]] | None:
    """Domain ("" for the real numbers) and condition of `x | condition`, `x \\in \\mathbb{Z} : condition`."""
    for index, token in enumerate(inside[:8]):
        if index and token.kind == "mark" and token.text in ("|", ":"):
            head, condition = canonical(inside[:index]), inside[index + 1 :]
            named = re.fullmatch(r"(?:\\?[a-zA-Z]\w*|\([a-z, ]+\))(?:\\in(?P<domain>.*))?", head)
            if not {token.text for token in condition} & SIGNS:
                return None
            if not named:  # {2k | k in Z}: only the same condition is the same set
                return _built(inside[:index], condition)
            domain = named.group("domain") or ""
            return ("" if domain in ("", "R", r"\mathbbR") else domain), condition
    return None


def _built(head: list[Token], condition: list[Token]) -> tuple[str, list[Token]]:
    """The condition as text and the expression, under one name of the variable: 2n for n in Z is 2k for k in Z."""
    name = condition[0].text if condition[0].kind == "word" and len(condition[0].text) == 1 else "k"
    if name != "k" and not any(token.text == "k" for token in (*head, *condition)):
        head, condition = (
            [token._replace(text="k") if token.text == name else token for token in part]
            for part in (head, condition)
        )
    return canonical(condition), head


def _conjunction(tokens: list[Token]) -> Literal["list", "and", "or"]:
    """How the items of a bare list are joined."""
    said = {token.text for token in tokens if token.kind == "mark" and token.text in ("and", "or")}
    if said == {"and"}:
        return "and"
    return "or" if said == {"or"} else "list"
