"""Identities of rational functions, tested by their values modulo primes at random points."""

from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b
from math import gcd

from guerdon_services.math.arithmetic.exact import MAX_LOWER, Budget, Evaluator, Outside, TooBig, Value
from guerdon_services.math.arithmetic.survey import endless, inscription
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

#: Each number is twice the next plus one, and all are prime. An exponent counts modulo p - 1 = 2q, the exponent of
#: an exponent modulo q - 1, and so on: towers of powers can be reduced.
_CHAINS = (
    (802300309654044959, 401150154827022479, 200575077413511239, 100287538706755619, 50143769353377809),
    (1136906887958659199, 568453443979329599, 284226721989664799, 142113360994832399, 71056680497416199),
)
_POINTS = 2
#: Points where the sign of a power may depend on whether its exponent is even.
_SIGN_POINTS = 12
_DRAWS = 4
_EXPONENT_BITS = 64_000
_STEPS = 60_000
_SMALL_PRIMES = 3 * 5 * 7 * 11 * 13 * 17 * 19 * 23 * 29 * 31 * 37 * 41 * 43 * 47 * 53 * 59
#: Factorials of numbers this near to each other are related, of numbers this far they are independent.
_NEAR, _FAR = 2_000, 1 << 25


def same(left: Node, right: Node, budget: Budget | None = None) -> bool | None:
    """Whether two expressions are identical; None where that cannot be told in this way.

    Both must be rational in their variables, pi and e, with integer exponents, which may have variables. True is
    wrong with a probability of less than 1e-15.
    """
    budget = budget or Budget(_STEPS)
    wanted, index, found, seed = _POINTS, 0, 0, ""
    while found < wanted:
        if index >= wanted + _DRAWS:
            return None
        point = Point(index, budget, seed)
        index += 1
        try:
            values = point.value(left), point.value(right)
        except ZeroDivisionError:
            continue
        except Outside:
            return None
        if values[0] != values[1]:
            return None if point.opaque else False
        wanted = _SIGN_POINTS if point.signs else wanted
        found += 1
        if found == 1:
            # Anyone may know the fixed primes and points: p * q * x is 0 modulo both.
            seed = inscription(left, right)
    return True


def ratio(left: Node, right: Node, budget: Budget | None = None) -> Fraction | None:
    """The number k with left = k * right; 0 if there is none that is rational, None if that cannot be told."""
    budget = budget or Budget(_STEPS)
    quotients: list[int] = []
    seed, prime = "", 0
    for index in (0, 2, 1):
        point = Point(index, budget, seed)
        try:
            above, below = point.value(left), point.value(right)
        except (ZeroDivisionError, Outside):
            return None
        if not above or not below or point.signs or point.named:
            return None
        prime = point.prime
        quotients.append(above * pow(below, -1, prime) % prime)
        if len(quotients) == 2:
            if quotients[0] != quotients[1]:
                return None if point.opaque else Fraction(0)
            seed = inscription(left, right)
    factor = _reconstruct(quotients[0], _CHAINS[0][0])
    if factor is None or (factor.numerator - factor.denominator * quotients[2]) % prime:
        return None
    return factor


def _reconstruct(residue: int, prime: int) -> Fraction | None:
    """The fraction of small numbers that has a residue."""
    limit = 1 << 29
    rest, above, below, before = residue, prime, 1, 0
    while rest > limit:
        times = above // rest
        above, rest = rest, above - times * rest
        before, below = below, before - times * below
    return Fraction(rest, below) if 0 < abs(below) < limit else None


@lru_cache(maxsize=4096)
def _draw(text: str) -> int:
    """A random number of 40 bits that depends on the text only."""
    return (
        int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=5).digest(), "big")
        | 1 << 36
    )


@lru_cache(maxsize=64)
def _prime(text: str) -> int:
    """A prime of 61 bits that depends on the text only."""
    drawn = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    number = int.from_bytes(drawn, "big") >> 3 | 1 << 60 | 1
    while gcd(number, _SMALL_PRIMES) > 1 or any(pow(base, number - 1, number) != 1 for base in (2, 3)):
        number += 2
    return number


