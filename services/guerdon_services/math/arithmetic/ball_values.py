"""Values of expressions as balls: intervals of real numbers, or rectangles of complex ones, with proven bounds."""

from collections.abc import Iterable, Sequence
from fractions import Fraction

from flint import acb, arb, ctx, fmpq

from guerdon_services.math.arithmetic import exact
from guerdon_services.math.arithmetic.ball_functions import (
    ENTIRE,
    GAMMA,
    PIECEWISE,
    REAL_WITHIN,
    Ball,
    NotFinite,
    Unknown,
    integer,
    integer_power,
    magnitude,
    real,
    real_root,
    settled,
    whole,
)
from guerdon_services.math.arithmetic.ball_points import Point, draw
from guerdon_services.math.arithmetic.ball_samples import Scene, samples, scene
from guerdon_services.math.arithmetic.survey import endless
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
)

#: Values of the body of a sum, an integral or a limit that must be finite.
_SAMPLED = 2
#: Terms of a sum or a product that are evaluated one by one.
_MAX_TERMS = 3_000
#: Bits to which two values must agree, beyond the size of the numbers that they are made of, to be taken for equal.
AGREE_BITS = 100
#: Bits beyond that size that tell whether a value is a whole number.
_WHOLE_BITS = 60
#: Functions may agree to a multiple of the bits of their arguments, as sin x and x do near 0. Arguments of a few bits
#: cannot be that near to a special one.
_FEW_BITS, _ORDERS = 16, 7
#: Functions that come near to others at the speed of an exponential function.
_HYPERBOLIC = ("sinh", "cosh", "tanh", "coth", "sech", "csch")
#: Functions that ask whether a value is a whole number, or its sign.
_SETTLING = (*PIECEWISE, "arg", "binomial", "double_factorial")
#: Functions that are near to others only where their arguments are.
_PLAIN = (*PIECEWISE, "abs", "re", "im", "conjugate", "arg")


