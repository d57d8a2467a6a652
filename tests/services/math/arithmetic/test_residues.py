"""Identities of rational functions by random values modulo primes."""

import time
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from guerdon_services.math.arithmetic.exact import Budget
from guerdon_services.math.arithmetic.residues import ratio, same
from guerdon_services.math.notation.tree import (
    ONE,
    ZERO,
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
    difference,
    negated,
    quotient,
    root,
)

X, Y, N, K = Symbol("x"), Symbol("y"), Symbol("n"), Symbol("k")
#: 2^(2^99).
TOWER = Pow(Number(Fraction(2)), Pow(Number(Fraction(2)), Number(Fraction(99))))
PI, E = Constant("pi"), Constant("e")


def number(value: int | str | Fraction) -> Number:
    return Number(Fraction(value))


def power(base: Node | int, exponent: Node | int) -> Pow:
    return Pow(
        number(base) if isinstance(base, int) else base,
        number(exponent) if isinstance(exponent, int) else exponent,
    )


def factorial(node: Node) -> Call:
    return Call("factorial", (node,))


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (quotient(X, X), ONE, True),
        (Mul((PI, E)), Mul((E, PI)), True),
        (PI, number("22/7"), False),
        (Call("exp", (X,)), power(E, X), True),
        (power(E, Add((X, Y))), Mul((power(E, X), power(E, Y))), True),
        (power(2, difference(K, N)), quotient(power(2, K), power(2, N)), True),
        (power(X, Mul((number(2), K))), power(power(X, K), 2), True),
        (power(3, N), power(3, Add((N, ONE))), False),
        (power(-1, N), ONE, False),
        (power(-1, N), power(-1, negated(N)), True),
        (power(difference(X, Y), N), power(difference(Y, X), N), False),
        (power(0, N), ZERO, True),
        (power(X, 10**25), Mul((X, power(X, 10**25 - 1))), True),
        (power(X, 10**25), power(X, 10**25 + 1), False),
        (power(9, power(9, power(9, 9))), power(9, power(9, power(9, 8))), False),
        (power(X, power(2, TOWER)), power(X, power(4, quotient(TOWER, number(2)))), None),
        (power(X, power(2, TOWER)), power(X, power(4, power(2, Add((power(2, 99), number(-1)))))), True),
        (factorial(N), Mul((N, factorial(Add((N, number(-1)))))), True),
        (factorial(N), Mul((N, factorial(Add((N, number(-2)))))), False),
        (factorial(number(10**6)), Mul((number(10**6), factorial(number(10**6 - 1)))), True),
        (Call("gamma", (N,)), quotient(factorial(N), N), True),
        (Call("binomial", (N, number(3))), Call("binomial", (N, Add((N, number(-3))))), True),
        (Apply("a", (Add((N, ONE)),)), Apply("a", (Add((ONE, N)),)), True),
        (Apply("a", (N,)), Apply("b", (N,)), False),
        (root(number(4), number(2)), number(2), True),
        (Bound("sum", "k", ONE, number(3), power(X, K)), Mul((X, Add((ONE, X, power(X, 2))))), True),
        (Bound("sum", "k", ONE, N, K), Bound("sum", "n", ONE, N, N), True),
    ],
)  # fmt: skip
def test_identities(left: Node, right: Node, equal: bool | None) -> None:
    assert same(left, right) is equal
    assert same(right, left) is equal


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (Constant("i"), ONE),
        (Constant("infinity"), ONE),
        (root(number(2), number(2)), ONE),
        (root(power(X, 2), number(2)), X),
        (Call("abs", (X,)), X),
        (Call("sin", (X,)), X),
        (power(X, PI), X),
        (power(X, quotient(N, number(2))), root(power(X, N), number(2))),
        (power(0, -1), ONE),
        (quotient(ONE, difference(X, X)), ONE),
        (Call("double_factorial", (N,)), ONE),
        # Unknown values may be equal for reasons that a random residue does not show.
        (Bound("sum", "k", ONE, N, K), quotient(Mul((N, Add((N, ONE)))), number(2))),
        (Bound("int", "x", ZERO, ONE, X), number("1/2")),
        (factorial(number(10**6)), factorial(number(10**6 + 10**5))),
    ],
)
def test_what_cannot_be_told(left: Node, right: Node) -> None:
    assert same(left, right) is None


def test_ratios() -> None:
    line = Add((Mul((number(2), X)), Mul((number(4), Y))))
    assert ratio(line, Add((X, Mul((number(2), Y))))) == 2
    assert ratio(Add((X, Y)), negated(line)) == 0
    assert ratio(negated(X), Mul((number("7/3"), X))) == Fraction(-3, 7)
    assert ratio(X, Y) == 0
    assert ratio(Mul((PI, X)), X) is None
    assert ratio(root(X, number(2)), X) is None
    assert ratio(ZERO, X) is None


def test_long_expressions_end() -> None:
    start = time.process_time()
    terms = tuple(Mul((number(k), power(X, k))) for k in range(20_000))
    assert same(Add(terms), Add(tuple(reversed(terms)))) is None
    assert same(Add(terms[:2000]), Add(tuple(reversed(terms[:2000])))) is True
    assert same(Add(terms[:2000]), Add(terms[:1999])) is False
    nested: Node = X
    for _ in range(50):
        nested = power(X, nested)
    assert same(nested, X) is None
    assert time.process_time() - start < 5


def test_the_budget_is_kept() -> None:
    budget = Budget(50)
    assert same(X, X, budget) is True
    assert same(Add((X,) * 100), X, budget) is None


_MONOMIALS = st.dictionaries(
    st.tuples(st.integers(0, 4), st.integers(0, 4)),
    st.fractions(-20, 20, max_denominator=9).filter(bool),
    min_size=1,
    max_size=4,
)
Polynomial = dict[tuple[int, int], Fraction]


def polynomial(terms: Polynomial) -> Node:
    nodes = [Mul((Number(factor), power(X, i), power(Y, j))) for (i, j), factor in terms.items()]
    return nodes[0] if len(nodes) == 1 else Add(tuple(nodes))


def product(left: Polynomial, right: Polynomial) -> Polynomial:
    found: Polynomial = {}
    for (i, j), factor in left.items():
        for (k, m), other in right.items():
            found[i + k, j + m] = found.get((i + k, j + m), Fraction(0)) + factor * other
    return found


@given(_MONOMIALS, _MONOMIALS, _MONOMIALS)
def test_expanded_polynomials_equal_products(one: Polynomial, other: Polynomial, third: Polynomial) -> None:
    factored = Mul((polynomial(one), polynomial(other), polynomial(third)))
    expanded = product(product(one, other), third)
    assert same(factored, polynomial(expanded)) is True
    place = next(iter(expanded))
    assert same(factored, polynomial({**expanded, place: expanded[place] + 1})) is False


@given(_MONOMIALS, _MONOMIALS, _MONOMIALS)
def test_fractions_of_polynomials(one: Polynomial, other: Polynomial, third: Polynomial) -> None:
    reduced = quotient(polynomial(one), polynomial(other))
    extended = quotient(polynomial(product(one, third)), polynomial(product(other, third)))
    assert same(reduced, extended) is True
    assert same(Add((reduced, number("1/1000"))), extended) is False


@given(_MONOMIALS, st.fractions(-1000, 1000, max_denominator=1000))
def test_ratios_of_polynomials(terms: Polynomial, factor: Fraction) -> None:
    assume(factor)
    assert ratio(Mul((Number(factor), polynomial(terms))), polynomial(terms)) == factor
