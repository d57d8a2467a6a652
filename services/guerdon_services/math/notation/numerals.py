"""Numerals and letters: the leaves of an expression."""

from fractions import Fraction

from guerdon_services.math.notation.lexer import Token, Unreadable
from guerdon_services.math.notation.tree import Apply, Constant, Mul, Node, Number, Pow, Symbol

_MAX_DIGITS = 4000
_MAX_EXPONENT = 1000


def number(text: str) -> Node:
    """A numeral: 12, 1.50, 1e5, 0.1(6).

    Raises:
        Unreadable: it has too many digits.
    """
    if len(text) > _MAX_DIGITS:
        raise Unreadable(f"a number of {len(text)} characters")
    if text.isdigit():
        return Number(Fraction(int(text)), None, len(text.lstrip("0")))
    mantissa, _, exponent = text.lower().partition("e")
    if "(" in mantissa:
        return Number(_repeating(mantissa))
    whole, _, places = mantissa.partition(".")
    digits = whole + places
    power = int(exponent or 0)
    value = Fraction(int(digits), 10 ** len(places))
    if abs(power) > _MAX_EXPONENT:
        return Mul((Number(value), Pow(Number(Fraction(10)), Number(Fraction(power)))))
    shown = len(places) - power
    return Number(value * Fraction(10) ** power, shown if shown > 0 else None, len(digits.lstrip("0")))


def _repeating(text: str) -> Fraction:
    whole, _, rest = text.partition(".")
    places, _, cycle = rest.rstrip(")").partition("(")
    above = int(whole + places + cycle) - int(whole + places or "0")
    return Fraction(above, (10 ** len(cycle) - 1) * 10 ** len(places))


def letter(name: str) -> Node:
    """A variable, or the constant that has the name."""
    return Constant(name) if name in ("e", "i") else Symbol(name)  # pyright: ignore[reportArgumentType]


def with_index(name: str, index: Token) -> Node:
    """A letter with one token as its index: a variable may be an index, all else is part of the name."""
    if index.kind == "word" and len(index.text) == 1:
        return Apply(f"{name}_", (letter(index.text),))
    return Symbol(f"{name}_{index.text}")


def primed(node: Node) -> Node:
    """The name with a prime.

    Raises:
        Unreadable: it is no name.
    """
    match node:
        case Symbol(name):
            return Symbol(f"{name}'")
        case Apply(name, arguments):
            return Apply(f"{name}'", arguments)
        case _:
            raise Unreadable("a prime after what is no name")