class Evaluator:
    """Evaluates at the current precision; raises Unknown where a value cannot be told, Outside where that is long."""

    def __init__(self, point: Point, budget: exact.Budget, seed: str = "") -> None:
        #: Bits that the numbers in the expressions and their values take up before and after the binary point.
        self.size = 0
        #: Whether a real function left the real numbers.
        self.left_reals = False
        #: Whether a sum, an integral or a limit was taken for an unknown value.
        self.opaque = False
        #: Whether an unknown function was.
        self.unknown = False
        self._point = point
        self._seed = seed
        self._sides: tuple[Node, ...] = ()
        self._scene: Scene | None = None
        self._local: dict[str, arb] = {}
        #: Unknown functions, sums and so on, each with the arguments and the values that it had.
        self._unknowns: dict[str, list[tuple[list[Ball | None], Ball]]] = {}
        self._exact = exact.Evaluator(budget, bits=256)
        self._spend = budget.spend
        scale = ctx.prec / 256
        self._simple = 1 + int(scale**1.5) // 16
        self._costly = 2 + int(2 * scale**1.5)
        self._gamma = 4 + int(4 * scale**2)

    def pair(self, left: Node, right: Node) -> tuple[Ball, Ball]:
        """The values of two expressions; the larger size counts."""
        self._sides = left, right
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
            before = self.size
            values = [settled(self.value(part)) for part in node.arguments]
            if node.name not in _PLAIN:
                self._weigh(before)
            if node.name == "root":
                return self._kept(self._root(values[0], node.arguments[1], values[1]))
            return self._kept(self._call(node.name, values))
        if isinstance(node, Constant):
            return _constant(node.name)
        if isinstance(node, Apply):
            self.unknown = True
            self._spend(5)
            return self._taken(node.name, [self.value(argument) for argument in node.arguments])
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

    def _weigh(self, before: int) -> None:
        """Counts what an argument took up once more for each order to which functions may agree there."""
        excess = self.size - before - _FEW_BITS
        if excess > 0:
            self.size += _ORDERS * excess

    def _settles(self) -> None:
        """Raises Unknown where a number may be nearer to a whole one than can be seen."""
        if self.size + _WHOLE_BITS > ctx.prec // 2:
            raise Unknown

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
        before = self.size
        base = settled(self.value(node.base))
        if exponent.denominator == 1:
            return integer_power(base, exponent.numerator)
        self._spend(self._costly)
        self.size += exponent.numerator.bit_length() + exponent.denominator.bit_length()
        self._weigh(before)
        return self._fractional_power(base, exponent.numerator, exponent.denominator)

    def _general_power(self, node: Pow) -> Ball:
        before = self.size
        exponent = self.value(node.exponent)
        if node.base == Constant("e"):
            self._weigh(before)
            return exponent.exp()
        base = settled(self.value(node.base))
        self._weigh(before)
        if isinstance(exponent, arb) and exponent.is_integer() and exponent.abs_upper() < 1 << 62:
            return integer_power(base, whole(exponent))
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
            reach = real_root(base.abs_upper(), below) ** above
            around = arb(0, reach.abs_upper())
            return base if base.is_zero() else around if below % 2 else acb(around, around)
        if base > 0:
            return real_root(base, below) ** above
        if below % 2:
            return (-real_root(-base, below)) ** above
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
        """An unknown value for a sum, an integral or a limit: the same for the same values of what it is made of."""
        self.opaque = True
        left = self.left_reals
        low, high = self._end(node.low, -1), self._end(node.high, 1)
        outer, outer_exact = self._local.get(node.variable), self._exact.local.get(node.variable)
        before, longest = self.size, 0
        values: list[Ball | None] = []
        try:
            self._scene = self._scene or scene(self._sides, self._seed)
            for value in samples(node.kind, low, high, self._scene):
                self.size = 0
                values.append(self._sample(node, value))
                longest = max(longest, self.size)
        finally:
            self._restore(node.variable, outer, outer_exact)
        self.size = before + longest
        self.left_reals = left
        if sum(value is not None for value in values) < _SAMPLED:
            raise NotFinite
        ends = [end for end in (low, high) if not isinstance(end, int)]
        # An integral without ends is no integral over all numbers.
        given = [end is not None and endless(end) for end in (node.low, node.high)]
        return self._taken(f"{node.kind} {given}", ends + values)

    def _end(self, node: Node | None, missing: int) -> Ball | int:
        return missing if node is None else endless(node) or self.value(node)

    def _sample(self, node: Bound, value: arb) -> Ball | None:
        """The value of the body where the variable has some value; None where that is not finite."""
        self._local[node.variable] = value
        self._exact.local.pop(node.variable, None)
        if value.is_integer():
            self._exact.local[node.variable] = whole(value)
        try:
            return self.value(node.body)
        except NotFinite:
            return None

    def _taken(self, key: str, values: list[Ball | None]) -> Ball:
        """The value of something unknown: the one that it had for the same arguments, or a new one."""
        known = self._unknowns.setdefault(key, [])
        for arguments, found in known:
            self._spend(1 + len(values))
            if len(arguments) == len(values) and self._same(arguments, values):
                return found
        texts = [str(value) for value in values[:4]]
        found = arb(
            fmpq((1 << 32) + 8 * draw("\n".join([key, self._seed, str(len(known)), *texts])), 1 << 32)
        )
        known.append((values, found))
        return found

    def _same(self, one: Sequence[Ball | None], other: Sequence[Ball | None]) -> bool:
        """Whether two lists of values are the same. Raises Unknown where more bits must tell."""
        unsure = False
        for left, right in zip(one, other, strict=True):
            if left is None or right is None:
                if left is not right:
                    return False
                continue
            outcome = self.zero(left - right)
            if outcome is False:
                return False
            unsure |= outcome is None
        if unsure:
            raise Unknown
        return True

    def zero(self, value: Ball) -> bool | None:
        """Whether a difference of two values is 0; None where this many bits cannot tell."""
        if not value.contains(0):
            return False
        return True if self.lacking(value) < 0 else None

    def lacking(self, value: Ball) -> int:
        """How many bits a difference around 0 lacks to be taken for 0; negative for none."""
        error = magnitude(value.abs_upper())
        return -1 if error is None else error + AGREE_BITS + self.size

    def _call(self, name: str, values: list[Ball]) -> Ball:
        value = values[0]
        if name in _SETTLING:
            self._settles()
        if name in _HYPERBOLIC:
            self.size += max(0, _ceiling(3 * value.abs_upper()))
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


def _ceiling(value: arb) -> int:
    """A whole number of at least a positive value that is not huge; a power of 2."""
    return 1 << min(max(0, magnitude(value) or 0), 64)


def _constant(name: str) -> Ball:
    if name == "pi":
        return arb.pi()
    if name == "e":
        return arb.const_e()
    if name == "i":
        return acb(0, 1)
    raise NotFinite
