"""Trees: free variables and size, also of trees that share their parts."""

from fractions import Fraction

import pytest

from guerdon_services.math.notation.expression import MAX_HEIGHT, parse
from guerdon_services.math.notation.lexer import Unreadable, lex
from guerdon_services.math.notation.tree import ONE, Add, Node, Number, Symbol, is_within, symbols


def read(text: str) -> Node:
    return parse(lex(text))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("1", ""), ("x", "x"), ("x+y^{z}", "xyz"), (r"\sum_{k=1}^{n} k a", "na"), (r"\int_0^1 tx\,dt", "x"),
        (r"\lim_{x\to a} x+x", "ax"), (r"\sum_{k=1}^{2}\sum_{j=1}^{2} jkm", "m"), (r"f(x)+\sqrt[n]{y}", "xny"),
        ("e^{i\\pi}", ""),
    ],
)  # fmt: skip
def test_symbols(text: str, names: str) -> None:
    assert symbols(read(text)) == set(names)


def test_shared_parts_count_each_time() -> None:
    node: Node = Symbol("x")
    for _ in range(60):
        node = Add((node, node))
    assert not is_within((node,), nodes=10_000, height=100)


def test_size() -> None:
    node = Add((ONE, Add((ONE, Number(Fraction(2))))))
    assert is_within((node,), nodes=5, height=3)
    assert not is_within((node,), nodes=4, height=3)
    assert not is_within((node,), nodes=5, height=2)
    assert is_within((node, ONE), nodes=6, height=3)
    assert not is_within((node, ONE), nodes=5, height=3)


def test_no_tree_is_higher_than_the_bound() -> None:
    for text in ("(" * 45 + "x" + ("!" * 19 + ")") * 45, "max(" * 50 + "1" + (",1" * 39 + ")") * 50):
        with pytest.raises(Unreadable):
            read(text)
    for count in range(1, 20):
        try:
            node = read("(" * 20 + "x" + ("!" * count + ")") * 20)
        except Unreadable:
            continue
        assert is_within((node,), nodes=10_000, height=MAX_HEIGHT)
    assert is_within((read("-(" * 29 + "x" + ")" * 29),), nodes=10_000, height=MAX_HEIGHT)
