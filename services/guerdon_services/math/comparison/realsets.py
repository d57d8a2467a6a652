"""Answers as sets of real numbers: intervals, inequalities, unions, and sets with parts taken out."""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

from guerdon_services.math.arithmetic.survey import endless
from guerdon_services.math.arithmetic.values import Values
from guerdon_services.math.comparison.inequalities import solve
from guerdon_services.math.comparison.realline import (
    EVERYTHING,
    NOTHING,
    NotReal,
    Point,
    RealSet,
    difference,
    intersection,
    order,
    point,
    ray,
    same,
    singleton,
    span,
    union,
)
from guerdon_services.math.notation.tree import Number, symbols
from guerdon_services.math.reading.named import ALL_REALS, EMPTY
from guerdon_services.math.reading.shapes import (
    REALS,
    Labelled,
    Many,
    Ordered,
    Quantity,
    Relation,
    Restricted,
    Shape,
    Without,
    Words,
    is_interval,
    is_listed,
    literal,
)

#: Parts of one union or list; a longer one is compared part by part.
_MAX_PARTS = 200
_MAX_INTEGERS = 200
#: The least element of a domain of integers; that of the natural numbers is 0 for some and 1 for others.
_POSITIVE = frozenset(
    rf"{letter}{sign}" for letter in (r"\mathbbN", "N", r"\mathbbZ", "Z") for sign in ("+",)
)
_NATURAL, _WHOLE = frozenset({r"\mathbbN", "N"}), frozenset({r"\mathbbZ", "Z"})

#: Integers from the first to the second, both included; None where there is no end.
Run = tuple[int | None, int | None]


def same_sets(values: Values, answer: Shape, gold: Shape) -> bool | None:
    """Whether two answers are the same set of real numbers; None where one is no set that is known.

    Two intervals, and two collections of single values, are left to a comparison part by part: None.

    Raises:
        NeedsBalls: only ball arithmetic could tell, and `values` has none.
    """
    if not (_may_be_set(answer) and _may_be_set(gold)):
        return None
    if isinstance(answer, Restricted) or isinstance(gold, Restricted):
        return _same_integers(values, answer, gold)
    if isinstance(answer, Ordered) and isinstance(gold, Ordered):
        return None
    if _is_finite(answer) and _is_finite(gold):
        return None
    if answer == gold:
        return True
    given = real_set(values, answer)
    wanted = None if given is None else real_set(values, gold)
    return None if given is None or wanted is None else same(values, given, wanted)


def real_set(values: Values, shape: Shape) -> RealSet | None:
    """The set of real numbers that an answer is; None where it is none, or has parameters.

    A pair in round brackets counts as an interval here. Raises NeedsBalls.
    """
    try:
        return _read(values, shape)
    except NotReal:
        return None


def integers_in(values: Values, restricted: Restricted) -> tuple[int, ...] | None:
    """The integers of a set in ascending order; None where there are many, or 0 may be a natural number in it.

    Raises NeedsBalls.
    """
    try:
        runs = _runs(values, restricted)
    except NotReal:
        return None
    if restricted.domain in _NATURAL and _has_zero(runs):
        return None
    return _members(runs)


def _may_be_set(shape: Shape) -> bool:
    """A cheap look at what kind of shape it is."""
    if is_listed(shape):
        return any(_is_condition(item) for item in shape.items)
    return isinstance(shape, Ordered | Many | Without | Restricted | Relation | Labelled | Words)


def _is_finite(shape: Shape) -> bool:
    return isinstance(shape, Many) and shape.kind == "set"


def _is_condition(shape: Shape) -> bool:
    """Whether a part of a list can only be a condition: (1, 2) may be a pair, (1, 2] may not."""
    if isinstance(shape, Ordered):
        return is_interval(shape) and (
            (shape.left, shape.right) not in (("(", ")"), ("[", "]"))
            or any(isinstance(end, Quantity) and _end(end) for end in shape.items)
        )
    return isinstance(shape, Without) or (isinstance(shape, Relation) and set(shape.signs) != {"="})


def _end(quantity: Quantity) -> int:
    """1 or -1 for an infinite end, 0 for any other."""
    return endless(quantity.node)


