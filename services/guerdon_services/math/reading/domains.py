"""Where a variable runs: `k \\in \\mathbb{Z}` beside a value, quantified statements, all numbers but some."""

import re
from itertools import takewhile

from guerdon_services.math.notation.brackets import pairs
from guerdon_services.math.notation.lexer import Token
from guerdon_services.math.reading.named import ALL_BUT, NUMBER_SETS
from guerdon_services.math.reading.relations import SIGNS
from guerdon_services.math.reading.shapes import canonical

_DOMAIN = re.compile(
    r"(?:[a-zA-Z]|\\(?!forall|exists)[a-z]{2,7})(?:_\w|,[a-zA-Z])*\\in(?:\\mathbb|\\bar ?)?[RQZNC]"
    r"(?:[\^_]?\{?[+*-]\}?){0,2}(?:,?\\?[a-zA-Z]\\neq0)?"
)
#: Longest domain, in tokens.
_MAX_DOMAIN = 14
QUANTIFIERS = frozenset({r"\forall", r"\exists"})
_SEPARATORS = frozenset({",", ":", ";"})
#: A name that no text has: what one variable is called must not meet another one of the statement.
_BOUND = "bound"


def statement(tokens: list[Token]) -> str:
    """A quantified statement in one spelling, whatever its variable is called: that has values, the statement none."""
    marks = [token.text for token in tokens]
    bound = marks[1 : marks.index(r"\in")] if r"\in" in marks else marks[1:2]
    named = [token._replace(text=_BOUND) if [token.text] == bound[:1] else token for token in tokens]
    text = canonical(_joined(named))
    index = "".join(bound[1:])
    return text.replace(f"{_BOUND}{index}", _BOUND) if index else text


def _joined(tokens: list[Token]) -> list[Token]:
    """Without parentheses around the statement itself, and with one mark between its parts, if any."""
    cut = next((at + 1 for at, token in enumerate(tokens) if token.text in NUMBER_SETS), 0)
    rest = tokens[cut:]
    while cut and rest and rest[0].text in _SEPARATORS:
        rest = rest[1:]
    if rest and pairs(rest).get(0) == len(rest) - 1 and rest[0].text == "(":
        rest = rest[1:-1]
    return [
        token._replace(text=",") if token.text in _SEPARATORS else token for token in [*tokens[:cut], *rest]
    ]


def excepted(tokens: list[Token]) -> list[Token]:
    """What follows "all real numbers except"."""
    if tokens[0].text[:3].lower() not in ("all", "the", "rea"):
        return []
    named = list(takewhile(lambda token: token.kind in ("word", "text"), tokens[:8]))
    for count in range(len(named), 0, -1):
        if ALL_BUT.fullmatch(" ".join(token.text for token in named[:count]).lower()):
            return tokens[count:]
    return []


def is_domain(tokens: list[Token]) -> bool:
    """`k \\in \\mathbb{Z}`, `n \\in N^*`."""
    if not 3 <= len(tokens) <= _MAX_DOMAIN or r"\in" not in [token.text for token in tokens]:
        return False
    return _DOMAIN.fullmatch(canonical(tokens).replace(" ", "")) is not None


def without_domains(items: list[list[Token]]) -> list[list[Token]]:
    """Without the domains among the items; in `a + b, a, b \\in \\mathbb{R}` both names belong to one."""
    kept: list[list[Token]] = []
    after = False
    for index, item in reversed(list(enumerate(items))):
        after = is_domain(item) or (after and _is_name_in(item, items[:index]))
        if not after:
            kept.append(item)
    return kept[::-1]


def _is_name_in(item: list[Token], items: list[list[Token]]) -> bool:
    """Whether an item is a name alone that those before it hold, if there are any."""
    if len(item) != 1 or item[0].kind != "word":
        return False
    return not items or any(item[0].text in token.text for each in items for token in each)


def without_domain(tokens: list[Token]) -> list[Token]:
    """Without a domain in parentheses after a value: `[k\\pi, k\\pi + 1] (k \\in \\mathbb{Z})`."""
    if len(tokens) < 6 or tokens[-1].text != ")":
        return tokens
    for start in range(len(tokens) - 2, max(0, len(tokens) - _MAX_DOMAIN), -1):
        if tokens[start].text == "(":
            inside = tokens[start + 1 : -1]
            if is_domain(inside):
                return tokens[:start]
            # y = x^2 (x > 0) is y = x^2, x > 0.
            condition = any(token.text in SIGNS for token in inside) and inside[0].kind == "word"
            named = condition and any(token.text == inside[0].text for token in tokens[:start])
            return [*tokens[:start], Token("mark", ","), *inside] if named else tokens
    return tokens
