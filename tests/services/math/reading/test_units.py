"""Units: which tokens after a value are one, and how large each is."""

from fractions import Fraction

import pytest

from guerdon_services.math.notation.lexer import lex
from guerdon_services.math.reading.shapes import canonical
from guerdon_services.math.reading.units import contradict, factor, multiple, split_unit


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("5 cm", "5", "cm"),
        (r"5\text{ cm}", "5", r"\text{cm}"),
        (r"5\,\mathrm{cm}", "5", r"\text{cm}"),
        ("5cm", "5", "cm"),
        (r"5\text{ cm}^2", "5", r"\text{cm}^2"),
        ("5 cm^2", "5", "cm^2"),
        (r"5\text{ cm}^{2}", "5", r"\text{cm}^{2}"),
        (r"5\text{ square meters}", "5", r"\text{square meters}"),
        (r"60\text{ km/h}", "60", r"\text{km/h}"),
        (r"60\ \frac{\text{km}}{\text{h}}", "60", r"\frac{\text{km}}{\text{h}}"),
        (r"9.8\text{ m/s}^2", "9.8", r"\text{m/s}^2"),
        ("3 apples", "3", "apples"),
        ("10 minutes", "10", "minutes"),
        ("5 min", "5", "min"),
        ("30 sec", "30", "sec"),
        (r"2\pi\text{ rad}", r"2\pi", r"\text{rad}"),
        (r"x\text{ cm}", "x", r"\text{cm}"),
        (r"\frac{1}{2}\text{ hours}", r"\frac{1}{2}", r"\text{hours}"),
    ],
)
def test_units_are_split_from_values(text: str, value: str, unit: str) -> None:
    before, after = split_unit(lex(text))
    assert (canonical(before), canonical(after)) == (value, unit)


@pytest.mark.parametrize(
    "text",
    [
        "5",
        "5x",
        "xy",
        "abc",
        "cm",
        "5m",
        "5 s",
        r"x^2",
        r"\frac{a}{b}",
        r"5\text{ or }6",
        r"5\text{ is wrong}",
        r"5\text{ if }x>0",
        r"5\text{ maybe 6}",
        r"5\text{ not}",
        r"5\text{ plus}",
        r"\sin x",
        "",
    ],
)
def test_what_has_no_unit(text: str) -> None:
    tokens = lex(text)
    assert split_unit(tokens) == (tokens, [])


@pytest.mark.parametrize(
    ("unit", "dimension", "size"),
    [
        ("m", "length^1", Fraction(1)),
        ("meters", "length^1", Fraction(1)),
        ("metre", "length^1", Fraction(1)),
        ("cm", "length^1", Fraction(1, 100)),
        ("Km", "length^1", Fraction(1000)),
        ("inches", "length^1", Fraction(254, 10_000)),
        ("feet", "length^1", Fraction(3048, 10_000)),
        ("miles", "length^1", Fraction(1_609_344, 1000)),
        ("kg", "mass^1", Fraction(1000)),
        ("grams", "mass^1", Fraction(1)),
        ("s", "time^1", Fraction(1)),
        ("minutes", "time^1", Fraction(60)),
        ("hr", "time^1", Fraction(3600)),
        ("days", "time^1", Fraction(86_400)),
        ("ml", "volume^1", Fraction(1, 1000)),
        ("cents", "dollars^1", Fraction(1, 100)),
        ("dollars", "dollars^1", Fraction(1)),
        ("cm^2", "length^2", Fraction(1, 10_000)),
        ("cm^{2}", "length^2", Fraction(1, 10_000)),
        ("m^3", "length^3", Fraction(1)),
        ("square meters", "length^2", Fraction(1)),
        ("sq ft", "length^2", Fraction(3048, 10_000) ** 2),
        ("cubic cm", "length^3", Fraction(1, 1_000_000)),
        ("km/h", "length^1 time^-1", Fraction(5, 18)),
        ("km per hour", "length^1 time^-1", Fraction(5, 18)),
        ("mph", "length^1 time^-1", Fraction(1_609_344, 3_600_000)),
        ("m/s^2", "length^1 time^-2", Fraction(1)),
        ("\\text{ m/s}^2", "length^1 time^-2", Fraction(1)),
        ("years", "months^1", Fraction(12)),
    ],
)
def test_sizes(unit: str, dimension: str, size: Fraction) -> None:
    assert factor(unit) == (dimension, size)


@pytest.mark.parametrize("unit", ["", "apples", "units", "square units", "people", "°", "cm^40"])
def test_what_has_no_size(unit: str) -> None:
    assert factor(unit) is None


def test_words_that_turn_a_value_contradict() -> None:
    assert contradict("dollars gain", "dollars loss")
    assert contradict("m above", "m")
    assert not contradict("dollars gain", "gain of dollars")
    assert not contradict("apples", "oranges")


def test_words_of_number_multiply() -> None:
    assert [multiple(word) for word in ("million", "Dozen", "hundred", "apples")] == [10**6, 12, 100, 0]