class Point:
    """Values of expressions modulo one prime at one point."""

    def __init__(self, index: int, budget: Budget, seed: str = "") -> None:
        self.chain = (_prime(f"{index % 2} {seed}"),) if seed else _CHAINS[index % 2]
        self.prime = self.chain[0]
        #: Whether a sum, an integral or a limit was taken for an unknown value.
        self.opaque = False
        #: Whether pi or e took part.
        self.named = False
        #: Whether a power may change its sign with its exponent.
        self.signs = False
        self._index = f"{index}{seed}"
        self._exact = Evaluator(budget, _EXPONENT_BITS, self._drawn)
        self._spend = budget.spend
        self._bound: dict[str, str] = {}
        self._factorials: dict[int, int] = {}

    def value(self, node: Node) -> int:
        """The residue of an expression. Raises Outside or ZeroDivisionError."""
        self._spend(1)
        if isinstance(node, Number):
            return self._reduce(node.value)
        if isinstance(node, Symbol):
            local = self._exact.local.get(node.name)
            return self._reduce(self._drawn(node.name) if local is None else local)
        if isinstance(node, Mul):
            product = 1
            for factor in node.factors:
                product = product * self.value(factor) % self.prime
            return product
        if isinstance(node, Add):
            return sum([self.value(term) for term in node.terms]) % self.prime
        if isinstance(node, Pow):
            return self._power(node)
        if isinstance(node, Constant):
            return self._constant(node.name)
        if isinstance(node, Call):
            return self._call(node)
        if isinstance(node, Apply):
            self._spend(3)
            return self._seeded([node.name, *[str(self.value(argument)) for argument in node.arguments]])
        return self._expanded(node)

    def _reduce(self, value: Value) -> int:
        if isinstance(value, int) or value.denominator == 1:
            return value.numerator % self.prime
        if value.denominator % self.prime == 0:
            raise ZeroDivisionError
        return value.numerator * pow(value.denominator, -1, self.prime) % self.prime

    def _drawn(self, name: str) -> int:
        return _draw(f"{self._index} {self._bound.get(name, name)}")

    def _constant(self, name: str) -> int:
        if name not in ("pi", "e"):
            raise Outside
        self.named = True
        return _draw(f"{self._index}  {name}")

    def _seeded(self, parts: list[str]) -> int:
        text = "\n".join([self._index, *parts]).encode("utf-8", "surrogatepass")
        return int.from_bytes(blake2b(text, digest_size=16).digest(), "big") % self.prime

    def _power(self, node: Pow) -> int:
        before = self._exact.draws
        try:
            exponent = self._exact.value(node.exponent)
        except TooBig:
            exponent = None
        if isinstance(exponent, Fraction):
            # Only a constant has a value here, such as the root of 4.
            return self._reduce(self._exact.value(node))
        if self._exact.draws != before and not _positive_base(node.base):
            self.signs = True
        base = self.value(node.base)
        if exponent is None:
            if not base:
                raise Outside
            exponent = self._ring(node.exponent, 1)
        if not base and exponent < 0:
            raise ZeroDivisionError
        if base and not -1 << 40 < exponent < 1 << 40:
            exponent %= self.prime - 1
        return pow(base, exponent, self.prime)

    def _ring(self, node: Node, level: int) -> int:
        """The residue of an integer modulo twice a prime of the chain."""
        self._spend(1)
        if level == len(self.chain):
            raise Outside
        modulus = 2 * self.chain[level]
        try:
            value = self._exact.value(node)
        except TooBig:
            pass
        else:
            if isinstance(value, Fraction):
                raise Outside
            return value % modulus
        if isinstance(node, Add):
            return sum([self._ring(term, level) for term in node.terms]) % modulus
        if isinstance(node, Mul):
            product = 1
            for factor in node.factors:
                product = product * self._ring(factor, level) % modulus
            return product
        if not isinstance(node, Pow):
            raise Outside
        return pow(self._ring(node.base, level), self._ring_exponent(node.exponent, level), modulus)

    def _ring_exponent(self, node: Node, level: int) -> int:
        try:
            exponent = self._exact.value(node)
        except TooBig:
            if level + 1 == len(self.chain) or not self._huge(node):
                raise Outside from None
            # The modulus is a product of two primes, so exponents of 1 and more repeat.
            period = 2 * self.chain[level + 1]
            return self._ring(node, level + 1) + period
        if isinstance(exponent, Fraction) or exponent < 0:
            raise Outside
        return exponent

    def _huge(self, node: Node) -> bool:
        """Whether a number that is too big to be evaluated is certainly positive."""
        if isinstance(node, Pow):
            return self._above(node.base, 1)
        if isinstance(node, Mul):
            return all(self._above(factor, 0) for factor in node.factors)
        if not isinstance(node, Add):
            return False
        rest = 0
        for term in node.terms:
            try:
                rest += self._exact.value(term)
            except TooBig:
                if not self._huge(term):
                    return False
        return abs(rest) < 1 << (_EXPONENT_BITS - 64)

    def _above(self, node: Node, limit: int) -> bool:
        try:
            return self._exact.value(node) > limit
        except TooBig:
            return self._huge(node)

    def _call(self, node: Call) -> int:
        if node.name == "exp":
            return self._power(Pow(Constant("e"), node.arguments[0]))
        if node.name not in ("factorial", "gamma", "binomial"):
            return self._reduce(self._exact.value(node))
        values = [self._exact.value(argument) for argument in node.arguments]
        below = values[-1]
        if node.name == "binomial" and isinstance(below, int) and below <= MAX_LOWER:
            return self._binomial(values[0], below)
        whole = [value for value in values if isinstance(value, int)]
        if len(whole) != len(values):
            raise Outside
        if node.name == "factorial":
            return self._factorial(whole[0])
        if node.name == "gamma":
            return self._factorial(whole[0] - 1)
        if whole[0] < 0:
            raise Outside
        if whole[1] > whole[0]:
            # A binomial coefficient of a symbol over a larger one need not be 0.
            raise ZeroDivisionError
        divisor = self._factorial(whole[1]) * self._factorial(whole[0] - whole[1])
        return self._factorial(whole[0]) * pow(divisor, -1, self.prime) % self.prime

    def _binomial(self, above: Value, below: int) -> int:
        self._spend(max(below, 0) // 4)
        if below < 0:
            return 0
        top, product = self._reduce(above), 1
        for index in range(below):
            product = product * (top - index) % self.prime
        return product * pow(self._exact.factorial(below), -1, self.prime) % self.prime

    def _factorial(self, value: int) -> int:
        """The factorial of a small number, or a random residue related to those of numbers near by."""
        if value < 0:
            raise ZeroDivisionError
        if value <= _NEAR:
            return self._reduce(self._exact.factorial(value))
        for anchor, residue in self._factorials.items():
            gap = abs(value - anchor)
            if gap <= _NEAR:
                self._spend(gap // 8)
                product = 1
                for factor in range(min(value, anchor) + 1, max(value, anchor) + 1):
                    product = product * factor % self.prime
                return residue * (product if value > anchor else pow(product, -1, self.prime)) % self.prime
            if gap < _FAR:
                raise Outside
        self._factorials[value] = self._seeded(["!", f"{value:x}"])
        return self._factorials[value]

    def _expanded(self, node: Bound) -> int:
        try:
            span = self._exact.terms(node)
        except Outside:
            return self._unknown(node)
        outer = self._exact.local.get(node.variable)
        total = 0 if node.kind == "sum" else 1
        for index in span:
            self._exact.local[node.variable] = index
            value = self.value(node.body)
            total = (total + value if node.kind == "sum" else total * value) % self.prime
        self._exact.local.pop(node.variable, None)
        if outer is not None:
            self._exact.local[node.variable] = outer
        return total

    def _unknown(self, node: Bound) -> int:
        """A random residue for a sum, an integral or a limit that depends on what it is made of."""
        self.opaque = True
        ends = [self._end(node.low), self._end(node.high)]
        outer = self._bound.get(node.variable)
        local = self._exact.local.pop(node.variable, None)
        self._bound[node.variable] = f" {len(self._bound)}"
        body = self.value(node.body)
        del self._bound[node.variable]
        if outer is not None:
            self._bound[node.variable] = outer
        if local is not None:
            self._exact.local[node.variable] = local
        return self._seeded([node.kind, *ends, str(body)])

    def _end(self, node: Node | None) -> str:
        if node is None or endless(node):
            return f"end {node and endless(node)}"
        return str(self.value(node))


def _positive_base(node: Node) -> bool:
    if isinstance(node, Number):
        return node.value > 0
    return isinstance(node, Symbol | Constant)