def _read(values: Values, shape: Shape) -> RealSet:
    """Raises NotReal and NeedsBalls."""
    match shape:
        case Ordered():
            return _interval(values, shape)
        case Many("union", items):
            return union(values, *_parts(values, items))
        case Many("set", items):
            return union(values, *(_single(values, item) for item in _flat(items)))
        case Many():
            return _conditions(values, shape)
        case Without(whole, removed):
            return difference(values, _read(values, whole), union(values, *_parts(values, (removed,))))
        case Relation() if set(shape.signs) != {"="}:
            return _solved(values, shape)
        case Labelled(_, _, Ordered() | Many() | Without() as value):
            return _read(values, value)
        case Words(text) if text.lower() in EMPTY:
            return NOTHING
        case Words(text) if text.lower() in ALL_REALS:
            return EVERYTHING
        case _:
            raise NotReal


def _solved(values: Values, relation: Relation) -> RealSet:
    found = solve(values, relation)
    if found is None:
        raise NotReal
    return found


def _interval(values: Values, shape: Ordered) -> RealSet:
    match shape.items:
        case (Quantity() as low, Quantity() as high) if is_interval(shape):
            pass
        case _:
            raise NotReal
    closed = shape.left == "[", shape.right == "]"
    ends = _end(low), _end(high)
    if ends[0] > 0 or ends[1] < 0:
        raise NotReal
    if ends == (-1, 1):
        return EVERYTHING
    if ends[0]:
        return ray(point(values, high), up=False, closed=closed[1])
    if ends[1]:
        return ray(point(values, low), up=True, closed=closed[0])
    first, last = point(values, low), point(values, high)
    turn = order(values, first, last)
    if turn == 0 and all(closed):
        return singleton(first)
    if turn >= 0:
        raise NotReal
    return span(first, last, closed=closed)


def _flat(items: Sequence[Shape]) -> Iterator[Shape]:
    """The items, with those of bare lists and of sets in their place."""
    if len(items) > _MAX_PARTS:
        raise NotReal
    for item in items:
        if isinstance(item, Many) and item.kind != "union":
            yield from _flat(item.items)
        else:
            yield item


def _parts(values: Values, items: Sequence[Shape]) -> list[RealSet]:
    return [
        _single(values, item) if isinstance(item, Quantity) else _read(values, item) for item in _flat(items)
    ]


def _single(values: Values, shape: Shape) -> RealSet:
    """One number."""
    if not isinstance(shape, Quantity) or _end(shape):
        raise NotReal
    return singleton(point(values, shape))


def _conditions(values: Values, many: Many) -> RealSet:
    """Conditions on one number: "or" joins them, "and" intersects, a comma intersects if anything is left then."""
    items = many.items
    if len(items) > _MAX_PARTS or not any(map(_is_condition, items)) or len(_names(items)) > 1:
        raise NotReal
    if isinstance(items[0], Without) and all(isinstance(item, Quantity) for item in items[1:]):
        # x != 1, 2
        return difference(values, _read(values, items[0]), union(values, *_parts(values, items[1:])))
    given = [item for item in items if not isinstance(item, Labelled)]
    sets = [_read(values, item) for item in given]
    if many.kind == "list":
        joined = _listed(values, given, sets)
    else:
        joined = (union if many.kind == "or" else intersection)(values, *sets)
    single = union(values, *(_single(values, item.value) for item in items if isinstance(item, Labelled)))
    # A value beside a condition that it meets speaks of something else: a = 3, x > 2.
    if not single.is_empty and (many.kind == "and" or not intersection(values, joined, single).is_empty):
        raise NotReal
    return union(values, joined, single)


def _listed(values: Values, given: Sequence[Shape], sets: Sequence[RealSet]) -> RealSet:
    """Conditions between commas: x > 2, x < 5 is an interval, x < 2, x > 5 are two; x != a narrows the others."""
    holes = [part for item, part in zip(given, sets, strict=True) if _is_hole(item)]
    rest = [part for item, part in zip(given, sets, strict=True) if not _is_hole(item)]
    found = intersection(values, *rest)
    return intersection(values, union(values, *rest) if found.is_empty else found, *holes)


