"""Where a variable runs, and what is said of all or some numbers."""

import pytest

from guerdon_services.math.notation.lexer import lex
from guerdon_services.math.reading.domains import excepted, is_domain, statement, without_domain
from guerdon_services.math.reading.shapes import canonical


@pytest.mark.parametrize(
    "text",
    [
        r"k \in \mathbb{Z}",
        r"n \in N^*",
        r"n\in\mathbb{N}_+",
        r"a, b \in R",
        r"\theta \in \mathbb R",
        r"x_1 \in \mathbb{R}",
    ],
)
def test_a_domain(text: str) -> None:
    assert is_domain(lex(text))


@pytest.mark.parametrize(
    "text",
    [
        r"\forall x \in \mathbb{R}",
        r"\exists x \in \mathbb{R}",
        r"x \in [0, 1]",
        r"x \in A",
        r"2 \in \mathbb{Z}",
    ],
)
def test_no_domain(text: str) -> None:
    assert not is_domain(lex(text))


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (r"k\pi (k \in \mathbb{Z})", r"k\pi"),
        ("y=x^2 (x>0)", "y=x^2,x>0"),
        ("P(X>1)", "P(X>1)"),  # no condition on a value
        ("f(x)", "f(x)"),
    ],
)
def test_a_domain_after_a_value(text: str, left: str) -> None:
    assert canonical(without_domain(lex(text))) == left


def test_a_statement_has_no_name_for_its_variable() -> None:
    kept = statement(lex(r"\exists x_0 \in \mathbb{R}, x_0^2 \le 0"))
    assert kept == statement(lex(r"\exists t\in\mathbb{R}: t^2\leqslant 0"))
    assert kept != statement(lex(r"\forall x \in \mathbb{R}, x^2 \le 0"))
    assert kept != statement(lex(r"\exists x \in \mathbb{R}, x^2 < 0"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"\forall x, 2(x+1)>0", r"\forall x, 2x+1>0"),
        (r"\forall x, (x-1)(x+2)>0", r"\forall x, x-1(x+2)>0"),
        (r"\exists a, a + x = 1", r"\exists x, x + x = 1"),
        (r"\exists a, a + x = 1", r"\exists a, a + a = 1"),
        (r"\exists x \in R, x \ne 1,2", r"\exists x \in R, x \ne 12"),
    ],
)
def test_statements_keep_their_brackets_and_other_variables(one: str, other: str) -> None:
    assert statement(lex(one)) != statement(lex(other))


@pytest.mark.parametrize(
    "text",
    [
        r"\exists t \in \mathbb{R} (t^2 \le 0)",
        r"\exists t \in \mathbb{R}: t^2 \le 0",
    ],
)
def test_the_mark_before_what_is_said_may_be_any(text: str) -> None:
    assert statement(lex(text)) == statement(lex(r"\exists x \in \mathbb{R}, x^2 \le 0"))


def test_all_numbers_but_some() -> None:
    assert canonical(excepted(lex("all real numbers except 2"))) == "2"
    assert canonical(excepted(lex(r"\text{all reals other than } x = 2"))) == "x=2"
    assert excepted(lex("the answer is 2")) == []
