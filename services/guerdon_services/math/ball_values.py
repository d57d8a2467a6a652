"""Values of expressions as balls: intervals of real numbers, or rectangles of complex ones, with proven bounds."""

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from hashlib import blake2b

from flint import acb, arb, ctx, fmpq

from guerdon_services.math import exact
from guerdon_services.math.tree import Add, Apply, Bound, Call, Constant, Mul, Node, Number, Pow, Symbol

Ball = arb | acb

#: Terms of a sum or a product that are evaluated one by one.
_MAX_TERMS = 3_000
#: Steps of one evaluation; one takes about half a microsecond at the lowest precision.
_STEPS = 80_000
#: Decimal places of the arguments that an unknown function tells apart.
_PLACES = 25
_MAX_DEGREE = 1_000
_MAX_LOWER = 400


class Unknown(Exception):
    """The value cannot be told at this precision, or not at all."""


class NotFinite(Unknown):
    """The value is infinite or undefined."""


class Evaluator:
    """Evaluates expressions at the current precision; its budget of steps is for all of them together."""

    def __init__(self, point: Callable[[str], arb]) -> None:
        #: Bits that the numbers in the expressions and their values take up before and after the binary point.
        self.size = 0
        #: Whether a real function left the real numbers.
        self.left_reals = False
        #: Whether a sum, an integral or a limit was taken for an unknown value.
        self.opaque = False
        #: Whether an unknown function was.
        self.unknown = False
        self._point = point
        self._local: dict[str, arb] = {}
        self._depth = 0
        self._exact = exact.Evaluator(bits=256, steps=20_000)
        self._steps = _STEPS
        scale = max(1.0, ctx.prec / 256)
        self._simple = 1 + int(scale) // 4
        self._costly = int(6 * scale**1.5)
        self._gamma = int(6 * scale**2)

    def pair(self, left: Node, right: Node) -> tuple[Ball, Ball]:
        """The values of two expressions; the larger size counts. Raises Unknown."""
        first = self.value(left)
        size, self.size = self.size, 0
        second = self.value(right)
        self.size = max(size, self.size)
        return first, second

    def value(self, node: Node) -> Ball:
        """The value of an expression. Raises Unknown."""
        self._charge(self._simple)
        if isinstance(node, Number):
            return self._number(node.value)
        if isinstance(node, Symbol):
            self.size += 4
            local = self._local.get(node.name)
            return self._point(node.name) if local is None else local
        if isinstance(node, Add):
            return self._sum(self.value(term) for term in node.terms)
        if isinstance(node, Mul):
            product = self.value(node.factors[0])
            for factor in node.factors[1:]:
                product = product * self.value(factor)
            return product
        if isinstance(node, Pow):
            return self._kept(self._pow(node))
        if isinstance(node, Call):
            self._charge(self._costly)
            return self._kept(self._call(node.name, [self.value(part) for part in node.arguments]))
        if isinstance(node, Constant):
            return _constant(node.name)
        if isinstance(node, Apply):
            self.unknown = True
            parts = [node.name, *[_text(self.value(argument)) for argument in node.arguments]]
            return seeded(parts, 1, 9)
        return self._bound(node)

    def _charge(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise Unknown

    def _number(self, value: Fraction) -> arb:
        above, below = value.numerator, value.denominator
        self.size += above.bit_length() + below.bit_length() - 1
        return arb(above) if below == 1 else arb(fmpq(above, below))

    def _sum(self, values: Iterable[Ball]) -> Ball:
        # Of the terms, the longest one counts.
        total: Ball = arb(0)
        before, longest, count = self.size, 0, 0
        self.size = 0
        for value in values:
            total = total + value
            longest = max(longest, self.size)
            self.size = 0
            count += 1
        self.size = before + longest + count.bit_length()
        return total

    def _kept(self, value: Ball) -> Ball:
        """A value, its length counted."""
        if not value.is_finite():
            raise NotFinite
        if isinstance(value, acb):
            if not value.imag.is_zero():
                self.size += abs(magnitude(value.abs_lower()) or 0)
                return value
            value = value.real
        if not value.contains(0):
            self.size += abs(magnitude(value) or 0)
        return value

    def _pow(self, node: Pow) -> Ball:
        if isinstance(node.exponent, Number):
            exponent = node.exponent.value
        else:
            self._charge(self._costly)
            try:
                exponent = self._exact.value(node.exponent)
            except exact.Outside:
                return self._general_power(node)
        base = self.value(node.base)
        if exponent.denominator == 1:
            return _integer_power(base, exponent.numerator)
        self._charge(self._costly)
        self.size += exponent.numerator.bit_length() + exponent.denominator.bit_length()
        return self._fractional_power(base, exponent.numerator, exponent.denominator)

    def _general_power(self, node: Pow) -> Ball:
        exponent = self.value(node.exponent)
        if node.base == Constant("e"):
            return exponent.exp()
        base = self.value(node.base)
        if isinstance(exponent, arb) and exponent.is_integer() and exponent.abs_upper() < 1 << 62:
            return _integer_power(base, int(exponent.unique_fmpz() or 0))
        if isinstance(base, arb):
            if base > 0:
                return base**exponent
            if base.is_zero() and isinstance(exponent, arb) and exponent > 0:
                return base
        if base.contains(0):
            raise Unknown
        self.left_reals |= isinstance(exponent, arb)
        return acb(base) ** exponent

    def _fractional_power(self, base: Ball, above: int, below: int) -> Ball:
        if isinstance(base, acb):
            return (base.sqrt() if below == 2 else acb(base) ** arb(fmpq(1, below))) ** above
        if base.contains(0):
            if above < 0:
                raise NotFinite
            reach = _real_root(base.abs_upper(), below) ** above
            around = arb(0, reach.abs_upper())
            return base if base.is_zero() else around if below % 2 else acb(around, around)
        if base > 0:
            return _real_root(base, below) ** above
        if below % 2:
            return (-_real_root(-base, below)) ** above
        self.left_reals = True
        return (acb(base).sqrt() if below == 2 else acb(base) ** arb(fmpq(1, below))) ** above

    def _bound(self, node: Bound) -> Ball:
        if node.kind in ("sum", "prod") and node.low is not None and node.high is not None:
            try:
                low, high = integer(self.value(node.low)), integer(self.value(node.high))
            except Unknown:
                low = high = None
            if low is not None and high is not None and low - 1 <= high < low + _MAX_TERMS:
                return self._expanded(node, range(low, high + 1))
        return self._opaque(node)

    def _expanded(self, node: Bound, span: range) -> Ball:
        outer, outer_exact = self._local.get(node.variable), self._exact.local.get(node.variable)

        def values() -> Iterable[Ball]:
            for index in span:
                self._local[node.variable] = arb(index)
                self._exact.local[node.variable] = index
                yield self.value(node.body)

        if node.kind == "sum":
            total = self._sum(values())
        else:
            total = arb(1)
            for value in values():
                total = total * value
        self._restore(node.variable, outer, outer_exact)
        return total

    def _restore(self, name: str, value: arb | None, exact_value: exact.Value | None) -> None:
        self._local.pop(name, None)
        self._exact.local.pop(name, None)
        if value is not None:
            self._local[name] = value
        if exact_value is not None:
            self._exact.local[name] = exact_value

    def _opaque(self, node: Bound) -> Ball:
        """A random value for a sum, an integral or a limit that depends on what it is made of."""
        self.opaque = True
        left = self.left_reals
        parts = [node.kind, *[self._end(end) for end in (node.low, node.high)]]
        outer, outer_exact = self._local.get(node.variable), self._exact.local.pop(node.variable, None)
        self._local[node.variable] = seeded(["variable", str(self._depth)], 0, 1)
        self._depth += 1
        parts.append(_text(self.value(node.body)))
        self._depth -= 1
        self._restore(node.variable, outer, outer_exact)
        self.left_reals = left
        return seeded(parts, 1, 9)

    def _end(self, node: Node | None) -> str:
        if node is None or node == Constant("infinity"):
            return str(node)
        if isinstance(node, Mul) and node.factors[1:] == (Constant("infinity"),):
            return "-" if integer(self.value(node.factors[0])) == -1 else "?"
        return _text(self.value(node))

    def _call(self, name: str, values: list[Ball]) -> Ball:
        value = values[0]
        if name in _ENTIRE:
            return _ENTIRE[name](value)
        if name in _REAL_WITHIN:
            return self._within(name, value)
        if name == "acot":
            return arb.pi() / 2 - value.atan()
        if name in ("asec", "acsc"):
            return self._within("acos" if name == "asec" else "asin", 1 / value)
        if name == "log":
            logarithm = self._within("ln", value)
            return logarithm / self._within("ln", values[1]) if len(values) == 2 else logarithm
        if name == "root":
            return self._root(value, values[1])
        if name in _GAMMA:
            self._charge(self._gamma)
            return _GAMMA[name](values)
        return _PIECEWISE[name]([real(value) for value in values])

    def _within(self, name: str, value: Ball) -> Ball:
        """A function that is real on an interval only."""
        inside, outside, method = _REAL_WITHIN[name]
        if isinstance(value, arb):
            if inside(value):
                return method(value)
            self.left_reals |= outside(value)
        if value.contains(0) and name == "ln":
            raise NotFinite
        return method(acb(value))

    def _root(self, value: Ball, degree: Ball) -> Ball:
        whole = integer(degree)
        if whole is None:
            if isinstance(value, arb) and value > 0:
                return value ** (1 / degree)
            raise Unknown
        if whole == 0:
            raise NotFinite
        return self._fractional_power(value, 1 if whole > 0 else -1, abs(whole))


def magnitude(value: arb) -> int | None:
    """The exponent of the power of 2 above the middle of a ball; None for 0."""
    middle = value.mid()
    if middle.is_zero():
        return None
    mantissa, exponent = middle.man_exp()
    return int(exponent) + abs(mantissa).bit_length()


def small(value: Ball) -> bool:
    """Whether a value is 0 as far as one can tell."""
    return value.abs_upper() < arb(2) ** -(ctx.prec // 2)


def real(value: Ball) -> arb:
    """The value of a real number. Raises Unknown for one that is not."""
    if isinstance(value, acb):
        if not small(value.imag):
            raise Unknown
        value = value.real
    return value


def integer(value: Ball) -> int | None:
    """The whole number that a value is, as far as one can tell."""
    if isinstance(value, acb) or not value.is_finite() or not value.abs_upper() < arb(2) ** (ctx.prec // 2):
        return None
    if not value.rad() < arb(2) ** -(ctx.prec // 3):
        return None
    found = value.unique_fmpz()
    return None if found is None else int(found)


def seeded(parts: list[str], low: int, high: int) -> arb:
    """A random number between two others that depends on the parts only."""
    digest = blake2b("\n".join(parts).encode("utf-8", "surrogatepass"), digest_size=4).digest()
    return arb(fmpq((low << 32) + (high - low) * int.from_bytes(digest, "big"), 1 << 32))


def _text(value: Ball) -> str:
    """A value as digits: the same for all ways to compute it."""
    if isinstance(value, acb):
        return f"{_text(value.real)} {_text(value.imag)}" if not small(value.imag) else _text(value.real)
    if not value.is_finite() or not value.abs_upper() < arb(2) ** ctx.prec:
        raise Unknown
    # The offset keeps numbers that are likely off the edges where rounding changes.
    scaled = value * 10**_PLACES + arb(fmpq(318309886183790671, 10**18))
    if not scaled.rad() < arb(2) ** -20:
        raise Unknown
    return str(int(scaled.mid().floor().unique_fmpz() or 0))


def _constant(name: str) -> Ball:
    if name == "pi":
        return arb.pi()
    if name == "e":
        return arb.const_e()
    if name == "i":
        return acb(0, 1)
    raise NotFinite


def _integer_power(base: Ball, exponent: int) -> Ball:
    if exponent == -1:
        return 1 / base
    if exponent.bit_length() > 256:
        raise Unknown
    return base**exponent


def _real_root(value: arb, degree: int) -> arb:
    if degree == 2:
        return value.sqrt()
    if degree > _MAX_DEGREE:
        return arb(0) if value.is_zero() else (value.log() / degree).exp()
    return value.root(degree)


def _floor(value: arb) -> arb:
    whole = integer(value)
    if whole is not None:
        return arb(whole)
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
    whole = [value for value in found if value is not None]
    if len(whole) != len(found):
        raise Unknown
    return whole


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
    whole = integer(below)
    if whole is not None and whole <= _MAX_LOWER:
        product: Ball = arb(1 if whole >= 0 else 0)
        for index in range(whole):
            product = product * (above - index) / (index + 1)
        return product
    return (above + 1).gamma() * (below + 1).rgamma() * (above - below + 1).rgamma()


def _arg(value: Ball) -> arb:
    if isinstance(value, acb):
        return value.arg()
    return arb.pi() if _sign(value) < 0 else arb(0)


_ENTIRE: dict[str, Callable[[Ball], Ball]] = {
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
#: Where a function is real for certain, where it is not for certain, and the function.
_REAL_WITHIN: dict[str, tuple[Callable[[arb], bool], Callable[[arb], bool], Callable[[Ball], Ball]]] = {
    "asin": (lambda x: abs(x) <= 1, lambda x: abs(x) > 1, lambda x: x.asin()),
    "acos": (lambda x: abs(x) <= 1, lambda x: abs(x) > 1, lambda x: x.acos()),
    "acosh": (lambda x: x >= 1, lambda x: x < 1, lambda x: x.acosh()),
    "atanh": (lambda x: abs(x) < 1, lambda x: abs(x) > 1, lambda x: x.atanh()),
    "ln": (lambda x: x > 0, lambda x: x < 0, lambda x: x.log()),
}
_GAMMA: dict[str, Callable[[list[Ball]], Ball]] = {
    "factorial": lambda values: (values[0] + 1).gamma(),
    "gamma": lambda values: values[0].gamma(),
    "double_factorial": _double_factorial,
    "binomial": _binomial,
}
_PIECEWISE: dict[str, Callable[[list[arb]], arb]] = {
    "floor": lambda values: _floor(values[0]),
    "ceil": lambda values: -_floor(-values[0]),
    "sign": lambda values: _sign(values[0]),
    "gcd": lambda values: arb(math.gcd(*_integers(values))),
    "lcm": lambda values: arb(math.lcm(*_integers(values))),
    "mod": _mod,
    "max": lambda values: values[0].max(values[1]),
    "min": lambda values: values[0].min(values[1]),
}
