"""No two texts that mean different things share a spelling: the spelling decides that two texts are the same."""

from collections import defaultdict
from itertools import product

import pytest

from guerdon_services.math.meaning import tokens_of
from guerdon_services.math.notation.lexer import Unreadable
from guerdon_services.math.reading.leaves import is_words
from guerdon_services.math.reading.reader import Reader
from guerdon_services.math.reading.shapes import canonical

FRAGMENTS = [
    "1", "2", "12", "{", "}", "{1}", "{12}", "^", "_", "a", "ab", "e", " ", ".", ",", "(", ")", "-", "!", "|", "'", "%",
    ":", r"\frac", r"\sqrt", r"\log", r"\sin", "sin", "sinx", r"\pi", r"\alpha", r"\text{ab}", r"\text{1}",
    r"\vec{a}", r"\bar{a}", r"\mathbb{R}", "R", r"\times", "5 cm", "1,234", "1234", "0.5", ".5", "½", "²", "and",
    "or", r"\{", r"\}",
]  # fmt: skip


def meaning(text: str) -> tuple[str, str] | None:
    """Spelling and shape of a text that can be read and is no prose, of which the case does not count."""
    try:
        tokens = tokens_of(text)
        return None if is_words(tokens) else (canonical(tokens), repr(Reader().read(tokens)))
    except Unreadable:
        return None


@pytest.mark.parametrize("first", FRAGMENTS)
def test_one_spelling_has_one_meaning(first: str) -> None:
    shapes: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for rest in product(["", *FRAGMENTS], repeat=2):
        text = "".join([first, *rest])
        found = meaning(text)
        if found:
            shapes[found[0]][found[1]] = text
    clashes = {spelling: list(texts.values()) for spelling, texts in shapes.items() if len(texts) > 1}
    assert not clashes


@pytest.mark.parametrize(
    ("one", "other"),
    [("2^{1}0", "2^10"), ("a_{1}2", "a_12"), (r"\log_{1}6", r"\log_16"), (r"\frac12 3", r"\frac{1}{23}"),
     (r"\sqrt{1}2", r"\sqrt{12}"), ("1{2}", "12"), ("2^{1}.5", "2^{1.5}"), ("1 2", "12"), ("1 .5", "1.5"),
     (". 5", ".5"), ("1,234", "1,23,4"),
     (r"a\text{b}", "ab"), (r"\bar{a}b", r"\bar{ab}"), ("e1", "1e1"), ("x^{a}(b)", "x^a b"), (r"\{1\}", "1")],
)  # fmt: skip
def test_texts_that_differ_by_braces_or_space_keep_apart(one: str, other: str) -> None:
    assert canonical(tokens_of(one)) != canonical(tokens_of(other))
