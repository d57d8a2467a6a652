"""What an answer can be: a quantity, an interval, a set, a tuple, a relation, a matrix, words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeGuard

from guerdon_services.math.notation.lexer import Token
from guerdon_services.math.notation.tree import ZERO, Constant, Mul, Node, Number, Pow, negated

INFINITY = Constant("infinity")


@dataclass(frozen=True, slots=True)
class Quantity:
    """One value. `unit` is "" where none is given; `percent` and `degrees` tell signs after it."""

    node: Node
    unit: str = ""
    percent: bool = False
    degrees: bool = False


@dataclass(frozen=True, slots=True)
class Words:
    """Prose, a name, or (`unread`) mathematics that cannot be read; equal only to the same words."""

    text: str
    unread: bool = False


@dataclass(frozen=True, slots=True)
class Based:
    """Digits in a base that is written at them."""

    digits: str
    base: int


@dataclass(frozen=True, slots=True)
class Clock:
    """A time of day, or a ratio that looks like one; `half` is "am" or "pm" where it is said."""

    seconds: int
    parts: "tuple[Node, ...]"
    half: str = ""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Two parts or more, of which only the proportions count."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Many:
    """Values in any order: a bare list (said with commas, "and" or "or"), a set in braces, or a union."""

    kind: Literal["list", "and", "or", "set", "union"]
    items: "tuple[Shape, ...]"


@dataclass(frozen=True, slots=True)
class Ordered:
    """Values between brackets: a tuple, a vector, or an interval when there are two.

    `variable` is what an interval was said of, if it was written as an inequality; it tells conditions apart.
    """

    left: str
    right: str
    items: "tuple[Shape, ...]"
    variable: str = ""


@dataclass(frozen=True, slots=True)
class Without:
    """A set with parts taken out of it; `variable` is the name of which `x != 2` says it."""

    whole: "Shape"
    removed: "Shape"
    variable: str = ""


@dataclass(frozen=True, slots=True)
class Restricted:
    """The elements of a set of numbers that are in a named one: `\\mathbbZ`, `\\mathbbN`."""

    domain: str
    whole: "Shape"


@dataclass(frozen=True, slots=True)
class Relation:
    """`parts[0] signs[0] parts[1] signs[1] …`."""

    parts: "tuple[Shape, ...]"
    signs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Labelled:
    """A value with the name that it was given: `x = 3`, `f(x) = x + 1`. `relation` reads it as an equation."""

    label: str
    arguments: tuple[str, ...]
    value: "Shape"
    relation: Relation | None


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of cells."""

    rows: "tuple[tuple[Shape, ...], ...]"


Shape = (
    Quantity
    | Words
    | Based
    | Clock
    | Ratio
    | Many
    | Ordered
    | Without
    | Restricted
    | Relation
    | Labelled
    | Matrix
)


def quantity(node: Node) -> Quantity:
    """A bare value."""
    return Quantity(node)


def interval(left: str, low: Shape, high: Shape, right: str, variable: str = "") -> Ordered:
    """An interval; an infinite end is open whatever was written."""
    if isinstance(low, Quantity) and _infinite(low.node):
        left = "("
    if isinstance(high, Quantity) and _infinite(high.node):
        right = ")"
    return Ordered(left, right, (low, high), variable)


def _infinite(node: Node) -> bool:
    return node in (INFINITY, negated(INFINITY))


BELOW_ALL, ABOVE_ALL = Quantity(negated(INFINITY)), Quantity(INFINITY)
REALS = Ordered("(", ")", (BELOW_ALL, ABOVE_ALL))
ZERO_UP = Ordered("(", ")", (Quantity(ZERO), ABOVE_ALL))


def literal(node: Node) -> Number | None:
    """The numeral that a node is, also in scientific notation, else None."""
    match node:
        case Number():
            return node
        case Mul((Number(value), rest)) if value == -1:
            number = literal(rest)
            return None if number is None else Number(-number.value, number.places, number.digits)
        case Mul((Number(value, places, digits), Pow(Number(base), Number(exponent)))) if (
            base == 10 and exponent.denominator == 1 and abs(exponent) <= 1000
        ):
            shown = (places or 0) - int(exponent)
            return Number(value * base ** int(exponent), shown if shown > 0 else None, digits)
        case _:
            return None


def is_listed(shape: Shape) -> TypeGuard[Many]:
    """Whether a shape is a list without brackets."""
    return isinstance(shape, Many) and shape.kind in ("list", "and", "or")


def is_interval(shape: Shape) -> bool:
    """Whether brackets around two values can be those of an interval."""
    return isinstance(shape, Ordered) and len(shape.items) == 2 and shape.left in "([" and shape.right in ")]"


def canonical(tokens: Sequence[Token]) -> str:
    """The tokens as text: one spelling for each way of writing them."""
    parts: list[str] = []
    previous = kind_before = ""
    for kind, text, spaced, _ in tokens:
        if kind == "text":
            text = rf"\text{{{text}}}"
        elif kind == "environment":
            text = r"\end{matrix}" if text == "end" else rf"\begin{{{text}}}"
        if previous.isalnum() and text[0].isalnum():
            apart = spaced or kind_before != "number"
        else:  # 1 .5 and . 5 are no decimals
            apart = kind == "number" and (previous == "." or (text[0] == "." and previous.isdigit()))
        parts.append(f" {text}" if apart or text in ("and", "or") else text)
        previous, kind_before = text[-1], kind
    return "".join(parts)
