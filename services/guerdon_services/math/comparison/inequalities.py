"""Inequalities of one variable: polynomials, their quotients, and absolute values of these, solved exactly."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import islice, pairwise, product
from math import gcd, isqrt, lcm
from typing import Any, NamedTuple, cast

from guerdon_services.math.arithmetic.values import Values
from guerdon_services.math.comparison.realline import Point, RealSet, simplified
from guerdon_services.math.notation.tree import (
    Add,
    Call,
    Constant,
    Mul,
    Node,
    Number,
    Pow,
    Symbol,
    negated,
    quotient,
    root,
    symbols,
    walk,
)
from guerdon_services.math.reading.shapes import Quantity, Relation

#: Size of what is solved: relations of a chain, nodes, absolute values, degree, bits of a coefficient.
_MAX_SIGNS, _MAX_NODES, _MAX_ABSOLUTES, _MAX_DEGREE, _MAX_BITS = 4, 200, 4, 12, 256
#: Different polynomials whose roots are looked for.
_MAX_POLYNOMIALS = 60
#: Bits to which roots are known at first, and beyond which two of them are not told apart.
_FIRST_BITS, _LAST_BITS = 64, 16_384
_HOLDS = {"<": (-1,), ">": (1,), r"\leq": (-1, 0), r"\geq": (0, 1), "=": (0,), r"\neq": (-1, 1)}

#: Coefficients from the constant one up, without zeros at the end; none for 0.
Polynomial = tuple[Fraction, ...]
_ONE: Polynomial = (Fraction(1),)


class Unsolved(Exception):
    """The relation is of another kind, or too large."""


class Ratio(NamedTuple):
    """A product of polynomials over another one; factors are not multiplied, so that their roots stay in sight."""

    above: tuple[Polynomial, ...]
    below: tuple[Polynomial, ...] = ()

    def sign(self, place: Fraction) -> int:
        """The sign at a place where nothing below is 0."""
        found = 1
        for factor in (*self.above, *self.below):
            value = _value(factor, place)
            found *= (value > 0) - (value < 0)
        return found


def solve(values: Values, relation: Relation) -> RealSet | None:
    """The real numbers for which a chain of relations holds; None where it cannot be solved here.

    Raises:
        NeedsBalls: a polynomial must be factored by python-flint, and `values` has none.
    """
    try:
        return _Solver(values, relation).solution()
    except Unsolved:
        return None


class _Solver:
    """Finds the numbers at which something may change, and looks at each of them and between them."""

    def __init__(self, values: Values, relation: Relation) -> None:
        if len(relation.signs) > _MAX_SIGNS or not set(relation.signs) <= set(_HOLDS):
            raise Unsolved
        self._values = values
        self._signs = relation.signs
        sides = [_plain(part) for part in relation.parts]
        nodes = list(islice((node for side in sides for node in walk(side)), _MAX_NODES + 1))
        if len(nodes) > _MAX_NODES or len({name for side in sides for name in symbols(side)}) != 1:
            raise Unsolved
        absolutes = [
            node
            for node in dict.fromkeys(nodes)
            if isinstance(node, Call) and node.name == "abs" and symbols(node)
        ]
        if len(absolutes) > _MAX_ABSOLUTES:
            raise Unsolved
        self._pieces = [
            _Piece(values, sides, dict(zip(absolutes, signs, strict=True)))
            for signs in product((1, -1), repeat=len(absolutes))
        ]

    def solution(self) -> RealSet:
        """The set. Raises Unsolved and NeedsBalls."""
        critical = {factor for piece in self._pieces for factor in piece.factors() if len(factor) > 1}
        if len(critical) > _MAX_POLYNOMIALS:
            raise Unsolved
        roots = {root for factor in critical for root in _roots(self._values, _primitive(factor))}
        points, places = _ordered(roots)
        at: list[bool] = []
        between: list[bool] = []
        piece, signs = self._near(places[0])
        between.append(piece.is_defined() and self._holds(signs))
        for (found, _), place in zip(points, places[1:], strict=True):
            # What holds on the left holds here, by continuity, but for what is 0 here.
            here = [
                0 if found.is_root(gap.above) else sign for gap, sign in zip(piece.gaps, signs, strict=True)
            ]
            at.append(piece.is_defined(found) and self._holds(here))
            piece, signs = self._near(place)
            between.append(piece.is_defined() and self._holds(signs))
        return simplified([point for _, point in points], at, between)

    def _near(self, place: Fraction) -> tuple["_Piece", list[int]]:
        """The piece that a place is in, and the signs of the differences between neighbouring sides."""
        piece = next((piece for piece in self._pieces if piece.covers(place)), None)
        if piece is None:
            raise Unsolved
        return piece, [gap.sign(place) for gap in piece.gaps]

    def _holds(self, signs: Iterable[int]) -> bool:
        return all(sign in _HOLDS[wanted] for sign, wanted in zip(signs, self._signs, strict=True))


class _Piece:
    """The sides of a chain as quotients of polynomials, where the absolute values have given signs."""

    def __init__(self, values: Values, sides: Sequence[Node], signs: dict[Call, int]) -> None:
        self._values = values
        self._signs = signs
        #: What was divided by; where one of these is 0, nothing holds.
        self._divisors: list[Polynomial] = []
        self._inside = [_scaled(self._ratio(call.arguments[0]), sign) for call, sign in signs.items()]
        ratios = [self._ratio(side) for side in sides]
        self.gaps = [
            left if right.above == ((),) else _sum((left, _scaled(right, -1)))
            for left, right in pairwise(ratios)
        ]
        for ratio in (*self._inside, *ratios):
            self._divisors.extend(ratio.below)

    def factors(self) -> list[Polynomial]:
        """The polynomials at whose roots something may change."""
        return [*self._divisors, *(factor for ratio in (*self._inside, *self.gaps) for factor in ratio.above)]

    def covers(self, place: Fraction) -> bool:
        """Whether the absolute values have these signs at a place that is no root."""
        return all(ratio.sign(place) >= 0 for ratio in self._inside)

    def is_defined(self, root: "_Root | None" = None) -> bool:
        """Whether nothing is divided by 0, at a root or between roots."""
        if root is None:
            return () not in self._divisors
        return not root.is_root(self._divisors)

    def _ratio(self, node: Node) -> Ratio:
        """Raises Unsolved."""
        match node:
            case Number(value):
                return Ratio((_checked((value,)),))
            case Symbol():
                return Ratio(((Fraction(0), Fraction(1)),))
            case Add(terms):
                return _sum([self._ratio(term) for term in terms])
            case Mul(factors):
                parts = [self._ratio(factor) for factor in factors]
                return _checked_ratio(
                    Ratio(
                        tuple(factor for part in parts for factor in part.above),
                        tuple(factor for part in parts for factor in part.below),
                    )
                )
            case Pow(base, exponent) if symbols(base):
                return self._power(base, exponent)
            case Call("abs", (inside,)) if node in self._signs:
                return _scaled(self._ratio(inside), self._signs[node])
            case _:
                value = None if symbols(node) else self._values.rational(node)
                if value is None:
                    raise Unsolved
                return Ratio((_checked((value,)),))

    def _power(self, base: Node, exponent: Node) -> Ratio:
        power = exponent.value if isinstance(exponent, Number) else self._values.rational(exponent)
        if power is None or power.denominator != 1 or abs(power) > _MAX_DEGREE:
            raise Unsolved
        above, below = self._ratio(base)
        self._divisors.extend(below)
        if power < 0:
            self._divisors.extend(above)
            above, below = below or (_ONE,), above
        times = abs(int(power))
        return _checked_ratio(Ratio(above * times or (_ONE,), below * times))


class _Root(NamedTuple):
    """The root of a linear polynomial, or the lower (-1) or upper (1) one of a quadratic without rational roots."""

    factor: tuple[int, ...]
    sign: int = 0

    def is_root(self, polynomials: Iterable[Polynomial]) -> bool:
        """Whether one of the polynomials is 0 here."""
        return any(not _remainder(polynomial, self.factor) for polynomial in polynomials)

    def bounds(self, bits: int) -> tuple[Fraction, Fraction]:
        """Bounds of the root, the more bits the closer."""
        if not self.sign:
            value = Fraction(-self.factor[0], self.factor[1])
            return value, value
        c, b, a = self.factor
        size = isqrt((b * b - 4 * a * c) << 2 * bits)
        ends = sorted(self.sign * end for end in (size, size + 1))
        low, high = (Fraction(end - (b << bits), 2 * a << bits) for end in ends)
        return low, high

    def node(self) -> Node:
        """The root as an expression."""
        if not self.sign:
            return _numeral(Fraction(-self.factor[0], self.factor[1]))
        c, b, a = self.factor
        square = Fraction(b * b - 4 * a * c) if b else Fraction(-c, a)
        radical = root(_numeral(square), Number(Fraction(2)))
        signed = radical if self.sign > 0 else negated(radical)
        return quotient(Add((_numeral(Fraction(-b)), signed)), _numeral(Fraction(2 * a))) if b else signed


def _plain(part: object) -> Node:
    """A side that is a value without a unit. Raises Unsolved."""
    if isinstance(part, Quantity) and part == Quantity(part.node):
        return part.node
    raise Unsolved


def _ordered(roots: Iterable[_Root]) -> tuple[list[tuple[_Root, Point]], list[Fraction]]:
    """Roots in ascending order, and a place before, between and after them. Raises Unsolved."""
    known = list(roots)
    bits = _FIRST_BITS
    while bits <= _LAST_BITS:
        found = sorted(((*root.bounds(bits), root) for root in known), key=lambda bound: bound[0])
        if all(left[1] < right[0] for left, right in pairwise(found)):
            places = [(left[1] + right[0]) / 2 for left, right in pairwise(found)]
            places = [found[0][0] - 1, *places, found[-1][1] + 1] if found else [Fraction(0)]
            return [(root, Point(Quantity(root.node()), low, high)) for low, high, root in found], places
        bits *= 4
    raise Unsolved


def _roots(values: Values, polynomial: tuple[int, ...]) -> list[_Root]:
    """Real roots of a polynomial that is not constant. Raises Unsolved and NeedsBalls."""
    match polynomial:
        case (_, _):
            return [_Root(polynomial)]
        case (c, b, a):
            return _roots_of_quadratic(a, b, c)
        case _:
            return [root for factor in _factored(values, polynomial) for root in _roots(values, factor)]


def _roots_of_quadratic(a: int, b: int, c: int) -> list[_Root]:
    square = b * b - 4 * a * c
    if square < 0:
        return []
    size = isqrt(square)
    if size * size != square:
        return [_Root((c, b, a), -1), _Root((c, b, a), 1)]
    ends = {Fraction(-b - size, 2 * a), Fraction(-b + size, 2 * a)}
    return [_Root((-end.numerator, end.denominator)) for end in ends]


def _factored(values: Values, polynomial: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The factors of degree 1 and 2. Raises Unsolved where another one has real roots, and NeedsBalls."""
    # Any value that only balls have tells whether python-flint may be loaded.
    values.decimal(Constant("pi"))
    from flint import fmpz_poly

    found: list[tuple[int, ...]] = []
    for factor, _ in fmpz_poly(list(polynomial)).factor()[1]:
        if factor.degree() > 2:
            places = cast("list[tuple[Any, int]]", factor.complex_roots())
            if any(place.imag == 0 for place, _ in places):
                raise Unsolved
        else:
            found.append(_primitive([Fraction(int(value)) for value in factor.coeffs()]))
    return found


