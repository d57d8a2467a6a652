"""Each word that denies, wherever it stands beside a right value."""

# The words are of several languages.
# ruff: noqa: RUF001

import pytest

from guerdon_services.math.arithmetic.values import Values
from guerdon_services.math.decide import decide
from guerdon_services.math.extraction.unboxed import unboxed
from guerdon_services.math.notation.denials import is_denial, takes_back

WORDS = [
    "not", "cannot",
    "isn't", "isn’t", "isnt", "aren't", "wasn't", "weren't", "doesn't", "doesn ' t", "didn't", "couldn't",
    "wouldn't", "shouldn't", "hasn't", "hadn't", "ain't", "don't", "dont", "won't", "wont", "can't", "cant", "haven't",
    "mustn't", "wrong", "incorrect", "untrue", "mistaken", "erroneous", "false", "no", "nope", "nah", "never",
    "neither", "nor", "none", "nowhere", "except", "excluding", "unequal", "invalid", "impossible", "unlikely",
    "hardly", "fails", "nicht", "kein", "keine", "falsch", "faux", "falso", "incorrecto", "incorrecta", "неверно",
    "неправильно", "не", "нет", "不是", "不对", "错误", "并非",
]  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
def test_a_word_that_denies_a_value_is_not_paid(word: str) -> None:
    assert is_denial(word)
    assert is_denial(f"it {word.capitalize()} so")
    for answer in (
        f"{word}: 12", f"{word.capitalize()}: 12", rf"\text{{{word}: }}12", rf"\text{{{word} }}12",
        rf"12\text{{ {word}}}", rf"12\text{{ {word} right}}", rf"12\text{{ is {word}}}", f"12 {word}", f"{word} 12",
        rf"\text{{{word}}}=12", f"{word}=12",
    ):  # fmt: skip
        assert not decide(answer, "12", Values(balls=True)).equal, answer


@pytest.mark.parametrize(
    "text",
    ["", "x", "nose",
     "north", "notes", "know", "NO", "No. of apples", "no of apples", "want", "want to", "done", "donut",
     "winner", "norm", "nonzero", "non-negative", "exception", "cantor", "island", "arena", "fail", "Ann", "cm"],
)  # fmt: skip
def test_other_words_do_not_deny(text: str) -> None:
    assert not is_denial(text)


@pytest.mark.parametrize(
    "remark",
    ["not", "not right", " is not it", "isn't right", "wrong", "is wrong", "incorrect", "false", "no, it is", "nope",
     "that's wrong", "it is false", "is impossible", "is invalid", "cannot be right", "can't be true", "fails",
     "doesn't work", "不对"],
)  # fmt: skip
def test_a_choice_is_taken_back(remark: str) -> None:
    assert takes_back(remark)
    assert not decide(f"B. {remark}", "B", Values(balls=True)).equal


@pytest.mark.parametrize(
    "option",
    ["No", "False", "None of the above", "none of the above", "Cannot be determined", "cannot be determined",
     "Neither", "never", "Impossible", "Not enough information", "north", "notes"],
)  # fmt: skip
def test_an_option_may_have_such_a_text(option: str) -> None:
    assert not takes_back(option)
    assert decide(f"B. {option}", "B", Values(balls=True)).equal


@pytest.mark.parametrize(
    "response",
    ["The answer is not 42.", "The answer isn't 42.", "The answer isn’t 42", "The answer is never 42.",
     "The answer was not 42.", "The answer cannot be 42.", "The answer can't be 42.", "答案不是42。"],
)  # fmt: skip
def test_a_response_that_ends_in_a_denial_names_nothing(response: str) -> None:
    assert unboxed(f"We looked. {response}") is None
