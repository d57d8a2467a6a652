"""Where variables are given values: at ordinary numbers, and around and beyond those that expressions name."""

from collections.abc import Callable, Iterator, Sequence, Set
from fractions import Fraction
from hashlib import blake2b
from itertools import islice

from flint import arb, fmpq

from guerdon_services.math.arithmetic import exact
from guerdon_services.math.notation.tree import (
    Add,
    Call,
    Constant,
    Mul,
    Node,
    Number,
    Pow,
    Symbol,
    children,
    symbols,
)

Point = Callable[[str], arb]

#: Where variables are drawn from, in sixteenths, and their sign; 0 is either.
_RANGES = (
    (34, 126, 1), (1, 15, 1), (34, 126, -1), (1, 15, -1), (34, 126, 1), (34, 126, 0),
    (160, 960, 1), (1600, 16000, 1), (1, 15, 0), (1, 15, 1), (160, 960, 0), (34, 126, 1),
    (160, 960, -1), (1600, 16000, 1), (1600, 16000, -1), (16000, 160000, 1),
)  # fmt: skip
#: Functions that follow another formula beyond some value of their arguments.
_SWITCHING = ("max", "min", "floor", "ceil", "mod", "gcd", "lcm")
#: Functions that do where what they are the inverse of turns back.
_INVERSE = ("asin", "acos", "atan", "acot", "asec", "acsc", "acosh")
#: Functions that do where their arguments are 0.
_AT_ZERO = ("abs", "sign", "arg")
_OF_DIVISORS = ("gcd", "lcm", "mod")
#: Numbers far from those that an expression names.
_FAR, _FAR_WHOLE = (23, 150, 1100, 1_000_000), (47, 128, 1260, 10_007)
#: Numbers that are looked around, points in all, and the largest divisor that is looked for.
_MAX_MARKS, _MAX_POINTS, _MAX_DIVISOR = 12, 96, 1000
#: Real numbers that are whole.
_WHOLE = (3, -2, 0)
_STEPS = 500


def point(index: int, whole: Set[str], seed: str = "") -> Point:
    """Values of the variables: real ones, and natural ones for those of `whole`."""

    def value(name: str) -> arb:
        random = draw(f"{index} {name}{seed}")
        if name in whole:
            # Odd and even ones in turn, larger ones where the first do not do.
            return arb(1 + (draw(name) + index) % 2 + 2 * (random % (5 + index)))
        low, high, sign = _RANGES[index]
        sign = sign or (1 if random % 2 else -1)
        return arb(sign * ((low << 20) + (high - low) * (random >> 12))) * arb(2) ** -24

    return value


