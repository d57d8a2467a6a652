"""Equations and inequalities of expressions: the same up to a factor, solved for a variable, as intervals."""

from guerdon_services.math.arithmetic.values import Values
from guerdon_services.math.notation.tree import (
    ONE,
    ZERO,
    Node,
    Symbol,
    difference,
    negated,
    quotient,
    substitute,
    symbols,
)
from guerdon_services.math.reading.relations import MIRRORED, half_line
from guerdon_services.math.reading.shapes import (
    ABOVE_ALL,
    BELOW_ALL,
    Ordered,
    Quantity,
    Relation,
    quantity,
)


def same_equation(values: Values, answer: Relation | None, gold: Relation | None) -> bool:
    """Relations of two sides that differ by a nonzero factor or in arrangement."""
    if answer is None or gold is None or not len(answer.signs) == len(gold.signs) == 1:
        return False
    given, wanted = _difference(answer), _difference(gold)
    if given is None or wanted is None or not symbols(given) or symbols(given) != symbols(wanted):
        return False
    if answer.signs == gold.signs == ("=",) and (
        _rearranged(values, answer, gold) or _rearranged(values, gold, answer)
    ):
        return True
    ratio = values.ratio_sign(given, wanted)
    if not ratio or answer.signs[0] not in MIRRORED:
        return False
    return (answer.signs[0] if ratio > 0 else MIRRORED[answer.signs[0]]) == gold.signs[0]


def _rearranged(values: Values, explicit: Relation, implicit: Relation) -> bool:
    """Whether `y = …` is an equation that is linear in y, solved for it."""
    match explicit.parts:
        case (Quantity(Symbol(name)), Quantity(value)) if name not in symbols(value):
            return solves(values, value, implicit)
        case _:
            return False


def solves(values: Values, answer: Node, gold: Relation) -> bool:
    """Whether an expression is what an equation gives for the one variable that the expression leaves out."""
    gap = _difference(gold)
    if gap is None or gold.signs != ("=",):
        return False
    missing = symbols(gap) - symbols(answer)
    if len(missing) != 1:
        return False
    (variable,) = missing
    return values.is_linear(gap, variable) and known_equal(values, substitute(gap, variable, answer), ZERO)


def solved(values: Values, relation: Relation) -> Ordered | None:
    """A linear inequality in one variable as an interval."""
    nodes = [part.node for part in relation.parts if isinstance(part, Quantity)]
    if (
        len(nodes) != len(relation.parts)
        or not 2 <= len(nodes) <= 3
        or not set(relation.signs) <= set(MIRRORED)
    ):
        return None
    if len(nodes) == 2 and relation.signs[0] not in ("=", r"\neq"):
        return _half_line(values, difference(nodes[0], nodes[1]), relation.signs[0])
    if len(nodes) == 3 and not symbols(nodes[0]) and not symbols(nodes[2]):
        left = _half_line(values, difference(nodes[0], nodes[1]), relation.signs[0])
        right = _half_line(values, difference(nodes[1], nodes[2]), relation.signs[1])
        return meet(left, right) if left and right else None
    return None


def _half_line(values: Values, gap: Node, sign: str) -> Ordered | None:
    """Where `gap` has this sign against 0."""
    names = symbols(gap)
    if len(names) != 1 or not values.is_linear(gap, *names):
        return None
    (name,) = names
    at_zero, at_one = substitute(gap, name, ZERO), substitute(gap, name, ONE)
    slope = difference(at_one, at_zero)
    turned = values.compare(slope, ZERO)
    if not turned:
        return None
    bound = quantity(quotient(negated(at_zero), slope))
    sign = sign if turned > 0 else MIRRORED[sign]
    found = half_line(bound, sign, "")
    return found if isinstance(found, Ordered) else None


def meet(one: Ordered, other: Ordered) -> Ordered | None:
    """What two half-lines that look at each other have in common."""
    up, down = (one, other) if one.items[1] == ABOVE_ALL else (other, one)
    if up.items[1] != ABOVE_ALL or down.items[0] != BELOW_ALL:
        return None
    return Ordered(up.left, down.right, (up.items[0], down.items[1]))


def _difference(relation: Relation) -> Node | None:
    match relation.parts:
        case (Quantity(left), Quantity(right)):
            return difference(left, right)
        case _:
            return None


def known_equal(values: Values, left: Node, right: Node) -> bool:
    """Whether two expressions are known to be equal."""
    return values.equal(left, right) is True