def _is_hole(shape: Shape) -> bool:
    """`x != a`, which always narrows what stands beside it."""
    return isinstance(shape, Without) and shape.whole == REALS


def _names(items: Sequence[Shape]) -> set[str]:
    """The variables that conditions name; an interval does not tell of which variable it speaks."""
    names: set[str] = set()
    for item in items:
        if isinstance(item, Labelled):
            names.add(item.label)
        elif isinstance(item, Ordered) and item.variable:
            names.add(item.variable)
        elif isinstance(item, Relation):
            names.update(*(symbols(part.node) for part in item.parts if isinstance(part, Quantity)))
    return names


# Integers


def _same_integers(values: Values, answer: Shape, gold: Shape) -> bool | None:
    """At least one side has only the integers of a set."""
    if isinstance(answer, Restricted) and isinstance(gold, Restricted):
        domains = answer.domain, gold.domain
        try:
            given, wanted = _runs(values, answer), _runs(values, gold)
        except NotReal:
            return None
        unsure = [domain in _NATURAL for domain in domains]
        if any(unsure) and not all(unsure) and (_has_zero(given) or _has_zero(wanted)):
            return None
        return given == wanted
    restricted, other = (answer, gold) if isinstance(answer, Restricted) else (gold, answer)
    assert isinstance(restricted, Restricted)
    found = integers_in(values, restricted)
    if found is None or not isinstance(other, Many):
        return None
    numbers = [literal(item.node) if isinstance(item, Quantity) else None for item in other.items]
    if not all(numbers):
        return None
    return {number.value for number in numbers if number} == set(found)


def _runs(values: Values, restricted: Restricted) -> list[Run]:
    """The integers of a set as ascending runs with gaps between them; 0 counts as a natural number.

    Raises NotReal and NeedsBalls.
    """
    if restricted.domain not in _POSITIVE | _NATURAL | _WHOLE:
        raise NotReal
    whole = _read(values, restricted.whole)
    below = [_floor(values, end) for end in whole.points]
    exact = [_is_integer(values, end, floor) for end, floor in zip(whole.points, below, strict=True)]
    runs: list[Run] = []
    for index, inside in enumerate(whole.between):
        first = below[index - 1] + 1 if index else None
        last = below[index] - exact[index] if index < len(below) else None
        if inside and (first is None or last is None or first <= last):
            runs.append((first, last))
        if index < len(below) and whole.at[index] and exact[index]:
            runs.append((below[index], below[index]))
    least = 1 if restricted.domain in _POSITIVE else 0 if restricted.domain in _NATURAL else None
    return _joined(_from(least, runs))


def _from(least: int | None, runs: list[Run]) -> Iterator[Run]:
    for first, last in runs:
        if least is None or (first is not None and first >= least):
            yield first, last
        elif last is None or last >= least:
            yield least, last


def _joined(runs: Iterator[Run]) -> list[Run]:
    joined: list[Run] = []
    for first, last in runs:
        previous = joined[-1][1] if joined else None
        if previous is not None and first == previous + 1:
            joined[-1] = joined[-1][0], last
        else:
            joined.append((first, last))
    return joined


def _members(runs: list[Run]) -> tuple[int, ...] | None:
    found: list[int] = []
    for first, last in runs:
        if first is None or last is None or len(found) + last - first >= _MAX_INTEGERS:
            return None
        found.extend(range(first, last + 1))
    return tuple(found)


def _has_zero(runs: list[Run]) -> bool:
    return any((first is None or first <= 0) and (last is None or last >= 0) for first, last in runs)


def _floor(values: Values, end: Point) -> int:
    low, high = math.floor(end.low), math.floor(end.high)
    if low == high:
        return low
    if high - low > 1:
        raise NotReal
    return low if order(values, end, _integer(high)) < 0 else high


def _is_integer(values: Values, end: Point, floor: int) -> bool:
    return order(values, end, _integer(floor)) == 0


def _integer(value: int) -> Point:
    node = Number(Fraction(value))
    return Point(Quantity(node), node.value, node.value)
