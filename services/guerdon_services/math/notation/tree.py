"""Expressions as trees: what the parser builds and the evaluators read. Every node is immutable and hashable."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

#: Functions whose values are known, by name, with the number of arguments they take.
FUNCTIONS: dict[str, tuple[int, ...]] = {
    "sin": (1,), "cos": (1,), "tan": (1,), "cot": (1,), "sec": (1,), "csc": (1,),
    "asin": (1,), "acos": (1,), "atan": (1,), "acot": (1,), "asec": (1,), "acsc": (1,),
    "sinh": (1,), "cosh": (1,), "tanh": (1,), "coth": (1,), "sech": (1,), "csch": (1,),
    "asinh": (1,), "acosh": (1,), "atanh": (1,),
    "exp": (1,), "ln": (1,), "log": (1, 2),  # log(x, base)
    "root": (2,),  # root(x, n): the principal n-th root, for odd n and real x the real one
    "abs": (1,), "floor": (1,), "ceil": (1,), "sign": (1,), "re": (1,), "im": (1,), "conjugate": (1,), "arg": (1,),
    "factorial": (1,), "double_factorial": (1,), "binomial": (2,), "gamma": (1,),
    "gcd": (2,), "lcm": (2,), "mod": (2,), "max": (2,), "min": (2,),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Number:
    """A numeral. `places` counts decimal places and is None in exact notation, `digits` significant digits."""

    value: Fraction
    places: int | None = None
    digits: int = 0


@dataclass(frozen=True, slots=True)
class Constant:
    """A number that has a name."""

    name: Literal["pi", "e", "i", "infinity"]


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable."""

    name: str


@dataclass(frozen=True, slots=True)
class Add:
    """Two terms or more."""

    terms: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Mul:
    """Two factors or more; -x is -1 times x, and a/b is a times b to the power -1."""

    factors: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Pow:
    """A power; of a negative base the real one for an odd denominator in the exponent, else the principal one."""

    base: "Node"
    exponent: "Node"


@dataclass(frozen=True, slots=True)
class Call:
    """A function of `FUNCTIONS` of as many arguments as it takes."""

    name: str
    arguments: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Apply:
    """An unknown function, an indexed symbol such as `a_{n-1}`: equal for the same name and equal arguments."""

    name: str
    arguments: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Bound:
    """A sum, product, integral or limit over `variable`; `low` and `high` are None where none is given.

    The limit of a limit is `low`.
    """

    kind: Literal["sum", "prod", "int", "lim"]
    variable: str
    low: "Node | None"
    high: "Node | None"
    body: "Node"


Node = Number | Constant | Symbol | Add | Mul | Pow | Call | Apply | Bound

MINUS_ONE = Number(Fraction(-1))
ONE = Number(Fraction(1))
ZERO = Number(Fraction(0))


def children(node: Node) -> "tuple[Node, ...]":
    """The nodes directly below one."""
    match node:
        case Add(terms):
            return terms
        case Mul(factors):
            return factors
        case Pow(base, exponent):
            return (base, exponent)
        case Call(_, arguments) | Apply(_, arguments):
            return arguments
        case Bound(_, _, low, high, body):
            return tuple(part for part in (low, high, body) if part is not None)
        case _:
            return ()


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it."""
    stack = [node]
    while stack:
        top = stack.pop()
        yield top
        stack.extend(children(top))


def symbols(node: Node) -> frozenset[str]:
    """Names of the free variables."""
    if isinstance(node, Symbol):
        return frozenset((node.name,))
    found: set[str] = set()
    stack = list(children(node))
    while stack:
        top = stack.pop()
        if isinstance(top, Symbol):
            found.add(top.name)
        elif isinstance(top, Bound):
            found |= symbols(top)
        else:
            stack.extend(children(top))
    return frozenset(found - {node.variable}) if isinstance(node, Bound) else frozenset(found)


def is_within(roots: Sequence[Node], *, nodes: int, height: int) -> bool:
    """Whether trees have at most so many nodes in all and so many levels; shared nodes count each time."""
    level = list(roots)
    left = nodes - len(level)
    for _ in range(height):
        below: list[Node] = []
        for node in level:
            below.extend(children(node))
            if len(below) > left:
                return False
        if not below:
            return True
        left -= len(below)
        level = below
    return False


def rebuilt(node: Node, change: Callable[[Node], Node]) -> Node:
    """The node with each of its children changed."""
    match node:
        case Add(terms):
            return Add(tuple(map(change, terms)))
        case Mul(factors):
            return Mul(tuple(map(change, factors)))
        case Pow(base, exponent):
            return Pow(change(base), change(exponent))
        case Call(function, arguments):
            return Call(function, tuple(map(change, arguments)))
        case Apply(function, arguments):
            return Apply(function, tuple(map(change, arguments)))
        case Bound(kind, variable, low, high, body):
            low, high = (None if end is None else change(end) for end in (low, high))
            return Bound(kind, variable, low, high, change(body))
        case _:
            return node


def substitute(node: Node, name: str, value: Node) -> Node:
    """The node with a free variable replaced."""
    if isinstance(node, Symbol):
        return value if node.name == name else node
    changed = rebuilt(node, lambda child: substitute(child, name, value))
    if isinstance(node, Bound) and isinstance(changed, Bound) and node.variable == name:
        return Bound(node.kind, name, changed.low, changed.high, node.body)
    return changed


def negated(node: Node) -> Node:
    """Minus the node."""
    if isinstance(node, Number):
        return Number(-node.value, node.places, node.digits)
    return Mul((MINUS_ONE, node))


def difference(left: Node, right: Node) -> Node:
    """left - right."""
    return left if right == ZERO else Add((left, negated(right)))


def quotient(above: Node, below: Node) -> Node:
    """above / below."""
    return Mul((above, Pow(below, MINUS_ONE)))


def root(node: Node, degree: Node) -> Node:
    """The n-th root."""
    return Call("root", (node, degree))
