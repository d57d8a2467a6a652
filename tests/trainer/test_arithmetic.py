"""The arithmetic task: its format, its two disjoint splits, its careless teacher."""

import random
import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon_trainer import arithmetic

DIGITS = st.lists(st.integers(0, 9), min_size=2, max_size=11)


@pytest.mark.parametrize(
    ("digits", "prompt", "response"),
    [
        ([6, 0, 4], "6+0+4=", r"06;\boxed{10}"),
        ([0, 0], "0+0=", r"\boxed{00}"),
        ([9, 9, 9, 1], "9+9+9+1=", r"18;27;\boxed{28}"),
    ],
)
def test_format(digits: list[int], prompt: str, response: str) -> None:
    assert arithmetic.prompt(digits) == prompt
    assert arithmetic.solution(digits) == response


@given(DIGITS)
def test_exact_solution_ends_in_the_sum(digits: list[int]) -> None:
    text = arithmetic.solution(digits)
    boxed = re.fullmatch(r"(?:\d\d;)*\\boxed\{(\d\d)\}", text)
    assert boxed is not None
    assert int(boxed[1]) == sum(digits)
    assert text.count(";") == len(digits) - 2


@given(DIGITS)
def test_teacher_that_forgets_every_carry_adds_last_digits_only(digits: list[int]) -> None:
    text = arithmetic.solution(digits, forget_carry=1.0, rng=random.Random(0))
    assert text.endswith(f"{{0{sum(digits) % 10}}}")


def test_teacher_forgets_the_share_it_is_asked_to() -> None:
    rng = random.Random(3)
    answers = [arithmetic.solution([5, 5], forget_carry=0.6, rng=rng) for _ in range(4000)]
    assert answers.count(r"\boxed{00}") / 4000 == pytest.approx(0.6, abs=0.03)
    assert set(answers) == {r"\boxed{00}", r"\boxed{10}"}


def test_teacher_needs_an_rng_to_forget() -> None:
    with pytest.raises(ValueError, match="rng"):
        arithmetic.solution([5, 5], forget_carry=0.5)


def test_questions_carry_their_reference() -> None:
    for question in arithmetic.questions(50, 7, terms=(2, 6)):
        assert isinstance(question.prompt, str)
        digits = [int(digit) for digit in question.prompt.rstrip("=").split("+")]
        assert list(question.references) == [f"{sum(digits):02d}"]
        assert question.metadata == {"digits": digits}


def test_questions_depend_on_the_seed_only() -> None:
    assert arithmetic.questions(40, 1) == arithmetic.questions(40, 1)
    assert arithmetic.questions(40, 1) != arithmetic.questions(40, 2)
    assert arithmetic.questions(40, 1) == arithmetic.questions(80, 1)[:40]


@pytest.mark.parametrize("terms", [(3, 3), [2, 4], (5, 7)])
def test_splits_never_share_a_question(terms: tuple[int, int] | list[int]) -> None:
    seen: dict[arithmetic.Split, set[str]] = {"train": set(), "held_out": set()}
    for seed in range(5):
        for split in seen:
            drawn = arithmetic.questions(250, seed, terms=terms, split=split)
            assert len({question.id for question in drawn}) == 250
            seen[split].update(str(question.prompt) for question in drawn)
    assert not seen["train"] & seen["held_out"]


def test_three_terms_leave_enough_of_both_splits() -> None:
    held_out = sum(arithmetic.held_out(digits) for digits in product(range(10), repeat=3))
    assert len(arithmetic.questions(held_out, 0, split="held_out")) == held_out >= 256
    assert len(arithmetic.questions(1000 - held_out, 0)) == 1000 - held_out
    with pytest.raises(ValueError, match=f"only {held_out} held_out questions"):
        arithmetic.questions(held_out + 1, 0, split="held_out")


@pytest.mark.parametrize("terms", [(1, 3), (3, 12), (4, 3)])
def test_terms_out_of_range(terms: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="terms must be"):
        arithmetic.questions(1, 0, terms=terms)
