"""Exact values in square roots and i: a + b*sqrt(2) + c*i*sqrt(3) …, as combinations of roots of square-free numbers.

Those roots are linearly independent over the rational numbers, so two values are equal exactly when all their
coefficients are.
"""

from fractions import Fraction
from math import isqrt

from guerdon_services.math.arithmetic.exact import Budget, rational
from guerdon_services.math.notation.tree import Add, Call, Constant, Mul, Node, Number, Pow

#: Coefficients by radicand: n for sqrt(n), -n for i*sqrt(n), 1 for the rational part; square-free, none is 0.
Roots = dict[int, Fraction]

#: Terms of a value, bits of a coefficient, largest radicand before its squares are taken out, and its exponents.
_MAX_TERMS, _MAX_BITS, _MAX_RADICAND, _MAX_EXPONENT = 16, 2000, 10**8, 64

#: Steps to find the value of an exponent, such as -(1/2).
_EXPONENT_STEPS = 50


class Outside(Exception):
    """The value is none of this kind, or too long."""


def same(left: Node, right: Node) -> bool | None:
    """Whether two constants are equal; None when one of them is no short combination of square roots."""
    try:
        return _value(left) == _value(right)
    except Outside:
        return None


def _value(node: Node) -> Roots:
    match node:
        case Number(value):
            return {1: value} if value else {}
        case Constant("i"):
            return {-1: Fraction(1)}
        case Add(terms):
            return _sum([_value(term) for term in terms])
        case Mul(factors):
            product: Roots = {1: Fraction(1)}
            for factor in factors:
                product = _product(product, _value(factor))
            return product
        case Pow(base, Number(exponent)):
            return _power(_value(base), exponent)
        case Pow(base, Mul() as written):
            exponent = rational(written, Budget(_EXPONENT_STEPS))
            if exponent is None:
                raise Outside
            return _power(_value(base), exponent)
        case Call("root", (base, Number(degree))) if degree == 2:
            return _power(_value(base), Fraction(1, 2))
        case _:
            raise Outside


def _checked(found: Roots) -> Roots:
    kept = {radicand: factor for radicand, factor in found.items() if factor}
    if len(kept) > _MAX_TERMS or any(
        factor.numerator.bit_length() + factor.denominator.bit_length() > _MAX_BITS
        for factor in kept.values()
    ):
        raise Outside
    return kept


def _sum(terms: list[Roots]) -> Roots:
    found: Roots = {}
    for term in terms:
        for radicand, factor in term.items():
            found[radicand] = found.get(radicand, Fraction(0)) + factor
    return _checked(found)


def _product(one: Roots, other: Roots) -> Roots:
    found: Roots = {}
    for left, factor in one.items():
        for right, second in other.items():
            outside, radicand = _squarefree(abs(left) * abs(right))
            sign = -1 if left < 0 and right < 0 else 1
            radicand = -radicand if (left < 0) != (right < 0) else radicand
            found[radicand] = found.get(radicand, Fraction(0)) + sign * outside * factor * second
    return _checked(found)


def _power(base: Roots, exponent: Fraction) -> Roots:
    if exponent.denominator == 2:
        base, exponent = _square_root(base), exponent * 2
    if exponent.denominator != 1 or abs(exponent) > _MAX_EXPONENT:
        raise Outside
    if exponent < 0:
        base = _inverse(base)
    found: Roots = {1: Fraction(1)}
    for _ in range(abs(int(exponent))):
        found = _product(found, base)
    return found


def _square_root(square: Roots) -> Roots:
    """Of a rational number; sqrt(a/b) is sqrt(ab)/b."""
    if not square:
        return {}
    if set(square) != {1}:
        raise Outside
    value = square[1]
    outside, radicand = _squarefree(abs(value.numerator) * value.denominator)
    return {-radicand if value < 0 else radicand: Fraction(outside, value.denominator)}


def _inverse(value: Roots) -> Roots:
    """Of one term, or of two, whose conjugate makes the denominator rational."""
    if len(value) == 1:
        ((radicand, factor),) = value.items()
        return {radicand: 1 / (factor * radicand)}
    if len(value) != 2:
        raise Outside
    (kept, first), (turned, second) = value.items()
    conjugate = {kept: first, turned: -second}
    norm = _product(value, conjugate)
    if not norm:
        raise Outside
    return _product(conjugate, _inverse(norm))


def _squarefree(number: int) -> tuple[int, int]:
    """(a, b) with number = a*a*b and b without a square in it."""
    if number > _MAX_RADICAND:
        whole = isqrt(number)
        if whole * whole == number:
            return whole, 1
        raise Outside
    outside, divisor = 1, 2
    while divisor * divisor <= number:
        while number % (divisor * divisor) == 0:
            number //= divisor * divisor
            outside *= divisor
        divisor += 1
    return outside, number
