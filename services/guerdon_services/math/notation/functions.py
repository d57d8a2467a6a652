"""Named functions in an expression: sin 2x, sin^2(x), log_2 8, max(a, b, c)."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import reduce
from typing import TYPE_CHECKING

from guerdon_services.math.notation.brackets import PARTNERS
from guerdon_services.math.notation.lexer import Token, Unreadable
from guerdon_services.math.notation.spelling import FUNCTION_NAMES
from guerdon_services.math.notation.tree import FUNCTIONS, Call, Constant, Mul, Node, Number, Pow, root, walk

if TYPE_CHECKING:
    from guerdon_services.math.notation.expression import Parser

Rule = Callable[[], Node]

#: Values of which the greatest can be asked.
_MAX_VALUES = 40
_TEN = Number(Fraction(10))
_ANGLES = frozenset(["sin", "cos", "tan", "cot", "sec", "csc", "cis"])
_INVERTED = (_ANGLES - {"cis"}) | {"sinh", "cosh", "tanh"}


def is_function(token: Token) -> bool:
    """Whether a token is the name of a function, with or without a letter stuck to it (sinx)."""
    return token.kind == "function" or (token.kind == "word" and _stuck(token.text) is not None)


def call(parser: Parser) -> Node:
    """A function that the parser stands before, with its arguments."""
    parser.enter()
    word = parser.peek()
    stuck = _stuck(word)
    if stuck:
        _unstick(parser, *stuck)
        word = stuck[0]
    parser.at += 1
    name = FUNCTION_NAMES[word]
    base = parser.argument(whole_numbers=True) if name == "log" and parser.accept("_") else None
    power = parser.exponent() if parser.accept("^") else None
    if name == "log" and base is None and parser.accept("_"):
        base = parser.argument(whole_numbers=True)
    inverse = isinstance(power, Number) and power.value == -1 and name in _INVERTED
    outer, parser.angle = parser.angle, name in _ANGLES and not inverse
    values = arguments(parser) if parser.peek() in PARTNERS else (_open_argument(parser),)
    parser.angle = outer
    parser.leave()
    if inverse:
        return Call(f"a{name}", values)
    node = _build(name, values, base, decadic=parser.reading.decadic)
    return node if power is None else Pow(node, power)


def arguments(parser: Parser) -> tuple[Node, ...]:
    """What stands between the brackets of a call, separated by commas."""
    opener = parser.peek()
    parser.at += 1
    found = [parser.sum()]
    while parser.accept(","):
        found.append(parser.sum())
    parser.expect(PARTNERS[opener])
    return tuple(found)


def _open_argument(parser: Parser) -> Node:
    """An argument without brackets: the factors up to the next sign or function; pi/3 after an angle."""
    negative = parser.accept("-")
    node = call(parser) if parser.starts_function() else parser.juxtaposed(stop_at_functions=True)
    if (
        parser.peek() == "/"
        and parser.kind(1) == "number"
        and any(part == Constant("pi") for part in walk(node))
    ):
        parser.at += 1
        node = Mul((node, Pow(parser.power(), Number(Fraction(-1)))))
    return Mul((Number(Fraction(-1)), node)) if negative else node


def _build(name: str, values: tuple[Node, ...], base: Node | None, *, decadic: bool) -> Node:
    if name == "exp" and len(values) == 1:
        return Pow(Constant("e"), values[0])
    if name == "cis" and len(values) == 1:
        return Pow(Constant("e"), Mul((Constant("i"), values[0])))
    if name == "cbrt" and len(values) == 1:
        return root(values[0], Number(Fraction(3)))
    if name in ("lg", "log") and len(values) == 1:
        chosen = base or (_TEN if name == "lg" or decadic else None)
        return Call("log", (values[0], chosen)) if chosen else Call("ln", values)
    if name in ("gcd", "lcm", "max", "min") and 1 < len(values) <= _MAX_VALUES:
        return reduce(lambda left, right: Call(name, (left, right)), values)
    if len(values) not in FUNCTIONS[name]:
        raise Unreadable(f"{name} of {len(values)} values")
    return Call(name, values)


def _stuck(word: str) -> tuple[str, str] | None:
    """`sinx` as sin and x."""
    if len(word) < 3 or word in FUNCTION_NAMES:
        return None
    name, letter = word[:-1], word[-1]
    return (name, letter) if name in _ANGLES or name in ("ln", "log") else None


def _unstick(parser: Parser, name: str, letter: str) -> None:
    token = parser.tokens[parser.at]
    parser.tokens[parser.at : parser.at + 1] = [
        token._replace(text=name),
        token._replace(text=letter, spaced=False),
    ]
