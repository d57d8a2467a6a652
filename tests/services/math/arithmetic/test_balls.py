"""Values in ball arithmetic: what only many digits, complex numbers or points on the real line can tell."""

import math
from fractions import Fraction

import pytest
from flint import ctx
from hypothesis import given
from hypothesis import strategies as st

from guerdon_services.math.arithmetic.balls import compare, decimal, ratio_sign, same
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

X, N = Symbol("x"), Symbol("n")
PI, I = Constant("pi"), Constant("i")  # noqa: E741


def number(value: int | str | Fraction) -> Number:
    return Number(Fraction(value))


def sqrt(node: Node | int) -> Node:
    return root(number(node) if isinstance(node, int) else node, number(2))


def call(name: str, *values: Node) -> Call:
    return Call(name, values)


SAMPLES = {
    "sin": 0.7, "cos": 0.7, "tan": 0.7, "cot": 0.7, "sec": 0.7, "csc": 0.7, "asin": 0.7, "acos": 0.7, "atan": -0.7,
    "acot": -0.7, "asec": 1.7, "acsc": 1.7, "sinh": 0.7, "cosh": 0.7, "tanh": 0.7, "coth": 0.7, "sech": 0.7,
    "csch": 0.7, "asinh": 0.7, "acosh": 1.7, "atanh": 0.7, "exp": 0.7, "ln": 0.7, "log": 0.7, "abs": -0.7,
    "floor": -0.7, "ceil": -0.7, "sign": -0.7, "re": 0.7, "im": 0.7, "conjugate": 0.7, "arg": -0.7,
    "factorial": 0.7, "gamma": 0.7, "double_factorial": 7.0,
}  # fmt: skip
EXPECTED = {
    "cot": 1 / math.tan(0.7), "sec": 1 / math.cos(0.7), "csc": 1 / math.sin(0.7),
    "acot": math.pi / 2 - math.atan(-0.7), "asec": math.acos(1 / 1.7), "acsc": math.asin(1 / 1.7),
    "coth": 1 / math.tanh(0.7), "sech": 1 / math.cosh(0.7), "csch": 1 / math.sinh(0.7), "ln": math.log(0.7),
    "abs": 0.7, "floor": -1.0, "ceil": 0.0, "sign": -1.0, "re": 0.7, "im": 0.0, "conjugate": 0.7, "arg": math.pi,
    "factorial": math.gamma(1.7), "double_factorial": 105.0,
}  # fmt: skip
PAIRS = {
    "log": (2.0, 8.0, 1 / 3), "root": (2.0, 3.0, 2 ** (1 / 3)), "binomial": (7.5, 2.0, 24.375),
    "gcd": (12.0, 18.0, 6.0), "lcm": (4.0, 6.0, 12.0), "mod": (-7.5, 2.0, 0.5), "max": (2.0, 3.0, 3.0),
    "min": (2.0, 3.0, 2.0),
}  # fmt: skip


def close(node: Node, value: float) -> bool:
    known = decimal(node)
    return known is not None and abs(float(known[0]) - value) <= 1e-14 * max(1.0, abs(value))


@pytest.mark.parametrize("name", SAMPLES)
def test_functions_of_one_argument(name: str) -> None:
    value = SAMPLES[name]
    expected = EXPECTED[name] if name in EXPECTED else getattr(math, name)(value)
    assert close(call(name, number(Fraction(value))), expected)


@pytest.mark.parametrize("name", PAIRS)
def test_functions_of_two_arguments(name: str) -> None:
    first, second, expected = PAIRS[name]
    assert close(call(name, number(Fraction(first)), number(Fraction(second))), expected)


def test_more_digits_are_taken_where_they_are_needed() -> None:
    # Both differ by 1 where they have more than 1000 digits.
    large = Mul((Pow(number(10), number(1000)), sqrt(2)))
    assert same(large, Add((large, ONE))) is False
    assert same(large, quotient(Mul((Pow(number(10), number(1000)), number(2))), sqrt(2))) is True
    tiny = Mul((Pow(number(10), number(-1000)), sqrt(2)))
    assert same(tiny, ZERO) is False
    assert same(Add((PI, tiny)), PI) is False
    assert same(call("sin", PI), ZERO) is True


def test_what_would_take_too_many_digits_is_not_claimed() -> None:
    huge = Pow(number(9), Pow(number(9), number(9)))
    assert same(Mul((huge, sqrt(2))), Mul((Add((huge, ONE)), sqrt(2)))) is None
    assert same(quotient(sqrt(2), huge), quotient(sqrt(3), huge)) is False
    assert same(Mul((huge, sqrt(2))), ONE) is False


def test_variables_are_real() -> None:
    square = Pow(X, number(2))
    assert same(Pow(call("abs", X), number(2)), square) is True
    assert same(sqrt(square), X) is False
    assert same(sqrt(square), call("abs", X)) is True
    assert same(call("conjugate", Mul((I, X))), negated(Mul((I, X)))) is True
    assert same(call("im", Add((X, I))), ONE) is True


def test_points_where_a_side_is_not_real_do_not_count() -> None:
    assert same(Mul((sqrt(X), sqrt(N))), sqrt(Mul((X, N)))) is True
    assert same(call("ln", Pow(X, number(2))), Mul((number(2), call("ln", X)))) is True
    assert same(sqrt(X), sqrt(negated(X))) is False
    assert same(sqrt(Add((X, number(-500)))), negated(sqrt(Add((X, number(-500)))))) is False


