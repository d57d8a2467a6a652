"""Measures in several units and angles in degrees and minutes."""

from fractions import Fraction

import pytest

from guerdon_services.math.notation.lexer import lex
from guerdon_services.math.notation.tree import Number
from guerdon_services.math.reading.compound import compound
from guerdon_services.math.reading.shapes import Quantity


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        (r"1\text{ h }30\text{ min}", Fraction(3, 2), "h"),
        ("5 ft 6 in", Fraction(11, 2), "ft"),
        ("2 hours, 30 minutes and 36 seconds", Fraction(251, 100), "hours"),
        (r"3 \mathrm{~kg} 250 \mathrm{~g}", Fraction(13, 4), "kg"),
        ("1 h 30 min", Fraction(3, 2), "h"),
    ],
)
def test_a_measure_in_several_units(text: str, value: Fraction, unit: str) -> None:
    assert compound(lex(text)) == Quantity(Number(value), unit)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"45^\circ 30'", Fraction(91, 2)),
        (r"45°30^\prime 36''", Fraction(4551, 100)),
        ("1° 0' 36''", Fraction(101, 100)),
    ],
)
def test_an_angle_in_degrees_and_minutes(text: str, value: Fraction) -> None:
    assert compound(lex(text)) == Quantity(Number(value), degrees=True)


@pytest.mark.parametrize(
    "text",
    [
        "5 ft",
        "30 min 1 h",  # the smaller unit first
        "5 ft 6 kg",
        "5 apples 6 pears",
        "5 m 6",
        "45' 30°",
        "45° 30 min",
        "2x 3y",
        "3 and 4 cm",
    ],
)
def test_other_values_are_left_to_others(text: str) -> None:
    assert compound(lex(text)) is None