def draw(text: str) -> int:
    """A random number of 32 bits that depends on the text only."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).digest(), "big")


def switches(*nodes: Node) -> list[Node]:
    """The parts that may follow another formula beyond some value of a variable: |x - 10| does, |x|^2 + 1 not."""
    found: list[Node] = []
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if isinstance(node, Call | Pow) and _turns(node):
            found.append(node)
        else:
            stack.extend(children(node))
    return found


def _turns(node: Call | Pow) -> bool:
    """Whether a function may follow one formula here and another one there; so do roots, by their branches."""
    if isinstance(node, Call):
        if node.name in _SWITCHING:
            return True
        first = node.arguments[0]
        if node.name in _AT_ZERO:
            return not _monomial(first)
        if node.name in _INVERSE:
            return not _monomial(first) and not (isinstance(first, Add) and all(map(_linear, first.terms)))
        return node.name == "root" and not _one_formula(first)
    if isinstance(node.exponent, Number) and node.exponent.value.denominator == 1:
        return False
    return not _one_formula(node.base)


def _one_formula(base: Node) -> bool:
    """Whether roots of an expression are of one branch wherever they are real, or change it at 0 only."""
    if isinstance(base, Add):
        if all(map(_linear, base.terms)):
            return True
        # x^2 + y^2 is 0 at 0 only, x^2 + 1 nowhere.
        positive = any(isinstance(term, Number) and term.value > 0 for term in base.terms)
        return not any(_perhaps_negative(term, positive) for term in base.terms)
    return _monomial(base)


def _monomial(node: Node) -> bool:
    if isinstance(node, Mul):
        return all(map(_monomial, node.factors))
    base = node.base if isinstance(node, Pow) else node
    return isinstance(base, Number | Constant | Symbol)


def _linear(term: Node) -> bool:
    factors = term.factors if isinstance(term, Mul) else (term,)
    return all(isinstance(factor, Number | Constant | Symbol) for factor in factors) and (
        sum(isinstance(factor, Symbol) for factor in factors) < 2
    )


def _perhaps_negative(term: Node, any_base: bool) -> bool:
    factors = term.factors if isinstance(term, Mul) else (term,)
    return not all(
        (isinstance(factor, Number) and factor.value > 0)
        or (
            isinstance(factor, Pow)
            and (any_base or isinstance(factor.base, Symbol))
            and isinstance(factor.exponent, Number)
            and _even(factor.exponent.value)
        )
        for factor in factors
    )


def _even(value: Fraction) -> bool:
    return value.denominator == 1 and value.numerator % 2 == 0


def marks(parts: Sequence[Node], constant: Callable[[Node], Fraction | None]) -> list[Fraction]:
    """Positive numbers that the parts name, some of them where they are many.

    `constant` gives the value of a constant that is not rational.
    """
    nodes: list[Node] = []
    for part in parts:
        if _collect(part, nodes):
            nodes.append(part)
    found: set[Fraction] = set()
    for node in dict.fromkeys(nodes):
        value = exact.rational(node, exact.Budget(_STEPS))
        if value is not None:
            found |= {abs(value), Fraction(abs(value.numerator)), Fraction(value.denominator)}
        elif (near := constant(node)) is not None and near:
            found |= {abs(near), 1 / abs(near)}
    ordered = sorted(found - {Fraction(0)})
    skipped = -(-len(ordered) // _MAX_MARKS)
    return ordered[:: skipped or 1]


def _collect(node: Node, found: list[Node]) -> bool:
    """Whether a part is constant; if not, the largest constants in it are added to those found."""
    if isinstance(node, Symbol):
        return False
    parts = children(node)
    constant = [_collect(part, found) for part in parts]
    if all(constant):
        return True
    if isinstance(node, Pow):
        # Exponents such as 2 say nothing of where a base is.
        parts, constant = parts[:1], constant[:1]
    found.extend(part for part, known in zip(parts, constant, strict=True) if known)
    return False


def around(marked: Sequence[Fraction]) -> list[Fraction]:
    """Real numbers just below and above some and their opposites."""
    found: list[Fraction] = []
    for mark in marked:
        gap = min(mark, Fraction(1)) * Fraction(1 + draw(f"gap {mark}") % 997, 2500)
        found += [sign * (mark + side) for sign in (1, -1) for side in (gap, -gap)]
    return found


def multiples(marked: Sequence[Fraction], parts: Sequence[Node]) -> list[Fraction]:
    """Natural numbers at, around and beyond some, and divisors of theirs where a function looks at those."""
    found: dict[int, None] = {}
    divided = any(isinstance(part, Call) and part.name in _OF_DIVISORS for part in parts)
    for mark in marked:
        number = int(mark)
        near = [number, 2 * number, number + 1, number - 1, 2 * number + 1]
        found |= dict.fromkeys([*near, *_primes(number)] if divided else near)
    return [Fraction(number) for number in found if number > 0]


def _primes(number: int) -> Iterator[int]:
    """Its prime factors, as far as they are small, and what is left."""
    for divisor in range(2, _MAX_DIVISOR):
        if number % divisor == 0:
            yield divisor
            while number % divisor == 0:
                number //= divisor
    if number > 1:
        yield number


def beyond(
    nodes: tuple[Node, ...],
    names: Set[str],
    whole: Set[str],
    constant: Callable[[Node], Fraction | None],
) -> Iterator[tuple[Point, bool]]:
    """Points where expressions may follow another formula than at ordinary ones, and whether they are far away."""
    parts = switches(*nodes)
    concerned = sorted(names & frozenset[str]().union(*map(symbols, parts)))
    if not concerned:
        return iter(())
    marked = marks(parts, constant)
    # Rounding up is rounding down plus 1 everywhere but at whole numbers.
    exact_ones = [*map(Fraction, _WHOLE), *marked, *(-mark for mark in marked)]
    real, natural = [*around(marked), *exact_ones], multiples(marked, parts) if whole else []

    def points() -> Iterator[tuple[Point, bool]]:
        for index, far in enumerate(_FAR):
            for name in concerned:
                if name in whole:
                    yield _moved(name, Fraction(_FAR_WHOLE[index]), index, whole), True
                    continue
                shift = Fraction(draw(f"far {name}"), 1 << 33) * far
                yield _moved(name, far + shift, index, whole), True
                yield _moved(name, -far - shift, index, whole), True
        for index in range(max(len(real), len(natural))):
            for name in concerned:
                values = natural if name in whole else real
                if index < len(values):
                    yield _moved(name, values[index], index % 6, whole), False

    return islice(points(), _MAX_POINTS)


def _moved(name: str, value: Fraction, index: int, whole: Set[str]) -> Point:
    """An ordinary point with another value of one variable."""
    ordinary = point(index, whole)

    def moved(other: str) -> arb:
        return number(value) if other == name else ordinary(other)

    return moved


def number(value: Fraction) -> arb:
    """A rational number as a ball."""
    return arb(fmpq(value.numerator, value.denominator))
