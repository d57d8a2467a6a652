"""Brackets: which there are, which belong together, and what stands outside all of them."""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

from guerdon_services.math.notation.lexer import Token, Unreadable

#: What closes each bracket; `{` groups in LaTeX, `\\{` is a brace that one sees.
PARTNERS = {"(": ")", "[": "]", "{": "}", r"\{": r"\}"}
OPENERS, CLOSERS = frozenset(PARTNERS), frozenset(PARTNERS.values())
#: Brackets around a value, those of the greatest integer below it and of the least above it among them.
AROUND_VALUES = {**PARTNERS, r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}

_MAX_PARTS = 500


def levels(tokens: Sequence[Token]) -> Iterator[tuple[Token, int]]:
    """Each token with the number of brackets and environments around it.

    A bracket itself counts as outside; where more close than have opened, the number is below zero.
    """
    depth = 0
    for token in tokens:
        if token.kind == "environment":
            opens, closes = token.text != "end", token.text == "end"
        else:
            bracket = token.kind == "mark"
            opens, closes = bracket and token.text in OPENERS, bracket and token.text in CLOSERS
        depth -= closes
        yield token, depth
        depth += opens


def split(tokens: list[Token], separators: AbstractSet[str]) -> list[list[Token]]:
    """Parts between separating marks outside all brackets; empty ones stay.

    Raises:
        Unreadable: there are too many.
    """
    return split_with(tokens, separators)[0]


def split_with(tokens: list[Token], separators: AbstractSet[str]) -> tuple[list[list[Token]], list[str]]:
    """As `split`, with the marks that separate the parts. Raises Unreadable."""
    if separators.isdisjoint([token.text for token in tokens]):
        return [tokens], []
    cuts = [
        index
        for index, (token, depth) in enumerate(levels(tokens))
        if depth == 0 and token.kind == "mark" and token.text in separators
    ]
    if len(cuts) >= _MAX_PARTS:
        raise Unreadable(f"{len(cuts) + 1} items")
    starts, ends = [0, *(cut + 1 for cut in cuts)], [*cuts, len(tokens)]
    parts = [tokens[start:end] for start, end in zip(starts, ends, strict=True)]
    return parts, [tokens[cut].text for cut in cuts]


def enclosed(tokens: Sequence[Token]) -> bool:
    """Whether the first bracket closes at the last token."""
    if (
        len(tokens) < 2
        or tokens[0].kind != "mark"
        or tokens[0].text not in OPENERS
        or tokens[-1].text not in CLOSERS
    ):
        return False
    outside = (index for index, (_, depth) in enumerate(levels(tokens)) if index and depth == 0)
    return next(outside, -1) == len(tokens) - 1


def pairs(tokens: Sequence[Token]) -> dict[int, int]:
    """Where each bracket closes, of those that do."""
    closed: dict[int, int] = {}
    opened: list[int] = []
    for index, token in enumerate(tokens):
        if token.kind == "mark" and token.text in OPENERS:
            opened.append(index)
        elif token.kind == "mark" and token.text in CLOSERS and opened:
            closed[opened.pop()] = index
    return closed
