"""Sums, products, integrals and limits: what binds a variable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from guerdon_services.math.notation.brackets import levels
from guerdon_services.math.notation.lexer import END, Token, Unreadable
from guerdon_services.math.notation.tree import Bound, Constant, Node, Symbol, rebuilt

if TYPE_CHECKING:
    from guerdon_services.math.notation.expression import Parser

_KINDS: dict[str, Literal["sum", "prod", "int", "lim"]] = {
    r"\sum": "sum",
    r"\prod": "prod",
    r"\int": "int",
    r"\lim": "lim",
}


def bound(parser: Parser, command: str) -> Node:
    """The expression after `\\sum`, `\\prod`, `\\int` or `\\lim`, which has been taken."""
    kind = _KINDS[command]
    parser.enter()
    node = _integral(parser) if kind == "int" else _over(parser, kind)
    parser.leave()
    return node


def _over(parser: Parser, kind: Literal["sum", "prod", "lim"]) -> Node:
    parser.expect("_")
    parser.expect("{")
    variable = _variable(parser)
    parser.expect(r"\to" if kind == "lim" else "=")
    if kind == "lim":
        _drop_side(parser)
    low = parser.sum()
    parser.expect("}")
    high = parser.argument(whole_numbers=True) if kind != "lim" and parser.accept("^") else None
    body = parser.product()
    return Bound(kind, variable, low, high, _free(body, variable))


def _drop_side(parser: Parser) -> None:
    """Without the side from which a limit is taken: 0^+."""
    for index in range(parser.at, len(parser.tokens) - 2):
        texts = [token.text for token in parser.tokens[index : index + 4]]
        if texts[0] == "^" and texts[1] in ("+", "-") and texts[2] == "}":
            del parser.tokens[index : index + 2]
            return
        if texts[0] == "}":
            return


def _integral(parser: Parser) -> Node:
    low = parser.argument(whole_numbers=True) if parser.accept("_") else None
    high = parser.exponent() if parser.accept("^") else None
    end = _differential(parser)
    rest, parser.tokens = parser.tokens[end:], [*parser.tokens[:end], END]
    body = parser.sum()
    if not parser.done:
        raise Unreadable("cannot read an integrand")
    # Words of the integrand may have been cut into letters, so the tokens are those that were read.
    parser.tokens = [*parser.tokens[: parser.at], *rest]
    variable = parser.peek()
    if variable == "d":
        variable = parser.peek(1)
        parser.at += 2
    else:
        variable = variable[1:]
        parser.at += 1
    return Bound("int", variable, low, high, _free(body, variable))


def _differential(parser: Parser) -> int:
    """Index of the `dx` that ends the integrand."""
    for index, (token, depth) in enumerate(levels(parser.tokens[parser.at :]), start=parser.at):
        if depth == 0 and token.kind == "word" and _ends_in_differential(token.text):
            cut = len(token.text) - 2
            parser.tokens[index : index + 1] = [
                token._replace(text=token.text[:cut]),
                Token("word", token.text[cut:]),
            ]
            return index + 1
        elif depth == 0 and token.kind == "word" and token.text.startswith("d"):
            following = parser.tokens[index + 1] if index + 1 < len(parser.tokens) else None
            if len(token.text) == 2 or (
                token.text == "d" and following and following.kind in ("word", "mark")
            ):
                return index
    raise Unreadable("cannot read an integral without dx")


def _ends_in_differential(word: str) -> bool:
    """Whether letters end in a differential: xdx."""
    return 2 < len(word) < 6 and word[-2] == "d"


def _variable(parser: Parser) -> str:
    if parser.kind() not in ("word", "mark") or (
        len(parser.peek()) > 1 and not parser.peek().startswith("\\")
    ):
        raise Unreadable("cannot read a bound variable")
    name = parser.peek()
    parser.at += 1
    return name


def _free(body: Node, variable: str) -> Node:
    """The body with the letter as the bound variable, also where it is a constant elsewhere (i, e)."""
    if variable not in ("i", "e"):
        return body
    return _replaced(body, Constant(variable), Symbol(variable))  # pyright: ignore[reportArgumentType]


def _replaced(node: Node, old: Node, new: Node) -> Node:
    return new if node == old else rebuilt(node, lambda child: _replaced(child, old, new))