def _numeral(value: Fraction) -> Number:
    """A number as the reader of answers has it, so that the same root is often the same expression."""
    return Number(value, None, len(str(abs(value.numerator))) if value.denominator == 1 else 0)


# Polynomials


def _checked(polynomial: Iterable[Fraction]) -> Polynomial:
    """Without zeros at the end. Raises Unsolved for large ones."""
    found = list(polynomial)
    while found and not found[-1]:
        found.pop()
    bits = max(
        (max(value.numerator.bit_length(), value.denominator.bit_length()) for value in found), default=0
    )
    if len(found) > _MAX_DEGREE + 1 or bits > _MAX_BITS:
        raise Unsolved
    return tuple(found)


def _checked_ratio(ratio: Ratio) -> Ratio:
    """With its constant factors made one. Raises Unsolved for high degrees."""
    if sum(len(factor) - 1 for part in ratio for factor in part if factor) > _MAX_DEGREE:
        raise Unsolved
    if () in ratio.above:
        return ratio._replace(above=((),))
    constant = Fraction(1)
    for factor in ratio.above:
        if len(factor) == 1:
            constant = _checked((constant * factor[0],))[0]
    rest = tuple(factor for factor in ratio.above if len(factor) > 1)
    return ratio._replace(above=rest if constant == 1 and rest else ((constant,), *rest))


