"""Dates: in words and in ISO form; what could be read in two ways is none."""

import pytest

from guerdon_services.math.dates import Date, parse_date, same_date


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("January 5, 2020", (2020, 1, 5)),
        ("Jan 5, 2020", (2020, 1, 5)),
        ("Jan. 5, 2020", (2020, 1, 5)),
        ("5 January 2020", (2020, 1, 5)),
        ("5 Jan 2020", (2020, 1, 5)),
        ("the 5th of January 2020", (2020, 1, 5)),
        ("January 5th, 2020", (2020, 1, 5)),
        ("Sunday, January 5, 2020", (2020, 1, 5)),
        ("2020-01-05", (2020, 1, 5)),
        ("January 5", (0, 1, 5)),
        ("5 January", (0, 1, 5)),
        ("JANUARY 5", (0, 1, 5)),
        ("January 5.", (0, 1, 5)),
        ("Sept 30", (0, 9, 30)),
        ("May 1", (0, 5, 1)),
        (r"\text{January 5, 2020}", (2020, 1, 5)),
        (r"\text{January } 5, 2020", (2020, 1, 5)),
        (r"\text{January}\ 5,\ 2020", (2020, 1, 5)),
        (r"$\text{March 22}$", (0, 3, 22)),
        ("  March   22  ", (0, 3, 22)),
    ],
)
def test_dates(text: str, date: Date) -> None:
    assert parse_date(text) == date


@pytest.mark.parametrize(
    "text",
    [
        "", "5", "2020", "January", "January 2020", "5/1/2020", "1.5.2020", "01-05-2020", "2020-13-05", "2020-01-32",
        "January 32", "January 0", "Januarium 5", "January 5 or 6", "January 5, 2020, " + "x" * 60, "3 may 4 be",
        "5 May flowers",
    ],
)  # fmt: skip
def test_what_is_no_date(text: str) -> None:
    assert parse_date(text) is None


@pytest.mark.parametrize(
    ("answer", "gold", "same"),
    [
        ((2020, 1, 5), (2020, 1, 5), True),
        ((0, 1, 5), (2020, 1, 5), True),
        ((2020, 1, 5), (0, 1, 5), True),
        ((2020, 1, 5), (2021, 1, 5), False),
        ((2020, 1, 5), (2020, 5, 1), False),
        ((0, 1, 5), (0, 1, 6), False),
    ],
)
def test_a_year_counts_where_both_have_one(answer: Date, gold: Date, same: bool) -> None:
    assert same_date(answer, gold) is same
    assert same_date(gold, answer) is same
