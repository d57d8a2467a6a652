"""Plain numbers: what reads as one, and when two are the same."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon_services.math.decision import UnreadableReference
from guerdon_services.math.fast import decide, decide_long
from guerdon_services.math.forms import Group, Scalar, read, split_list
from guerdon_services.math.normalise import key, normalise
from guerdon_services.math.numbers import equal_numbers, parse_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", Fraction(12)),
        ("-1,234,567.5", Fraction(-12345675, 10)),
        ("1 000", Fraction(1000)),
        (".5", Fraction(1, 2)),
        ("3.", Fraction(3)),
        ("1.5e3", Fraction(1500)),
        ("2 \\times 10^{-2}", Fraction(1, 50)),
        ("-\\frac{2}{4}", Fraction(-1, 2)),
        ("1\\frac{1}{2}", Fraction(3, 2)),
        ("1 1/2", Fraction(3, 2)),
        ("50%", Fraction(1, 2)),
        ("12 \\text{ cm}", Fraction(12)),
        ("5 apples", Fraction(5)),
        ("90^{\\circ}", Fraction(90)),
        ("\\frac{1}{0}", None),
        ("0,5", None),
        ("1,23", None),
        ("12,34,567", None),
        ("1e999999999", None),
        ("x", None),
        ("5x", None),
        ("", None),
        ("-", None),
        ("1/2/3", None),
        ("9" * 9000, None),
    ],
)
def test_parse(text: str, value: Fraction | None) -> None:
    number = parse_number(text)
    assert (None if number is None else number.value) == value


@given(st.integers(), st.integers())
def test_integers_are_exact(left: int, right: int) -> None:
    decision = decide(str(left), str(right))
    assert decision is not None
    assert decision.equal is (left == right)


@given(st.fractions(), st.fractions())
def test_fractions_are_exact(left: Fraction, right: Fraction) -> None:
    decision = decide(
        f"\\frac{{{left.numerator}}}{{{left.denominator}}}", f"{right.numerator}/{right.denominator}"
    )
    assert decision is not None
    assert decision.equal is (left == right)


@given(st.integers(0, 10**12))
def test_separators_do_not_count(value: int) -> None:
    for spelling in (
        f"{value:,}",
        f"{value:,}".replace(",", "{,}"),
        f"{value:,}".replace(",", "\\,"),
        f"+{value}.0",
    ):
        decision = decide(spelling, str(value))
        assert decision is not None
        assert decision.equal, spelling


@given(st.decimals(places=3, min_value=1, max_value=1000, allow_nan=False, allow_infinity=False))
def test_a_decimal_reference_is_met_by_what_rounds_to_it_and_by_nothing_else(value: object) -> None:
    number = parse_number(str(value))
    assert number is not None
    for offset, near in ((Fraction(4, 10000), True), (Fraction(6, 10000), False)):
        other = number.value + offset
        answer = parse_number(f"\\frac{{{other.numerator}}}{{{other.denominator}}}")
        assert answer is not None
        assert equal_numbers(answer, number) is near or answer.value == number.value


@pytest.mark.parametrize("digits", [10, 5_000, 100_000])
def test_long_integers(digits: int) -> None:
    left = "7" * digits
    for compare in (decide, decide_long):
        same, other = compare(left, left), compare(left[:-1] + "8", left)
        assert same is not None
        assert other is not None
        assert (same.equal, other.equal) == (True, False)


@pytest.mark.parametrize(
    "reference", ["", "   ", "$$", "\\text{}", "nan", "None", "an answer that only a reader could judge"]
)
def test_an_unreadable_reference_is_never_right(reference: str) -> None:
    for answer in ("42", "nan"):
        with pytest.raises(UnreadableReference):
            decide(answer, reference)


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("$\\dfrac12$", "\\frac{1}{2}"),
        ("\\left( 1 ,\\, 2 \\right)", "( 1 , 2 )"),
        ("x ≤ ½", "x \\leq \\frac{1}{2}"),
        ("\\text{Yes}.", "Yes"),
        ("\uff11\uff12", "12"),
        ("x²", "x^{2}"),
        ("x**2", "x^2"),
        ("sqrt(x+1)", "\\sqrt{x+1}"),
        ("\\\\frac{1}{2}", "\\frac{1}{2}"),
    ],
)
def test_normalise(text: str, normalised: str) -> None:
    assert normalise(text) == normalised


@given(st.text(max_size=200))
def test_normalise_answers_anything_and_settles(text: str) -> None:
    once = normalise(text)
    assert key(normalise(once)) == key(normalise(normalise(once)))


def test_keys_keep_what_changes_the_meaning() -> None:
    assert key("2^{n+1}") != key("2^n+1")
    assert key("1 2") != key("12")
    assert key("x_{1}") == key("x_1")
    assert key("Yes") == key("yes")
    assert key("N") != key("n")


def test_lists_split_outside_brackets_only() -> None:
    assert split_list("(1,2), (3,4)") == ["(1,2)", "(3,4)"]
    assert split_list("1,234,567") == ["1,234,567"]
    assert split_list("1, 234") == ["1", "234"]
    assert split_list("2 and 3 or 4") == ["2", "3", "4"]
    assert split_list("\\{1,2\\}") == ["\\{1,2\\}"]


def test_shapes() -> None:
    assert read("[0, 1)") == Group("[", ")", (Scalar("0"), Scalar("1")))
    assert read("0 \\leq x < 1") == read("[0, 1)")
    assert read("\\{x | 0 \\leq x < 1\\}") == read("[0, 1)")
    assert read("a \\pm 1") == Group("", "", (Scalar("a + 1"), Scalar("a - 1")))
    assert read("((3))") == Scalar("3")
