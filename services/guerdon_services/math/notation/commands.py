"""Commands with arguments in an expression: fractions, roots, binomials, named constants, sums and integrals."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from guerdon_services.math.notation import binders
from guerdon_services.math.notation.lexer import Unreadable
from guerdon_services.math.notation.numerals import letter
from guerdon_services.math.notation.tree import Apply, Call, Constant, Node, Number, quotient, root

if TYPE_CHECKING:
    from guerdon_services.math.notation.expression import Parser


def command(parser: Parser, text: str) -> Node:
    """What a command, which has been taken, makes of what follows it.

    Raises:
        Unreadable: it is none that an expression may have.
    """
    match text:
        case r"\frac":
            return _derivative(parser) or quotient(parser.argument(), parser.argument())
        case r"\binom":
            return Call("binomial", (parser.argument(), parser.argument()))
        case r"\sqrt":
            return _root(parser)
        case r"\pi":
            return Constant("pi")
        case r"\infty":
            return Constant("infinity")
        case r"\sum" | r"\prod" | r"\int" | r"\lim":
            return binders.bound(parser, text)
        case _:
            raise Unreadable(f"cannot read {text!r}")


def _derivative(parser: Parser) -> Node | None:
    """`\\frac{dy}{dx}`, in which nothing cancels."""
    texts = [token.text for token in parser.tokens[parser.at : parser.at + 6]]
    if len(texts) < 6 or texts[0::3] != ["{", "{"] or texts[2::3] != ["}", "}"]:
        return None
    above, below = texts[1], texts[4]
    if not all(len(name) == 2 and name[0] == "d" and name.isalpha() for name in (above, below)):
        return None
    parser.at += 6
    return Apply("derivative", (letter(above[1]), letter(below[1])))


def _root(parser: Parser) -> Node:
    degree: Node = Number(Fraction(2))
    if parser.peek() == "[":
        degree = parser.group()
    node = parser.group() if parser.peek() in ("(", "[") else parser.argument(whole_numbers=True)
    return root(node, degree)
