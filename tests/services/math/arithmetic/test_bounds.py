"""Rational bounds of constants, written here in LaTeX."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon_services.math.arithmetic.balls import decimal
from guerdon_services.math.arithmetic.bounds import bounds
from guerdon_services.math.notation.lexer import lex
from guerdon_services.math.notation.tree import Add, Constant, Mul, Node, Number, Pow, quotient, root
from guerdon_services.math.reading.reader import Reader
from guerdon_services.math.reading.shapes import Quantity


def node(text: str) -> Node:
    shape = Reader().read(lex(text))
    assert isinstance(shape, Quantity)
    return shape.node


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("3", "2.99", "3.01"),
        (r"\pi", "3.14159265358979323846", "3.14159265358979323847"),
        ("e", "2.71828182845904523536", "2.71828182845904523537"),
        (r"(-\sqrt2)^3", "-2.828427124746190098", "-2.828427124746190097"),
        (r"(1-\sqrt2)^{-2}", "5.828427124746190097", "5.828427124746190098"),
        (r"\sqrt{\pi+e}", "2.4207177", "2.4207178"),
        (r"(\pi-3)(3-\pi)", "-0.02004848", "-0.02004847"),
        (r"\sqrt0", "-0.01", "0.01"),
        (r"\pi^0", "0.99", "1.01"),
    ],
)
def test_constants(text: str, low: str, high: str) -> None:
    found = bounds(node(text))
    assert found is not None
    assert Fraction(low) < found[0] <= found[1] < Fraction(high)


@pytest.mark.parametrize(
    "text",
    [
        r"\frac{1}{0}", r"0\cdot\frac10", r"\frac{1}{\sqrt4-2}", r"\sqrt{-1}", r"\sqrt{1-\sqrt2}", "2^{1/3}", r"2^\pi",
        r"\pi^7", r"\infty", "i", "x", r"\sin 1", "10^{400}",
    ],
)  # fmt: skip
def test_none(text: str) -> None:
    assert bounds(node(text)) is None


def number(value: int | Fraction) -> Number:
    return Number(Fraction(value))


_LEAVES = st.one_of(
    st.fractions(-100, 100, max_denominator=50).map(number),
    st.sampled_from((Constant("pi"), Constant("e"))),
    st.integers(0, 300).map(lambda value: root(number(value), number(2))),
)
_NODES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(Add),
        st.tuples(inner, inner).map(Mul),
        st.tuples(inner, inner).map(lambda pair: quotient(*pair)),
        st.tuples(inner, st.integers(-3, 3)).map(lambda pair: Pow(pair[0], number(pair[1]))),
    ),
    max_leaves=6,
)


@given(_NODES)
def test_the_value_is_between_them(value: Node) -> None:
    found, known = bounds(value), decimal(value)
    if found is not None and known is not None:
        assert found[0] - known[1] <= known[0] <= found[1] + known[1]
