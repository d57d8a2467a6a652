"""Exact values of constant rational expressions, within a budget of steps and bits."""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from guerdon_services.math.notation.tree import Add, Bound, Call, Mul, Node, Number, Pow, Symbol

#: A rational number; one without a fractional part is always an int.
Value = int | Fraction

MAX_BITS = 200_000
#: Steps of one evaluation; a step takes about a microsecond.
MAX_STEPS = 20_000
#: Terms of a sum or a product that are evaluated one by one.
MAX_TERMS = 5_000
#: Lower index of a binomial coefficient whose upper one is not a small natural number.
MAX_LOWER = 400


class Outside(Exception):
    """The expression has no value of the wanted kind, or finding it would take too long."""


class TooBig(Outside):
    """A value has more bits than are kept."""


class Budget:
    """Steps that evaluations may take, of about a microsecond each."""

    __slots__ = ("steps",)

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def spend(self, steps: int) -> None:
        """Raises Outside when the steps are used up."""
        self.steps -= steps
        if self.steps < 0:
            raise Outside


def rational(node: Node, budget: Budget | None = None) -> Fraction | None:
    """The value of a constant rational expression; None if it is not one, undefined, or too long."""
    if isinstance(node, Number):
        return node.value
    try:
        return Fraction(Evaluator(budget or Budget(MAX_STEPS)).value(node))
    except Outside:
        return None


