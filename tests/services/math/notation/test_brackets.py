"""Brackets: depths, splits outside them, pairs; and the same result however deep they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon_services.math.notation.brackets import enclosed, levels, pairs, split, split_with
from guerdon_services.math.notation.lexer import Token, Unreadable, lex

PIECES = st.lists(
    st.sampled_from(["1", "x", "(", ")", "[", "]", r"\{", r"\}", "{", "}", ",", ";", "<"]), max_size=14
)


def texts(parts: list[list[Token]]) -> list[str]:
    return ["".join(token.text for token in part) for part in parts]


def test_a_bracket_counts_as_outside() -> None:
    found = [(token.text, depth) for token, depth in levels(lex("a(b[c])d"))]
    assert found == [("a", 0), ("(", 0), ("b", 1), ("[", 1), ("c", 2), ("]", 1), (")", 0), ("d", 0)]


def test_environments_count_as_brackets() -> None:
    tokens = lex(r"1,\begin{matrix}2,3\end{matrix},4")
    assert texts(split(tokens, {","})) == ["1", "matrix2,3end", "4"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("1,2", ["1", "2"]), ("(1,2),3", ["(1,2)", "3"]), (r"\{1,2\}", [r"\{1,2\}"]), (",", ["", ""]), ("", [""]),
        ("f(a,b)", ["f(a,b)"]), ("[1,2),(3,4]", ["[1,2)", "(3,4]"]), (")1,2", [")1,2"]), ("1,,2", ["1", "", "2"]),
    ],
)  # fmt: skip
def test_split(text: str, parts: list[str]) -> None:
    assert texts(split(lex(text, thousands=False), {","})) == parts


def test_words_do_not_separate() -> None:
    tokens = [Token("number", "1"), Token("text", ","), Token("number", "2")]
    assert split(tokens, {","}) == [tokens]


def test_signs_come_with_the_parts() -> None:
    parts, signs = split_with(lex(r"1<x\leq 3"), {"<", r"\leq"})
    assert (texts(parts), signs) == (["1", "x", "3"], ["<", r"\leq"])


def test_too_many_parts() -> None:
    with pytest.raises(Unreadable, match="501 items"):
        split(lex("1;" * 500), {";"})


@pytest.mark.parametrize(
    ("text", "whole"),
    [("(a)", True), ("(a)(b)", False), ("((a)(b))", True), ("(", False), ("a", False), ("()", True), ("(a)b", False),
     (r"\{1,(2)\}", True), ("(a", False), ("(1,2]", True)],
)  # fmt: skip
def test_enclosed(text: str, whole: bool) -> None:
    assert enclosed(lex(text)) is whole


@given(PIECES)
def test_parts_and_separators_make_the_whole_and_pairs_match(pieces: list[str]) -> None:
    tokens = [Token("mark", piece) for piece in pieces]
    parts, signs = split_with(tokens, {",", "<"})
    joined = parts[0]
    for sign, part in zip(signs, parts[1:], strict=True):
        joined = [*joined, Token("mark", sign), *part]
    assert joined == tokens
    inside = [Token("mark", "("), *tokens, Token("mark", ")")]
    if all(depth >= 0 for _, depth in levels(tokens)):
        assert split(inside, {","}) == [inside]
    for opened, closed in pairs(tokens).items():
        assert opened < closed
        assert pairs(tokens[opened + 1 : closed]).keys() == {
            index - opened - 1 for index in pairs(tokens) if opened < index < closed
        }
