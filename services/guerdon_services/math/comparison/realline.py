"""Sets of real numbers that are made of finitely many points and intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from guerdon_services.math.arithmetic.bounds import bounds
from guerdon_services.math.arithmetic.survey import survey
from guerdon_services.math.arithmetic.values import Values
from guerdon_services.math.comparison.quantities import same_quantity
from guerdon_services.math.notation.tree import Number
from guerdon_services.math.reading.shapes import Quantity

#: Nodes of an end, and of one that is bounded here.
_MAX_NODES, _MAX_SHORT = 5000, 40


class NotReal(Exception):
    """What was read is no set of real numbers, or the order of its ends cannot be told."""


class Point(NamedTuple):
    """A real number with bounds, which are the number itself where it is rational."""

    quantity: Quantity
    low: Fraction
    high: Fraction


@dataclass(frozen=True, slots=True)
class RealSet:
    """Membership of ascending points (`at`) and of the open gaps before, between and after them (`between`).

    No point can be left out: its own membership or that of a gap beside it differs from the rest.
    """

    points: tuple[Point, ...]
    at: tuple[bool, ...]
    between: tuple[bool, ...]

    @property
    def is_empty(self) -> bool:
        """Whether it has no element."""
        return not self.points and not self.between[0]


NOTHING, EVERYTHING = RealSet((), (), (False,)), RealSet((), (), (True,))


def simplified(points: Sequence[Point], at: Sequence[bool], between: Sequence[bool]) -> RealSet:
    """The set of these ascending points and gaps, without the points at which nothing changes."""
    kept: list[int] = []
    gaps = [between[0]]
    for index, inside in enumerate(at):
        if not gaps[-1] == inside == between[index + 1]:
            kept.append(index)
            gaps.append(between[index + 1])
    return RealSet(tuple(points[index] for index in kept), tuple(at[index] for index in kept), tuple(gaps))


def point(values: Values, quantity: Quantity) -> Point:
    """A constant as a point.

    Raises:
        NotReal: it is no real constant, or no bounds of it are known.
        NeedsBalls: only ball arithmetic can bound it.
    """
    node = quantity.node
    if quantity.percent:
        # 50% stands for 50 or for a half, which only a comparison of single values can weigh.
        raise NotReal
    if isinstance(node, Number):
        return Point(quantity, node.value, node.value)
    seen = survey((node,), _MAX_NODES)
    if seen.names or seen.infinite or seen.nodes > _MAX_NODES:
        raise NotReal
    value = values.rational(node)
    if value is not None:
        return Point(quantity, value, value)
    found = bounds(node) if seen.nodes <= _MAX_SHORT else None
    if found is None:
        ball = values.decimal(node)
        if ball is None:
            raise NotReal
        found = ball[0] - ball[1], ball[0] + ball[1]
    return Point(quantity, *found)


def singleton(value: Point) -> RealSet:
    """One number."""
    return RealSet((value,), (True,), (False, False))


def ray(end: Point, *, up: bool, closed: bool) -> RealSet:
    """All numbers above or below an end."""
    return RealSet((end,), (closed,), (not up, up))


def span(low: Point, high: Point, *, closed: tuple[bool, bool]) -> RealSet:
    """The numbers between two different ends."""
    return RealSet((low, high), closed, (False, True, False))


def order(values: Values, one: Point, other: Point) -> int:
    """-1 where one number is below the other, 1 above, 0 for the same number.

    Raises:
        NotReal: that cannot be told.
        NeedsBalls: only ball arithmetic can tell.
    """
    if one.high < other.low:
        return -1
    if one.low > other.high:
        return 1
    if one.low == one.high and other.low == other.high:
        return 0
    found = values.compare(one.quantity.node, other.quantity.node)
    if found is None:
        raise NotReal
    return found


def combined(values: Values, one: RealSet, other: RealSet, keep: Callable[[bool, bool], bool]) -> RealSet:
    """The numbers for whose membership in the two sets `keep` is true.

    Raises:
        NotReal: the order of the ends cannot be told.
        NeedsBalls: only ball arithmetic can tell it.
    """
    points: list[Point] = []
    at: list[bool] = []
    between = [keep(one.between[0], other.between[0])]
    i = j = 0
    while i < len(one.points) or j < len(other.points):
        turn = _turn(values, one, i, other, j)
        point = one.points[i] if turn <= 0 else other.points[j]
        in_one = one.at[i] if turn <= 0 else one.between[i]
        in_other = other.at[j] if turn >= 0 else other.between[j]
        i += turn <= 0
        j += turn >= 0
        inside, after = keep(in_one, in_other), keep(one.between[i], other.between[j])
        if not between[-1] == inside == after:
            points.append(point)
            at.append(inside)
            between.append(after)
    return RealSet(tuple(points), tuple(at), tuple(between))


def _turn(values: Values, one: RealSet, i: int, other: RealSet, j: int) -> int:
    """Which set has the next point: -1 the one, 1 the other, 0 both."""
    if i == len(one.points):
        return 1
    return -1 if j == len(other.points) else order(values, one.points[i], other.points[j])


def union(values: Values, *sets: RealSet) -> RealSet:
    """What is in any of the sets. Raises NotReal and NeedsBalls."""
    return _gathered(values, sets, bool.__or__) if sets else NOTHING


def intersection(values: Values, *sets: RealSet) -> RealSet:
    """What is in all of the sets. Raises NotReal and NeedsBalls."""
    return _gathered(values, sets, bool.__and__) if sets else EVERYTHING


def difference(values: Values, one: RealSet, other: RealSet) -> RealSet:
    """What is in one set and not in the other. Raises NotReal and NeedsBalls."""
    return combined(values, one, other, bool.__gt__)


def complement(one: RealSet) -> RealSet:
    """What is not in the set."""
    return RealSet(
        one.points, tuple(not inside for inside in one.at), tuple(not inside for inside in one.between)
    )


def _gathered(values: Values, sets: Sequence[RealSet], keep: Callable[[bool, bool], bool]) -> RealSet:
    # Neighbours first, so that the work for n sets grows with n log n.
    while len(sets) > 1:
        pairs = [combined(values, sets[i], sets[i + 1], keep) for i in range(0, len(sets) - 1, 2)]
        sets = [*pairs, sets[-1]] if len(sets) % 2 else pairs
    return sets[0]


def same(values: Values, answer: RealSet, gold: RealSet) -> bool:
    """Whether two sets agree; their ends are compared as single values are, so decimals may be rounded ones."""
    return (
        answer.at == gold.at
        and answer.between == gold.between
        and all(
            given == wanted or same_quantity(values, given.quantity, wanted.quantity)
            for given, wanted in zip(answer.points, gold.points, strict=True)
        )
    )
