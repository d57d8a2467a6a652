"""Rare spellings in the common one, and what only looks like them."""

import pytest

from guerdon_services.math.notation.variants import as_one_number, common, with_decimal_point


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("6.02 x 10^23", "6.02*10^23"),
        ("3x10^{-4}", "3*10^{-4}"),
        ("C_{10}^{3}", r"\binom{10}{3}"),
        ("C^3_{10}", r"\binom{10}{3}"),
        (r"\mathrm{C}_5^2", r"\binom{5}{2}"),
        ("{}_{10}C_3", r"\binom{10}{3}"),
        (r"\frac{C_5^2}{C_8^2}", r"\frac{\binom{5}{2}}{\binom{8}{2}}"),
        ("A_5^2", r"\frac{5!}{3!}"),
        ("1'234'567", "1234567"),
        ("1'234.5", "1234.5"),
        ("1.234.567", "1234567"),
        ("1.234.567,8", "1234567.8"),
        ("1_000_000", "1000000"),
        ("^3/_4", r"\frac{3}{4}"),
        ("60^{o}", r"60^{\circ}"),
        ("3 +/- 2", r"3 \pm  2"),
    ],
)
def test_a_rare_spelling_is_replaced(text: str, expected: str) -> None:
    assert common(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "3x + 10",
        "3x 10",
        "3x 10^x",  # both are the variable
        "C_1^2",  # the square of a constant: there are not two among one
        "C_n^2",
        "aC_5^2",
        "C_5^2!",
        "C_5^{2}^3",
        "1.234",
        "1.234.5678",
        "1_000",
        "f'(100)",
        "x_100",
        "12.345.678.9",
    ],
)
def test_other_texts_stay(text: str) -> None:
    assert common(text) == text


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12,34,567", "1234567"),
        ("10,00,000", "1000000"),
        ("C(10, 3)", r"\binom{10}{3}"),
        ("P(5,2)", r"\frac{5!}{3!}"),
        ("12,345", None),
        ("12,345,67", None),
        ("12, 34, 567", None),
        ("C(3, 10)", None),
        ("C(1.5, 1)", None),
        ("(10, 3)", None),
        ("P(3, 1)", None),  # would be met by one coordinate of the point
        ("C(3, 2)", None),
        ("(12,34,567)", None),
        (r"\{1,23,456\}", None),
    ],
)
def test_what_may_be_a_number_or_not(text: str, number: str | None) -> None:
    assert as_one_number(text) == number


def test_a_decimal_comma_after_separators() -> None:
    assert with_decimal_point("1.234,56") == "1234.56"
    assert with_decimal_point("1 234 567,8") == "1234567.8"
    assert with_decimal_point("1.234, 56") == "1.234, 56"
    assert with_decimal_point("1.23,4") == "1.23,4"
