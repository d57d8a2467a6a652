"""Rational bounds of short real constants, to tell apart what differs without ball arithmetic."""

from fractions import Fraction
from math import isqrt

from guerdon_services.math.notation.tree import Add, Call, Constant, Mul, Node, Number, Pow

#: Bits of a bound, and bits to which roots are known.
_MAX_BITS, _ROOT_BITS = 1000, 96
_MAX_EXPONENT = 6
_NAMED = {
    "pi": Fraction(31415926535897932384626433832795028841971, 10**40),
    "e": Fraction(27182818284590452353602874713526624977572, 10**40),
}
_ULP = Fraction(1, 10**40)


class NoBounds(Exception):
    """The constant is no real one that is bounded here."""


def bounds(node: Node) -> tuple[Fraction, Fraction] | None:
    """Bounds of a short real constant made of numbers, pi, e, powers and square roots; None for any other."""
    try:
        return _bounds(node)
    except NoBounds:
        return None


def _bounds(node: Node) -> tuple[Fraction, Fraction]:
    """Raises NoBounds."""
    match node:
        case Number(value):
            found = value, value
        case Constant(name) if name in _NAMED:
            found = _NAMED[name], _NAMED[name] + _ULP
        case Add(terms):
            ends = [_bounds(term) for term in terms]
            found = sum((end[0] for end in ends), Fraction(0)), sum((end[1] for end in ends), Fraction(0))
        case Mul(factors):
            found = Fraction(1), Fraction(1)
            for factor in factors:
                found = _product(found, _bounds(factor))
        case Pow(base, exponent):
            found = _power(_bounds(base), _bounds(exponent))
        case Call("root", (base, Number(degree))) if degree == 2:
            found = _square_root(_bounds(base))
        case _:
            raise NoBounds
    if max(end.numerator.bit_length() + end.denominator.bit_length() for end in found) > _MAX_BITS:
        raise NoBounds
    return found


def _product(one: tuple[Fraction, Fraction], other: tuple[Fraction, Fraction]) -> tuple[Fraction, Fraction]:
    corners = [left * right for left in one for right in other]
    return min(corners), max(corners)


def _power(
    base: tuple[Fraction, Fraction], exponents: tuple[Fraction, Fraction]
) -> tuple[Fraction, Fraction]:
    exponent, high = exponents
    if exponent != high:
        raise NoBounds
    if exponent == Fraction(1, 2):
        return _square_root(base)
    if exponent.denominator != 1 or abs(exponent) > _MAX_EXPONENT:
        raise NoBounds
    if exponent < 0:
        if base[0] <= 0 <= base[1]:
            raise NoBounds
        base = 1 / base[1], 1 / base[0]
    found = Fraction(1), Fraction(1)
    for _ in range(abs(int(exponent))):
        found = _product(found, base)
    return found


def _square_root(square: tuple[Fraction, Fraction]) -> tuple[Fraction, Fraction]:
    if square[0] < 0:
        raise NoBounds
    low, high = (isqrt((end.numerator << 2 * _ROOT_BITS) // end.denominator) for end in square)
    return Fraction(low, 1 << _ROOT_BITS), Fraction(high + 1, 1 << _ROOT_BITS)
