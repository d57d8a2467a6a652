"""Entities and doubled backslashes, undone once for all rooms."""

import pytest

from guerdon_services.math.notation.escapes import decoded, single_backslashes, single_commands


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("x&lt;2", "x<2"), ("x&amp;lt;2", "x<2"), ("&#47;", "/"), ("&#x2F;", "/"), ("&frac12;", "½"),
        ("a&nbsp;b", "a b"),
        ("1&2", "1&2"), (r"1&2\\3&4", r"1&2\\3&4"), ("a & b; c", "a & b; c"), ("", ""),
    ],
)  # fmt: skip
def test_decoded(text: str, plain: str) -> None:
    assert decoded(text) == plain


@pytest.mark.parametrize(
    ("text", "whole", "commands"),
    [
        (r"\\frac{1}{2}", r"\frac{1}{2}", r"\frac{1}{2}"),
        (r"\frac{1}{2}", r"\frac{1}{2}", r"\frac{1}{2}"),
        (r"\\pi+\pi", r"\\pi+\pi", r"\pi+\pi"),
        (r"\\(5\\)", r"\(5\)", r"\(5\)"),
        (r"1\\2", r"1\\2", r"1\\2"),
        (
            r"\begin{matrix}1\\a\end{matrix}",
            r"\begin{matrix}1\\a\end{matrix}",
            r"\begin{matrix}1\\a\end{matrix}",
        ),
    ],
)
def test_backslashes(text: str, whole: str, commands: str) -> None:
    assert single_backslashes(text) == whole
    assert single_commands(text) == commands