def test_complex_values() -> None:
    assert same(sqrt(-1), I) is True
    assert same(call("ln", number(-1)), Mul((I, PI))) is True
    assert same(Pow(I, I), call("exp", quotient(PI, number(-2)))) is True
    assert same(call("asin", number(2)), call("asin", number(3))) is False
    # The base lies on the cut of the root.
    base = Mul((I, X, number(3), number("1/3")))
    third = number("1/3")
    assert same(Pow(Mul((base, base)), third), Pow(Pow(Mul((I, X)), number(2)), third)) is True


def test_odd_roots_are_real() -> None:
    assert same(Pow(number(-8), number("1/3")), number(-2)) is True
    assert same(Pow(Mul((number(-2), sqrt(2))), number("2/3")), number(2)) is True
    assert same(root(X, number(3)), Pow(X, number("1/3"))) is True
    assert same(root(negated(X), number(3)), negated(root(X, number(3)))) is True


def test_steps_are_settled_at_whole_numbers() -> None:
    eight = Mul((sqrt(2), sqrt(32)))
    assert same(call("floor", eight), number(8)) is True
    assert same(call("ceil", eight), number(8)) is True
    assert same(call("floor", Add((eight, number("-1e-40")))), number(7)) is True
    assert same(call("mod", eight, number(8)), ZERO) is True
    assert same(call("sign", call("sin", PI)), ZERO) is True
    assert same(call("gcd", eight, number(12)), number(4)) is True
    assert same(call("gcd", PI, number(12)), number(4)) is None


def test_unknown_functions() -> None:
    half = quotient(X, sqrt(4))
    assert same(Apply("f", (half,)), Apply("f", (Mul((X, number("1/2"))),))) is True
    assert same(Apply("f", (half,)), Apply("f", (X,))) is False
    assert same(Apply("f", (number("1e-20"),)), Apply("f", (ZERO,))) is False
    assert same(Apply("f", (Mul((I, I)),)), Apply("f", (number(-1),))) is True
    assert decimal(Apply("f", (ONE,))) is None
    assert compare(Apply("f", (ONE,)), number(100)) is None


def test_sums_with_variable_ends() -> None:
    k = Symbol("k")
    squares = Bound("sum", "k", ONE, N, Pow(k, number(2)))
    closed = quotient(Mul((N, Add((N, ONE)), Add((Mul((number(2), N)), ONE)))), number(6))
    assert same(squares, closed) is True
    assert same(squares, Add((closed, ONE))) is False
    shadowed = Bound("sum", "k", ONE, number(3), Mul((k, Bound("sum", "k", ONE, k, Mul((k, X))))))
    assert same(shadowed, Mul((number(25), X))) is True


def test_integrals_and_limits_are_unknown_values() -> None:
    t = Symbol("t")
    area = Bound("int", "t", ZERO, ONE, call("sin", t))
    assert same(area, Bound("int", "x", ZERO, ONE, call("sin", X))) is True
    assert same(area, Bound("int", "x", ZERO, number(2), call("sin", X))) is None
    assert same(area, difference(ONE, call("cos", ONE))) is None
    assert decimal(area) is None


def test_the_precision_is_left_as_it_was() -> None:
    before = ctx.prec
    same(Mul((Pow(number(10), number(1000)), sqrt(2))), sqrt(2))
    decimal(PI)
    ratio_sign(sqrt(X), Mul((number(2), sqrt(X))))
    assert ctx.prec == before


def test_numbers_that_end_the_process_if_flint_is_asked_for_their_integer() -> None:
    tiny = call("exp", negated(Pow(number(9), Pow(number(9), number(9)))))
    for node in (tiny, quotient(ONE, tiny), Pow(PI, number(-(10**30))), Pow(PI, number(10**30))):
        for name in ("floor", "ceil", "factorial", "double_factorial"):
            same(call(name, node), ONE)
        same(call("mod", node, number(7)), ONE)
        same(call("mod", number(7), node), ONE)
        same(Bound("sum", "k", ONE, node, ONE), ONE)
        same(Apply("f", (node,)), ONE)
        decimal(node)


@given(st.fractions(1, 1000, max_denominator=100), st.fractions(1, 1000, max_denominator=100))
def test_sums_of_roots(one: Fraction, other: Fraction) -> None:
    """(sqrt a + sqrt b)^2 = a + b + 2 sqrt(ab)."""
    left = Pow(Add((sqrt(Number(one)), sqrt(Number(other)))), number(2))
    right = Add((Number(one), Number(other), Mul((number(2), sqrt(Mul((Number(one), Number(other))))))))
    assert same(left, right) is True
    assert same(left, Add((right, number("1e-60")))) is False


@given(st.integers(-8, 8), st.integers(1, 8), st.integers(-8, 8))
def test_sines_of_sums(factor: int, divisor: int, shift: int) -> None:
    turned = Add((Mul((number(factor), X)), quotient(Mul((number(shift), PI)), number(divisor))))
    first, second = turned.terms
    left = call("sin", turned)
    right = Add(
        (Mul((call("sin", first), call("cos", second))), Mul((call("cos", first), call("sin", second))))
    )
    assert same(left, right) is True
    assert same(left, Add((right, number("1e-60")))) is False


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_order_of_numbers(one: float, other: float) -> None:
    left, right = number(Fraction(one)), number(Fraction(other))
    assert compare(Mul((left, PI)), Mul((right, PI))) == (one > other) - (one < other)