def _scaled(ratio: Ratio, sign: int) -> Ratio:
    return ratio if sign == 1 else _checked_ratio(Ratio(((Fraction(sign),), *ratio.above), ratio.below))


def _sum(ratios: Sequence[Ratio]) -> Ratio:
    """Raises Unsolved."""
    below = tuple(factor for ratio in ratios for factor in ratio.below)
    above: Polynomial = ()
    for index, ratio in enumerate(ratios):
        others = (factor for place, other in enumerate(ratios) if place != index for factor in other.below)
        term = _expanded((*ratio.above, *others))
        longer, shorter = (term, above) if len(term) > len(above) else (above, term)
        above = _checked(value + (shorter[i] if i < len(shorter) else 0) for i, value in enumerate(longer))
    return Ratio((above,), below)


def _expanded(factors: Iterable[Polynomial]) -> Polynomial:
    """The product. Raises Unsolved."""
    found = _ONE
    for factor in factors:
        values = [Fraction(0)] * max(len(found) + len(factor) - 1, 0)
        for i, left in enumerate(found):
            for j, right in enumerate(factor):
                values[i + j] += left * right
        found = _checked(values)
    return found


def _value(polynomial: Polynomial, place: Fraction) -> Fraction:
    found = Fraction(0)
    for coefficient in reversed(polynomial):
        found = found * place + coefficient
    return found


def _remainder(polynomial: Polynomial, divisor: Sequence[int]) -> Polynomial:
    """What division leaves."""
    rest = list(polynomial)
    while len(rest) >= len(divisor):
        factor = rest.pop() / divisor[-1]
        for index in range(1, len(divisor)):
            rest[-index] -= factor * divisor[-1 - index]
    return tuple(rest) if any(rest) else ()


def _primitive(polynomial: Sequence[Fraction]) -> tuple[int, ...]:
    """The multiple with coprime integer coefficients, the highest one positive."""
    scale = lcm(*(value.denominator for value in polynomial))
    whole = [int(value * scale) for value in polynomial]
    divisor = gcd(*whole) * (1 if whole[-1] > 0 else -1)
    return tuple(value // divisor for value in whole)
