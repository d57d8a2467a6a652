"""Exact values in square roots and i, written here in LaTeX."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon_services.math.arithmetic.radicals import same
from guerdon_services.math.notation.lexer import lex
from guerdon_services.math.notation.tree import Add, Mul, Node, Number, Pow, quotient, root
from guerdon_services.math.reading.reader import Reader
from guerdon_services.math.reading.shapes import Quantity

ROOT = Number(Fraction(1, 2))


def sqrt(value: Fraction | int) -> Node:
    return root(Number(Fraction(value)), Number(Fraction(2)))


def node(text: str) -> Node:
    shape = Reader().read(lex(text))
    assert isinstance(shape, Quantity)
    return shape.node


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (r"\sqrt{8}", r"2\sqrt{2}", True),
        (r"\frac{1}{\sqrt2-1}", r"1+\sqrt2", True),
        (r"\sqrt2\sqrt3", r"\sqrt6", True),
        (r"\sqrt{\frac{3}{4}}", r"\frac{\sqrt3}{2}", True),
        (r"2^{-\frac12}", r"\frac{\sqrt2}{2}", True),
        (r"8^{3/2}", r"16\sqrt2", True),
        (r"\sqrt{-4}", "2i", True),
        (r"(-4)^{3/2}", "-8i", True),
        (r"(-4)^{-1/2}", r"-\frac{i}{2}", True),
        (r"\sqrt{-2}\sqrt{-3}", r"-\sqrt6", True),
        (r"(1+i)^8", "16", True),
        (r"\frac{1}{1+i}", r"\frac{1-i}{2}", True),
        (r"(\sqrt2-\sqrt2)^0", "1", True),
        (r"\sqrt{10^{20}}", "10^{10}", True),
        (r"\sqrt2", "1.41421356237309504880168872", False),
        (r"\sqrt2+\sqrt3", r"\sqrt5", False),
        (r"\sqrt{-4}", "2", False),
        (r"\sqrt2", r"-\sqrt2", False),
    ],
)  # fmt: skip
def test_equality(left: str, right: str, equal: bool) -> None:
    one, other = node(left), node(right)
    assert same(one, other) is equal
    assert same(other, one) is equal


@pytest.mark.parametrize(
    "text",
    [
        r"\frac{1}{\sqrt4-2}", r"\frac10", r"0\cdot\frac10", r"\left(\frac10\right)^0", r"\sqrt{1+\sqrt2}", r"2^{1/3}",
        r"\frac{1}{1+\sqrt2+\sqrt3}", r"\pi", "x", r"\sqrt{1000000007}", "2^{65}", r"\ln 2",
    ],
)  # fmt: skip
def test_what_is_none_of_them(text: str) -> None:
    value = node(text)
    assert same(value, Number(Fraction(1))) is None
    assert same(Number(Fraction(1)), value) is None


_NUMBERS = st.fractions(-50, 50, max_denominator=20)


@given(_NUMBERS, _NUMBERS, st.integers(2, 200), _NUMBERS, _NUMBERS, st.integers(2, 200))
def test_products_are_multiplied_out(
    a: Fraction, b: Fraction, m: int, c: Fraction, d: Fraction, n: int
) -> None:
    """(a + b*sqrt m)(c + d*sqrt n) multiplied out is the same, and differs when it changes by a little."""
    left = Mul((Add((Number(a), Mul((Number(b), sqrt(m))))), Add((Number(c), Mul((Number(d), sqrt(n)))))))
    terms = (
        Number(a * c),
        Mul((Number(a * d), sqrt(n))),
        Mul((Number(b * c), sqrt(m))),
        Mul((Number(b * d), sqrt(m * n))),
    )
    assert same(left, Add(terms)) is True
    assert same(left, Add((*terms, Number(Fraction(1, 10**9))))) is False


@given(_NUMBERS.filter(bool), _NUMBERS, st.integers(2, 200))
def test_quotients_undo_products(a: Fraction, b: Fraction, n: int) -> None:
    value = Add((Number(a), Mul((Number(b), sqrt(n)))))
    undefined = a * a == b * b * n
    found = same(Mul((value, quotient(Number(Fraction(1)), value))), Number(Fraction(1)))
    assert found is True or (undefined and found is None)
    assert same(Pow(sqrt(n), Number(Fraction(2))), Number(Fraction(n))) is True
    assert same(Pow(Number(Fraction(n)), ROOT), sqrt(n)) is True