class Evaluator:
    """Evaluates expressions in rational arithmetic.

    `local` holds values of bound variables. `drawn` gives free variables random integers: what follows from these
    holds for a formula, not for a function such as |x|, so functions of drawn values count as outside.
    """

    def __init__(
        self, budget: Budget, bits: int = MAX_BITS, drawn: Callable[[str], int] | None = None
    ) -> None:
        self.bits = bits
        self.spend = budget.spend
        self.local: dict[str, Value] = {}
        self.draws = 0
        self._drawn = drawn

    def value(self, node: Node) -> Value:
        """The value of an expression. Raises Outside."""
        self.spend(1)
        if isinstance(node, Number):
            return _whole(node.value)
        if isinstance(node, Mul):
            return self._gather([self.value(factor) for factor in node.factors], self._multiply)
        if isinstance(node, Add):
            return self._gather([self.value(term) for term in node.terms], self._add)
        if isinstance(node, Pow):
            return self._pow(node)
        if isinstance(node, Symbol):
            return self._symbol(node.name)
        if isinstance(node, Call):
            return self._call(node)
        if isinstance(node, Bound):
            return self._bound(node)
        raise Outside

    def terms(self, node: Bound) -> range:
        """The values that the variable of a sum or a product takes. Raises Outside if they are unknown or too many."""
        if node.kind not in ("sum", "prod") or node.low is None or node.high is None:
            raise Outside
        before = self.draws
        low, high = self.value(node.low), self.value(node.high)
        if self.draws != before or isinstance(low, Fraction) or isinstance(high, Fraction):
            raise Outside
        if high < low - 1 or high - low >= MAX_TERMS:
            raise Outside
        return range(low, high + 1)

    def _symbol(self, name: str) -> Value:
        if name in self.local:
            return self.local[name]
        if self._drawn is None:
            raise Outside
        self.draws += 1
        return self._drawn(name)

    def _bound(self, node: Bound) -> Value:
        span = self.terms(node)
        outer = self.local.get(node.variable)
        values: list[Value] = []
        try:
            for index in span:
                self.local[node.variable] = index
                values.append(self.value(node.body))
        finally:
            self.local.pop(node.variable, None)
            if outer is not None:
                self.local[node.variable] = outer
        if not values:
            return 0 if node.kind == "sum" else 1
        return self._gather(values, self._add if node.kind == "sum" else self._multiply)

    def _gather(self, values: list[Value], combine: Callable[[Value, Value], Value]) -> Value:
        # Neighbours first: both sides of an operation stay about as long as each other.
        self.spend(len(values) // 2)
        while len(values) > 1:
            pairs = [combine(values[i], values[i + 1]) for i in range(0, len(values) - 1, 2)]
            if len(values) % 2:
                pairs.append(values[-1])
            values = pairs
        return values[0]

    def _add(self, left: Value, right: Value) -> Value:
        if isinstance(left, int) and isinstance(right, int):
            return left + right
        self._spend_on(left, right)
        return self._kept(left + right)

    def _multiply(self, left: Value, right: Value) -> Value:
        if isinstance(left, int) and isinstance(right, int):
            bits, more = left.bit_length(), right.bit_length()
            if bits + more > 2000:
                if bits + more > self.bits + 1:
                    raise TooBig
                self.spend(bits * more // 4_000_000)
            return left * right
        self._spend_on(left, right)
        return self._kept(left * right)

    def _spend_on(self, left: Value, right: Value) -> None:
        size = max(_bits(left), _bits(right))
        if size > 500:
            self.spend(size * size // 600_000)

    def _kept(self, value: Value) -> Value:
        if _bits(value) > self.bits:
            raise TooBig
        return _whole(value)

    def _pow(self, node: Pow) -> Value:
        before = self.draws
        base, exponent = self.value(node.base), self.value(node.exponent)
        if isinstance(exponent, Fraction):
            if self.draws != before:
                raise Outside
            base = self.root(base, exponent.denominator)
            exponent = exponent.numerator
        return self.power(base, exponent)

    def power(self, base: Value, exponent: int) -> Value:
        """An integer power. Raises Outside."""
        if exponent == 0:
            return 1
        if exponent < 0:
            if base == 0:
                raise Outside
            base, exponent = _inverse(base), -exponent
        if base in (0, 1):
            return base
        if base == -1:
            return -1 if exponent % 2 else 1
        size = (_bits(base) - 1) * exponent
        if size > self.bits:
            raise TooBig
        self.spend(size * size // 8_000_000)
        return base**exponent

    def root(self, value: Value, degree: int) -> Value:
        """A root that is rational: the real one. Raises Outside if there is none."""
        if degree < 1 or (value < 0 and degree % 2 == 0):
            raise Outside
        if value < 0:
            return -self.root(-value, degree)
        if isinstance(value, int):
            return self._integer_root(value, degree)
        above = self._integer_root(value.numerator, degree)
        return Fraction(above, self._integer_root(value.denominator, degree))

    def _integer_root(self, value: int, degree: int) -> int:
        bits = value.bit_length()
        if value < 2 or degree == 1:
            return value
        if degree >= bits:
            raise Outside
        self.spend(bits * bits // 500_000)
        if degree == 2:
            found = math.isqrt(value)
        else:
            found = 1 << -(-bits // degree)
            while True:
                self.spend(1 + bits * bits // 500_000)
                better = ((degree - 1) * found + value // found ** (degree - 1)) // degree
                if better >= found:
                    break
                found = better
        if found**degree != value:
            raise Outside
        return found

    def _call(self, node: Call) -> Value:
        before = self.draws
        values = [self.value(argument) for argument in node.arguments]
        if self.draws != before and node.name not in ("factorial", "binomial"):
            raise Outside
        if node.name in _OF_INTEGERS:
            whole = [value for value in values if isinstance(value, int)]
            if len(whole) != len(values):
                raise Outside
            return _OF_INTEGERS[node.name](self, whole)
        if node.name == "root":
            degree = values[1]
            if not isinstance(degree, int):
                raise Outside
            return self.root(values[0], degree)
        if node.name == "binomial":
            return self._binomial(values[0], values[1])
        if node.name in _OF_RATIONALS:
            self._spend_on(values[0], values[-1])
            return _whole(_OF_RATIONALS[node.name](values))
        if _AT.get(node.name) == values[0]:
            return 1 if node.name in _ONE_AT_ZERO else 0
        raise Outside

    def factorial(self, value: int) -> int:
        """Raises Outside for a negative number."""
        if value < 0:
            raise Outside
        if value > 20 and value * (value.bit_length() - 2) > self.bits:
            raise TooBig
        self.spend(value * value // 40_000)
        return math.factorial(value)

    def double_factorial(self, value: int) -> int:
        """Raises Outside for a negative number other than -1."""
        if value < -1:
            raise Outside
        half = (value + 1) // 2
        if value % 2 == 0:
            return self.factorial(half) << half
        return self.factorial(2 * half) // (self.factorial(half) << half)

    def divisor(self, left: int, right: int) -> int:
        """The greatest common divisor."""
        self.spend(left.bit_length() * right.bit_length() // 1_300_000)
        return math.gcd(left, right)

    def multiple(self, left: int, right: int) -> int:
        """The least common multiple."""
        divisor = self.divisor(left, right)
        product = self._multiply(left // (divisor or 1), right)
        return abs(product.numerator)

    def _binomial(self, above: Value, below: Value) -> Value:
        if isinstance(below, Fraction):
            raise Outside
        if below < 0:
            return 0
        if isinstance(above, int) and 0 <= above <= 100_000:
            below = min(below, above - below)
            if below < 0:
                return 0
            if min(above, below * above.bit_length()) > self.bits:
                raise TooBig
            self.spend(below * below // 500)
            return math.comb(above, below)
        if below > MAX_LOWER:
            raise Outside
        bits = below * _bits(above)
        self.spend(below + bits * below // 10_000)
        if bits > self.bits:
            raise TooBig
        if isinstance(above, int):
            return math.prod(range(above - below + 1, above + 1)) // math.factorial(below)
        product = math.prod((above - index for index in range(below)), start=Fraction(1))
        return _whole(product / math.factorial(below))


def _whole(value: Value) -> Value:
    return value.numerator if value.denominator == 1 else value


def _inverse(value: Value) -> Value:
    if value in (1, -1):
        return value
    return Fraction(1, value) if isinstance(value, int) else _whole(1 / value)


def _bits(value: Value) -> int:
    if isinstance(value, int):
        return value.bit_length()
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _modulo(values: Sequence[Value]) -> Value:
    if values[1] == 0:
        raise Outside
    return values[0] % values[1]


_OF_INTEGERS: dict[str, Callable[[Evaluator, list[int]], int]] = {
    "factorial": lambda evaluator, values: evaluator.factorial(values[0]),
    "double_factorial": lambda evaluator, values: evaluator.double_factorial(values[0]),
    "gamma": lambda evaluator, values: evaluator.factorial(values[0] - 1),
    "gcd": lambda evaluator, values: evaluator.divisor(values[0], values[1]),
    "lcm": lambda evaluator, values: evaluator.multiple(values[0], values[1]),
}
_OF_RATIONALS: dict[str, Callable[[Sequence[Value]], Value]] = {
    "abs": lambda values: abs(values[0]),
    "floor": lambda values: math.floor(values[0]),
    "ceil": lambda values: math.ceil(values[0]),
    "sign": lambda values: (values[0] > 0) - (values[0] < 0),
    "re": lambda values: values[0],
    "im": lambda _: 0,
    "conjugate": lambda values: values[0],
    "mod": _modulo,
    "max": max,
    "min": min,
}
_ONE_AT_ZERO = ("cos", "sec", "cosh", "sech", "exp")
#: Where functions that are not rational elsewhere are 0 or 1.
_AT = {"ln": 1, "acos": 1, "acosh": 1} | dict.fromkeys(
    ("sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", *_ONE_AT_ZERO), 0
)
