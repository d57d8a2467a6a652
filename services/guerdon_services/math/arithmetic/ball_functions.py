"""Functions of balls."""

import math
from collections.abc import Callable

from flint import acb, arb, ctx

from guerdon_services.math.arithmetic.exact import MAX_LOWER, Outside

Ball = arb | acb

_MAX_DEGREE = 1_000


class Unknown(Outside):
    """The value cannot be told at this precision, or not at all."""


class NotFinite(Unknown):
    """The value is infinite or undefined."""


def magnitude(value: arb) -> int | None:
    """The exponent of the power of 2 above the middle of a ball; None for 0."""
    middle = value.mid()
    if middle.is_zero():
        return None
    mantissa, exponent = middle.man_exp()
    return int(exponent) + abs(mantissa).bit_length()


def small(value: Ball) -> bool:
    """Whether a value is 0 as far as one can tell."""
    return value.contains(0) and value.abs_upper() < arb(2) ** -(ctx.prec // 2)


def real(value: Ball) -> arb:
    """The value of a real number. Raises Unknown for one that is not."""
    value = settled(value)
    if isinstance(value, acb):
        raise Unknown
    return value


def settled(value: Ball) -> Ball:
    """A value that is real as far as one can tell as a real one: it may lie on the edge of a function's branch."""
    return value.real if isinstance(value, acb) and small(value.imag) else value


def integer(value: Ball) -> int | None:
    """The whole number that a value is, as far as half of the bits can tell."""
    if isinstance(value, acb) or not value.is_finite() or not value.abs_upper() < arb(2) ** (ctx.prec // 2):
        return None
    if not value.rad() < arb(2) ** -(ctx.prec // 2):
        return None
    nearest = (value.mid() + arb(1) / 2).floor()
    return whole(nearest) if nearest.is_exact() and value.contains(nearest) else None


def whole(value: arb) -> int:
    """A ball that is an exact whole number as one; it must not be huge. FLINT's own way ends the process at times."""
    mantissa, exponent = value.man_exp()
    return int(mantissa) << int(exponent)


def integer_power(base: Ball, exponent: int) -> Ball:
    """An integer power. Raises Unknown for an exponent that is huge."""
    if exponent == -1:
        return 1 / base
    if exponent.bit_length() > 256:
        raise Unknown
    return base**exponent


def real_root(value: arb, degree: int) -> arb:
    """A root of a number that is not negative."""
    if degree == 2:
        return value.sqrt()
    if degree > _MAX_DEGREE:
        return arb(0) if value.is_zero() else (value.log() / degree).exp()
    return value.root(degree)


def _floor(value: arb) -> arb:
    exact = integer(value)
    if exact is not None:
        return arb(exact)
    if not value.abs_upper() < arb(2) ** ctx.prec:
        raise Unknown
    found = value.floor()
    if not found.is_exact():
        raise Unknown
    return found


def _sign(value: arb) -> arb:
    if value > 0:
        return arb(1)
    if value < 0:
        return arb(-1)
    if not small(value):
        raise Unknown
    return arb(0)


def _mod(values: list[arb]) -> arb:
    if values[1].contains(0):
        raise NotFinite
    return values[0] - values[1] * _floor(values[0] / values[1])


def _integers(values: list[arb]) -> list[int]:
    found = [integer(value) for value in values]
    known = [value for value in found if value is not None]
    if len(known) != len(found):
        raise Unknown
    return known


def _double_factorial(values: list[Ball]) -> Ball:
    (value,) = _integers([real(value) for value in values])
    if value < -1:
        raise NotFinite
    half = (value + 1) // 2
    power = arb(2) ** half
    if value % 2 == 0:
        return power * arb(half + 1).gamma()
    return arb(2 * half + 1).gamma() / (power * arb(half + 1).gamma())


def _binomial(values: list[Ball]) -> Ball:
    above, below = values
    lower = integer(below)
    if lower is not None and lower <= MAX_LOWER:
        product: Ball = arb(1 if lower >= 0 else 0)
        for index in range(lower):
            product = product * (above - index) / (index + 1)
        return product
    return (above + 1).gamma() * (below + 1).rgamma() * (above - below + 1).rgamma()


def _arg(value: Ball) -> arb:
    if isinstance(value, acb):
        return value.arg()
    return arb.pi() if _sign(value) < 0 else arb(0)


#: Functions that are real for all real numbers where they are finite.
ENTIRE: dict[str, Callable[[Ball], Ball]] = {
    "sin": lambda x: x.sin(),
    "cos": lambda x: x.cos(),
    "tan": lambda x: x.tan(),
    "cot": lambda x: x.cot(),
    "sec": lambda x: x.sec(),
    "csc": lambda x: x.csc(),
    "sinh": lambda x: x.sinh(),
    "cosh": lambda x: x.cosh(),
    "tanh": lambda x: x.tanh(),
    "coth": lambda x: x.coth(),
    "sech": lambda x: x.sech(),
    "csch": lambda x: x.csch(),
    "atan": lambda x: x.atan(),
    "asinh": lambda x: x.asinh(),
    "exp": lambda x: x.exp(),
    "abs": lambda x: abs(x),
    "re": lambda x: x.real,
    "im": lambda x: x.imag,
    "conjugate": lambda x: x.conjugate() if isinstance(x, acb) else x,
    "arg": _arg,
}
#: Functions that are not: where they are real for certain, where they are not for certain, and the function.
REAL_WITHIN: dict[str, tuple[Callable[[arb], bool], Callable[[arb], bool], Callable[[Ball], Ball]]] = {
    "asin": (lambda x: abs(x) <= 1, lambda x: abs(x) > 1, lambda x: x.asin()),
    "acos": (lambda x: abs(x) <= 1, lambda x: abs(x) > 1, lambda x: x.acos()),
    "acosh": (lambda x: x >= 1, lambda x: x < 1, lambda x: x.acosh()),
    "atanh": (lambda x: abs(x) < 1, lambda x: abs(x) > 1, lambda x: x.atanh()),
    "ln": (lambda x: x > 0, lambda x: x < 0, lambda x: x.log()),
}
#: Functions that the gamma function gives.
GAMMA: dict[str, Callable[[list[Ball]], Ball]] = {
    "factorial": lambda values: (values[0] + 1).gamma(),
    "gamma": lambda values: values[0].gamma(),
    "double_factorial": _double_factorial,
    "binomial": _binomial,
}
#: Functions of real numbers only.
PIECEWISE: dict[str, Callable[[list[arb]], arb]] = {
    "floor": lambda values: _floor(values[0]),
    "ceil": lambda values: -_floor(-values[0]),
    "sign": lambda values: _sign(values[0]),
    "gcd": lambda values: arb(math.gcd(*_integers(values))),
    "lcm": lambda values: arb(math.lcm(*_integers(values))),
    "mod": _mod,
    "max": lambda values: values[0].max(values[1]),
    "min": lambda values: values[0].min(values[1]),
}
