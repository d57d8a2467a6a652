"""Values of expressions as balls: intervals of real numbers, or rectangles of complex ones, with proven bounds."""

from collections.abc import Callable, Iterable
from fractions import Fraction
from hashlib import blake2b

from flint import acb, arb, ctx, fmpq

from guerdon_services.math import exact
from guerdon_services.math.ball_functions import (
    ENTIRE,
    GAMMA,
    PIECEWISE,
    REAL_WITHIN,
    Ball,
    NotFinite,
    Unknown,
    digits,
    integer,
    magnitude,
    real,
    settled,
    whole,
)
from guerdon_services.math.survey import endless
from guerdon_services.math.tree import Add, Apply, Bound, Call, Constant, Mul, Node, Number, Pow, Symbol

#: Terms of a sum or a product that are evaluated one by one.
_MAX_TERMS = 3_000
_MAX_DEGREE = 1_000


class Evaluator:
    """Evaluates expressions at the current precision.

    Its methods raise Unknown where a value cannot be told, and Outside where that takes too long.
    """

    def __init__(self, point: Callable[[str], arb], budget: exact.Budget) -> None:
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
        self._exact = exact.Evaluator(budget, bits=256)
        self._spend = budget.spend
        scale = ctx.prec / 256
        self._simple = 1 + int(scale**1.5) // 16
        self._costly = 2 + int(2 * scale**1.5)
        self._gamma = 4 + int(4 * scale**2)

    def pair(self, left: Node, right: Node) -> tuple[Ball, Ball]:
        """The values of two expressions; the larger size counts."""
        first = self.value(left)
        size, self.size = self.size, 0
        second = self.value(right)
        self.size = max(size, self.size)
        return first, second

    def value(self, node: Node) -> Ball:
        """The value of an expression."""
        self._spend(self._simple)
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
            self._spend(self._costly)
            values = [settled(self.value(part)) for part in node.arguments]
            if node.name == "root":
                return self._kept(self._root(values[0], node.arguments[1], values[1]))
            return self._kept(self._call(node.name, values))
        if isinstance(node, Constant):
            return _constant(node.name)
        if isinstance(node, Apply):
            self.unknown = True
            self._spend(5)
            parts = [node.name, *[digits(self.value(argument)) for argument in node.arguments]]
            return seeded(parts, 1, 9)
        return self._bound(node)

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
            self._spend(self._costly)
            try:
                exponent = self._exact.value(node.exponent)
            except exact.Outside:
                return self._general_power(node)
        base = settled(self.value(node.base))
        if exponent.denominator == 1:
            return _integer_power(base, exponent.numerator)
        self._spend(self._costly)
        self.size += exponent.numerator.bit_length() + exponent.denominator.bit_length()
        return self._fractional_power(base, exponent.numerator, exponent.denominator)

    def _general_power(self, node: Pow) -> Ball:
        exponent = self.value(node.exponent)
        if node.base == Constant("e"):
            return exponent.exp()
        base = settled(self.value(node.base))
        if isinstance(exponent, arb) and exponent.is_integer() and exponent.abs_upper() < 1 << 62:
            return _integer_power(base, whole(exponent))
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

        try:
            if node.kind == "sum":
                return self._sum(values())
            product: Ball = arb(1)
            for value in values():
                product = product * value
            return product
        finally:
            self._restore(node.variable, outer, outer_exact)

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
        parts.append(digits(self.value(node.body)))
        self._depth -= 1
        self._restore(node.variable, outer, outer_exact)
        self.left_reals = left
        return seeded(parts, 1, 9)

    def _end(self, node: Node | None) -> str:
        if node is None or endless(node):
            return f"end {node and endless(node)}"
        return digits(self.value(node))

    def _call(self, name: str, values: list[Ball]) -> Ball:
        value = values[0]
        if name in ENTIRE:
            return ENTIRE[name](value)
        if name in REAL_WITHIN:
            return self._within(name, value)
        if name == "acot":
            return arb.pi() / 2 - value.atan()
        if name in ("asec", "acsc"):
            return self._within("acos" if name == "asec" else "asin", 1 / value)
        if name == "log":
            logarithm = self._within("ln", value)
            return logarithm / self._within("ln", values[1]) if len(values) == 2 else logarithm
        if name in GAMMA:
            self._spend(self._gamma + (100 if name == "binomial" else 0))
            return GAMMA[name](values)
        if self.size > ctx.prec // 2:
            # A number may be nearer to a whole one than can be seen.
            raise Unknown
        return PIECEWISE[name]([real(value) for value in values])

    def _within(self, name: str, value: Ball) -> Ball:
        """A function that is real on an interval only."""
        inside, outside, method = REAL_WITHIN[name]
        if isinstance(value, arb):
            if inside(value):
                return method(value)
            self.left_reals |= outside(value)
        if value.contains(0) and name == "ln":
            raise NotFinite
        return method(acb(value))

    def _root(self, value: Ball, node: Node, degree: Ball) -> Ball:
        count = node.value if isinstance(node, Number) else integer(degree)
        if count is None or count.denominator > 1:
            if isinstance(value, arb) and value > 0:
                return value ** (1 / degree)
            raise Unknown
        if count == 0:
            raise NotFinite
        return self._fractional_power(value, 1 if count > 0 else -1, abs(count.numerator))


def seeded(parts: list[str], low: int, high: int) -> arb:
    """A random number between two others that depends on the parts only."""
    digest = blake2b("\n".join(parts).encode("utf-8", "surrogatepass"), digest_size=4).digest()
    return arb(fmpq((low << 32) + (high - low) * int.from_bytes(digest, "big"), 1 << 32))


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
