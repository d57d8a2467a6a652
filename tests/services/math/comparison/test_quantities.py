"""Single values: exact numbers exactly, decimals to the digits that they show, units, percent, degrees."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon_services.math.arithmetic.values import Values
from guerdon_services.math.comparison.quantities import same_number, same_quantity
from guerdon_services.math.decide import decide, decide_long, integer_digits
from guerdon_services.math.meaning import tokens_of
from guerdon_services.math.notation.expression import number
from guerdon_services.math.notation.tree import Number
from guerdon_services.math.reading.reader import Reader
from guerdon_services.math.reading.shapes import Quantity


def quantity(text: str) -> Quantity:
    shape = Reader().read(tokens_of(text))
    assert isinstance(shape, Quantity)
    return shape


def numeral(text: str) -> Number:
    above, _, below = text.partition("/")
    if below:
        return Number(Fraction(int(above), int(below)))
    node = number(text)
    assert isinstance(node, Number)
    return node


@pytest.mark.parametrize(
    ("answer", "gold", "same"),
    [
        ("5", "5", True),
        ("5.0", "5", True),
        ("5", "5.000", True),
        ("1000050", "1000000", False),
        ("1e6", "1000000", True),
        ("100/3", "33.3", True),
        ("100/3", "33.33", True),
        ("100/3", "33.34", False),
        ("1/3", "0.33", False),  # two digits are too few to round to
        ("1/3", "0.333", True),
        ("33.333", "33.3", True),
        ("33.3", "33.33", False),
        ("33.36", "33.3", False),
        ("0.0049", "0.005", False),
        ("0.333", "1/3", False),  # an endless number is met by six digits of it
        ("0.333333", "1/3", True),
        ("0.333334", "1/3", True),
        ("0.333335", "1/3", False),
        ("0.666666", "2/3", True),
        ("0.666667", "2/3", True),
        ("0.125001", "1/8", False),  # 1/8 has an end
        ("0.46", "0.5", False),
        ("3.14", "22/7", False),
        ("22/7", "3.14", True),
        ("100000000000000000001", "100000000000000000000", False),
    ],
)
def test_numbers(answer: str, gold: str, same: bool) -> None:
    assert same_number(numeral(answer), numeral(gold)) is same


@pytest.mark.parametrize(
    ("answer", "gold", "same"),
    [
        # closed forms and decimals
        (r"\pi", "3.14", True),
        ("3.14", r"\pi", False),
        ("3.14159", r"\pi", True),
        ("3.14158", r"\pi", False),
        (r"\sqrt{2}", "1.41", False),  # off by more than 0.2 %
        (r"\sqrt{2}", "1.414", True),
        ("1.41421", r"\sqrt{2}", True),
        (r"\frac{100}{3}", "33.3", True),
        (r"2\pi", "6.28", True),
        (r"2\pi", "6.29", False),
        ("1.5\\times10^3", "1500", True),
        ("1.5e3", "1501", False),
        # percent
        (r"28\%", "28", True),
        ("28", r"28\%", True),
        ("0.28", r"28\%", True),
        (r"28\%", "0.28", True),
        ("28", "0.28", False),
        ("0.28", "28", False),
        (r"2800\%", "28", True),
        (r"2800\%", "0.28", False),
        (r"33.3\%", r"\frac{1}{3}", False),
        (r"\frac{1}{3}", r"33.3\%", True),
        (r"50\%", r"\frac12", True),
        # degrees
        ("90", r"90^\circ", True),
        (r"90^\circ", "90", True),
        (r"\frac{\pi}{2}", r"90^\circ", True),
        (r"90^\circ", r"\frac{\pi}{2}", True),
        ("90", r"\frac{\pi}{2}", False),
        (r"91^\circ", r"\frac{\pi}{2}", False),
        # units
        (r"5\text{ cm}", "5", True),
        ("5", r"5\text{ cm}", True),
        (r"5\text{ cm}", r"5\text{ centimeters}", True),
        (r"50\text{ mm}", r"5\text{ cm}", True),
        (r"5\text{ mm}", r"5\text{ cm}", False),
        (r"2\text{ hours}", r"120\text{ minutes}", True),
        (r"2\text{ hours}", r"2\text{ minutes}", False),
        (r"5\text{ cm}", r"5\text{ kg}", False),
        (r"5\text{ cm}^2", r"5\text{ cm}^3", False),
        (r"1\text{ m}^2", r"10000\text{ cm}^2", True),
        (r"\$5", "5", True),
        (r"500\text{ cents}", r"5\text{ dollars}", True),
        (r"5\text{ apples}", "6", False),
        (r"n\text{ even}", r"n\text{ odd}", False),
        ("3rd", "3", True),
    ],
)
def test_quantities(answer: str, gold: str, same: bool) -> None:
    assert same_quantity(Values(balls=True), quantity(answer), quantity(gold)) is same


@given(st.decimals(places=3, min_value=1, max_value=1000, allow_nan=False, allow_infinity=False))
def test_a_decimal_reference_is_met_by_what_rounds_to_it_and_by_nothing_else(shown: Decimal) -> None:
    gold = numeral(str(shown))
    for offset, near in ((Fraction(4, 10_000), True), (Fraction(6, 10_000), False)):
        for value in (gold.value + offset, gold.value - offset):
            assert same_number(Number(value), gold) is near


@given(st.integers(), st.integers())
def test_integers_are_exact(left: int, right: int) -> None:
    assert decide(str(left), str(right), Values(balls=False)).equal is (left == right)


@given(st.fractions(), st.fractions())
def test_fractions_are_exact(left: Fraction, right: Fraction) -> None:
    answer = f"\\frac{{{left.numerator}}}{{{left.denominator}}}"
    decision = decide(answer, f"{right.numerator}/{right.denominator}", Values(balls=False))
    assert decision.equal is (left == right)


@given(st.integers(0, 10**15))
def test_separators_do_not_count(value: int) -> None:
    grouped = f"{value:,}"
    for mark in (",", "{,}", "\\,", " ", "~", ",\\!"):
        assert decide(grouped.replace(",", mark), str(value), Values(balls=False)).equal, mark
        assert decide(str(value), grouped.replace(",", mark), Values(balls=False)).equal, mark
    assert decide(f"+{value}.0", str(value), Values(balls=False)).equal


@pytest.mark.parametrize("digits", [10, 5_000, 100_000])
def test_long_integers(digits: int) -> None:
    same = "7" * digits
    other = same[:-1] + "8"
    assert decide(same, same, Values(balls=False)).equal
    assert not decide(other, same, Values(balls=False)).equal
    assert decide_long(f" 0{same}", same).equal
    assert not decide_long(other, same).equal


@pytest.mark.parametrize(
    ("text", "digits"),
    [
        ("42", "42"),
        (" +0042 ", "42"),
        ("-0", "0"),
        ("- 7", "-7"),
        ("1,234,567", "1234567"),
        ("12,34", None),
        ("1 234", None),
        ("1.0", None),
        ("x", None),
        ("", None),
        ("٣", None),
    ],
)
def test_digits_of_an_integer(text: str, digits: str | None) -> None:
    assert integer_digits(text) == digits
