"""Units: which tokens after a value are one, and how large each is."""

from fractions import Fraction

import pytest

from guerdon_services.math.lexer import lex
from guerdon_services.math.shapes import canonical
from guerdon_services.math.units import factor, split_unit


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
        ("m", "length", Fraction(1)),
        ("meters", "length", Fraction(1)),
        ("metre", "length", Fraction(1)),
        ("cm", "length", Fraction(1, 100)),
        ("Km", "length", Fraction(1000)),
        ("inches", "length", Fraction(254, 10_000)),
        ("feet", "length", Fraction(3048, 10_000)),
        ("miles", "length", Fraction(1_609_344, 1000)),
        ("kg", "mass", Fraction(1000)),
        ("grams", "mass", Fraction(1)),
        ("s", "time", Fraction(1)),
        ("minutes", "time", Fraction(60)),
        ("hr", "time", Fraction(3600)),
        ("days", "time", Fraction(86_400)),
        ("ml", "volume", Fraction(1, 1000)),
        ("cents", "money", Fraction(1, 100)),
        ("dollars", "money", Fraction(1)),
        ("cm^2", "length^2", Fraction(1, 10_000)),
        ("cm^{2}", "length^2", Fraction(1, 10_000)),
        ("m^3", "length^3", Fraction(1)),
        ("square meters", "length^2", Fraction(1)),
        ("sq ft", "length^2", Fraction(3048, 10_000) ** 2),
        ("cubic cm", "length^3", Fraction(1, 1_000_000)),
    ],
)
def test_sizes(unit: str, dimension: str, size: Fraction) -> None:
    assert factor(unit) == (dimension, size)


@pytest.mark.parametrize("unit", ["", "apples", "units", "square units", "people", "°"])
def test_what_has_no_size(unit: str) -> None:
    assert factor(unit) is None
