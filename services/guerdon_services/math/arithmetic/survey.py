"""What expressions are made of, found in one pass."""

from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import blake2b

from guerdon_services.math.notation.tree import (
    Add,
    Apply,
    Bound,
    Call,
    Constant,
    Mul,
    Node,
    Number,
    Pow,
    Symbol,
    children,
    symbols,
)

#: Numerals of no more bits together can have been made for no point and no prime.
_FEW_BITS = 64
#: Functions of whole numbers only.
_OF_INTEGERS = ("double_factorial", "gcd", "lcm", "mod")


@dataclass(slots=True)
class Survey:
    """What some expressions are made of."""

    #: Number of nodes; one above the limit if there are more.
    nodes: int = 0
    #: Free variables.
    names: set[str] = field(default_factory=set[str])
    #: Variables that stand where only whole numbers make sense, such as n in (-1)^n.
    whole: set[str] = field(default_factory=set[str])
    #: Whether pi, e, i, or an unknown function takes part.
    irrational: bool = False
    #: Whether infinity does, other than as an end of a sum or an integral.
    infinite: bool = False
    #: Whether a sum, a product, an integral or a limit takes part.
    bound: bool = False


def survey(nodes: tuple[Node, ...], limit: int) -> Survey:
    """Looks at expressions until they have more nodes than the limit."""
    found = Survey()
    whole: list[Node] = []
    stack = list(nodes)
    while stack and found.nodes <= limit:
        node = stack.pop()
        found.nodes += 1
        if isinstance(node, Number):
            continue
        if isinstance(node, Symbol):
            found.names.add(node.name)
        elif isinstance(node, Mul):
            stack.extend(node.factors)
        elif isinstance(node, Add):
            stack.extend(node.terms)
        elif isinstance(node, Constant):
            found.irrational = True
            found.infinite |= node.name == "infinity"
        elif isinstance(node, Bound):
            found.bound = True
            ends = [end for end in (node.low, node.high) if end is not None and not endless(end)]
            stack.append(node.body)
            stack.extend(ends)
            whole.extend(ends if node.kind in ("sum", "prod") else ())
        else:
            found.irrational |= isinstance(node, Apply)
            stack.extend(children(node))
            whole.extend(_whole(node))
    # Only now is it known that the expressions are short enough to be walked through again.
    if found.nodes <= limit:
        if found.bound:
            found.names = set().union(*(symbols(node) for node in nodes))
        found.whole = found.names & set().union(*(symbols(node) for node in whole))
    return found


def _whole(node: Pow | Call | Apply) -> tuple[Node, ...]:
    """Parts that can only be whole numbers."""
    if isinstance(node, Pow):
        return (node.exponent,) if not isinstance(node.exponent, Number) and _negative(node.base) else ()
    return node.arguments if isinstance(node, Call) and node.name in _OF_INTEGERS else ()


def inscription(*nodes: Node) -> str:
    """Text that depends on all numerals of expressions; empty where these have few bits.

    Points and primes that are drawn from it are none that the numerals can have been made for.
    """
    bits, stack = 0, list(nodes)
    values: list[Fraction] = []
    while stack:
        node = stack.pop()
        if isinstance(node, Number):
            value = node.value
            values.append(value)
            bits += value.numerator.bit_length() + value.denominator.bit_length() - 1
        elif isinstance(node, Mul):
            stack.extend(node.factors)
        elif isinstance(node, Add):
            stack.extend(node.terms)
        elif not isinstance(node, Symbol | Constant):
            stack.extend(children(node))
    if bits <= _FEW_BITS:
        return ""
    text = " ".join([f"{value.numerator:x}/{value.denominator:x}" for value in values])
    return blake2b(text.encode(), digest_size=16).hexdigest()


def endless(node: Node) -> int:
    """1 for infinity, -1 for minus infinity, 0 for anything else."""
    if isinstance(node, Constant):
        return int(node.name == "infinity")
    if isinstance(node, Mul) and len(node.factors) == 2:
        number, rest = node.factors
        if isinstance(number, Number) and isinstance(rest, Constant) and rest.name == "infinity":
            return (number.value > 0) - (number.value < 0)
    return 0


def _negative(node: Node) -> bool:
    if isinstance(node, Mul):
        return any(isinstance(factor, Number) and factor.value < 0 for factor in node.factors)
    return isinstance(node, Number) and node.value < 0
