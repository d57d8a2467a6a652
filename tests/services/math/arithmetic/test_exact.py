"""Exact values of constant rational expressions."""

import math
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon_services.math.arithmetic.exact import Budget, Evaluator, Outside, TooBig, rational
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
    quotient,
    root,
)


def number(value: int | str | Fraction) -> Number:
    return Number(Fraction(value))


def call(name: str, *values: int | str) -> Call:
    return Call(name, tuple(number(value) for value in values))


def power(base: int | str, exponent: int | str) -> Pow:
    return Pow(number(base), number(exponent))


K = Symbol("k")


@pytest.mark.parametrize(
    ("node", "value"),
    [
        (number("-2/4"), "-1/2"),
        (Add((number(1), number("1/2"), number("-3/2"))), "0"),
        (quotient(number(6), number(4)), "3/2"),
        (power(2, 10), "1024"),
        (power("-2/3", -3), "-27/8"),
        (power(0, 0), "1"),
        (power(-1, 10**30 + 1), "-1"),
        (power(4, "1/2"), "2"),
        (power("8/27", "-2/3"), "9/4"),
        (power(-8, "1/3"), "-2"),
        (root(number(10**40), number(20)), "100"),
        (root(number(-32), number(5)), "-2"),
        (root(power(3, 3000), number(1000)), "27"),
        (call("factorial", 10), "3628800"),
        (call("double_factorial", 9), "945"),
        (call("double_factorial", 8), "384"),
        (call("double_factorial", -1), "1"),
        (call("gamma", 5), "24"),
        (call("binomial", 10, 3), "120"),
        (call("binomial", 3, 10), "0"),
        (call("binomial", -2, 3), "-4"),
        (call("binomial", "1/2", 2), "-1/8"),
        (call("binomial", 10**30, 2), str(10**30 * (10**30 - 1) // 2)),
        (call("abs", "-3/2"), "3/2"),
        (call("floor", "-3/2"), "-2"),
        (call("ceil", "-3/2"), "-1"),
        (call("sign", -3), "-1"),
        (call("gcd", 12, -18), "6"),
        (call("lcm", 4, 6), "12"),
        (call("lcm", 0, 6), "0"),
        (call("mod", "-7/2", 3), "5/2"),
        (call("max", 2, 3), "3"),
        (call("min", 2, 3), "2"),
        (call("re", 2), "2"),
        (call("im", 2), "0"),
        (call("cos", 0), "1"),
        (call("asin", 0), "0"),
        (call("ln", 1), "0"),
        (Bound("sum", "k", number(1), number(100), K), "5050"),
        (Bound("prod", "k", number(1), number(5), Pow(K, number(2))), "14400"),
        (Bound("sum", "k", number(1), number(0), K), "0"),
        (Bound("prod", "k", number(1), number(0), K), "1"),
        (Bound("sum", "k", number(1), number(3), Bound("sum", "k", number(1), K, K)), "10"),
    ],
)
def test_values(node: Node, value: str) -> None:
    assert rational(node) == Fraction(value)


@pytest.mark.parametrize(
    "node",
    [
        Symbol("x"),
        Constant("pi"),
        Constant("infinity"),
        Apply("f", (number(1),)),
        power(0, -1),
        power(2, "1/2"),
        power(-4, "1/2"),
        root(number(8), number(0)),
        root(number(8), number("1/2")),
        root(number(2), number(10**30)),
        call("factorial", -1),
        call("factorial", "1/2"),
        call("binomial", 5, "1/2"),
        call("mod", 5, 0),
        call("gcd", "1/2", 2),
        call("sin", 1),
        call("ln", 0),
        Bound("sum", "k", number(1), number(10**9), K),
        Bound("sum", "k", number(5), number(1), K),
        Bound("sum", "k", number(1), number("5/2"), K),
        Bound("sum", "k", number(1), None, K),
        Bound("int", "k", number(0), number(1), K),
        power(10, 10**6),
        Pow(number(9), power(9, 9)),
        Call("factorial", (call("factorial", 30),)),
        call("binomial", 10**9, 10**8),
    ],
)
def test_what_has_no_short_rational_value(node: Node) -> None:
    assert rational(node) is None


def test_a_value_that_is_too_big_is_told_apart() -> None:
    with pytest.raises(TooBig):
        Evaluator(Budget(1000)).value(Pow(number(9), power(9, 9)))
    with pytest.raises(Outside) as caught:
        Evaluator(Budget(1000)).value(Symbol("x"))
    assert not isinstance(caught.value, TooBig)


def test_a_bound_variable_is_gone_after_an_error() -> None:
    evaluator = Evaluator(Budget(1000))
    with pytest.raises(Outside):
        evaluator.value(Bound("sum", "k", number(0), number(3), quotient(number(1), K)))
    assert not evaluator.local


def test_functions_of_drawn_values_have_none() -> None:
    evaluator = Evaluator(Budget(1000), drawn=lambda name: 4)
    assert evaluator.value(Pow(Symbol("x"), number(2))) == 16
    assert evaluator.value(Call("binomial", (Symbol("x"), number(2)))) == 6
    for node in (
        Call("abs", (Symbol("x"),)),
        root(Symbol("x"), number(2)),
        Pow(Symbol("x"), number("1/2")),
        Bound("sum", "k", number(1), Symbol("x"), K),
    ):
        with pytest.raises(Outside):
            evaluator.value(node)


def test_long_sums_end() -> None:
    start = time.process_time()
    harmonic = Add(tuple(quotient(number(1), number(k)) for k in range(1, 1001)))
    assert rational(harmonic) == sum((Fraction(1, k) for k in range(1, 1001)), Fraction(0))
    assert rational(Add(tuple(power(3, 100_000 + k) for k in range(5_000)))) is None
    assert time.process_time() - start < 5


_FRACTIONS = st.fractions(min_value=-50, max_value=50, max_denominator=60)


@st.composite
def arithmetic(draw: st.DrawFn, depth: int = 3) -> tuple[Node, Fraction | None]:
    """An expression and its value by plain fractions; None where it divides by zero."""
    kind = draw(st.integers(0, 3)) if depth else 0
    if kind == 0:
        value = draw(_FRACTIONS)
        return Number(value), value
    if kind == 3:
        node, value = draw(arithmetic(depth - 1))
        exponent = draw(st.integers(-3, 3))
        if value is None or (value == 0 and exponent < 0):
            return Pow(node, number(exponent)), None
        return Pow(node, number(exponent)), Fraction(value**exponent)
    parts = draw(st.lists(arithmetic(depth - 1), min_size=2, max_size=4))
    nodes, values = tuple(part[0] for part in parts), [part[1] for part in parts]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return (Add(nodes) if kind == 1 else Mul(nodes)), None
    if kind == 1:
        return Add(nodes), sum(known, Fraction(0))
    return Mul(nodes), math.prod(known, start=Fraction(1))


@given(arithmetic())
def test_arithmetic_agrees_with_fractions(case: tuple[Node, Fraction | None]) -> None:
    node, value = case
    assert rational(node) == value


@given(st.fractions(min_value=0, max_value=10**6), st.integers(1, 9))
def test_roots_undo_powers(value: Fraction, degree: int) -> None:
    assert rational(root(Pow(Number(value), number(degree)), number(degree))) == value
