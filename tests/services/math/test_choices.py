"""Multiple choice: a letter, several letters, a letter with its value."""

import pytest

from guerdon_services.math.arithmetic.values import Values
from guerdon_services.math.decide import decide
from guerdon_services.math.decision import UnreadableReference


@pytest.mark.parametrize(
    "answer",
    [
        "B", "b", "(B)", "[B]", "B.", "B)", "(B).", r"\text{B}", r"\text{(B)}", r"\textbf{(B)}", r"\mathrm{B}", "$B$",
        "**B**", "Option B", "choice (B)", "Answer: B", "B. 42", "(B) 42", "B: 42", r"\textbf{(B)}\ \frac12",
        r"\text{B. }x+1", "The answer is B",
    ],
)  # fmt: skip
def test_ways_to_choose(answer: str) -> None:
    assert decide(answer, "B", Values(balls=True)).equal
    assert not decide(answer, "C", Values(balls=True)).equal


@pytest.mark.parametrize(
    "answer", ["", "A", "(C)", "AB", "A or B", "A, B", "BB", "Bob", "both", "42", "x", "not B"]
)
def test_what_does_not_choose(answer: str) -> None:
    assert not decide(answer, "B", Values(balls=True)).equal


@pytest.mark.parametrize(
    ("answer", "reference", "equal"),
    [
        ("AC", "A, C", True),
        ("C, A", "AC", True),
        ("A and C", "AC", True),
        ("(A), (C)", "AC", True),
        (r"\text{A, C}", "AC", True),
        ("A", "AC", False),
        ("ABC", "AC", False),
        ("AB", "AC", False),
        ("", "AC", False),
        ("42", "AC", False),
    ],
)
def test_several_letters(answer: str, reference: str, equal: bool) -> None:
    assert decide(answer, reference, Values(balls=True)).equal is equal


@pytest.mark.parametrize(
    ("answer", "equal"),
    [
        ("B", True),
        ("(B)", True),
        ("42", True),
        ("B. 42", True),
        (r"\textbf{(B)}\ 42", True),
        ("(B) 84/2", True),
        ("A. 42", False),
        ("B. 43", False),
        ("43", False),
        ("C", False),
        ("", False),
    ],
)
@pytest.mark.parametrize("reference", ["B. 42", "(B) 42", r"\textbf{(B)}\ 42", r"\text{(B)}\ 42"])
def test_a_letter_with_its_value(answer: str, reference: str, equal: bool) -> None:
    assert decide(answer, reference, Values(balls=True)).equal is equal


@pytest.mark.parametrize(
    ("answer", "reference", "equal"),
    [
        ("B. 42", "42", True),
        ("(B) 42", "42", True),
        ("B. 43", "42", False),
        ("B", "42", False),
        ("B+1", "B", False),
        ("(A)(B)", "AB", True),
        ("A(x+1)", "x+1", False),
        ("E", "e", False),
    ],
)
def test_letters_beside_values(answer: str, reference: str, equal: bool) -> None:
    assert decide(answer, reference, Values(balls=True)).equal is equal


def test_many_letters_are_read_in_one_step() -> None:
    decision = decide("B. " * 10_000 + "42", "42", Values(balls=True))
    assert not decision.equal


def test_a_letter_may_choose_a_text_that_cannot_be_judged() -> None:
    reference = "B. the slope of the line is positive"
    assert decide("B", reference, Values(balls=True)).equal
    assert not decide("C", reference, Values(balls=True)).equal
    with pytest.raises(UnreadableReference):
        decide("the line goes up", reference, Values(balls=True))
