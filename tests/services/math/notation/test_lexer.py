"""Tokens: what is the same in LaTeX, ASCII and Unicode mathematics gives the same ones."""

# The tables are about characters that look alike.
# ruff: noqa: RUF001

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon_services.math.meaning import tokens_of
from guerdon_services.math.notation.lexer import MAX_TOKENS, Token, Unreadable, lex
from guerdon_services.math.reading.shapes import canonical

_SUFFIXES = {"number": "", "mark": "", "word": ":w", "function": ":f", "text": ":t", "environment": ":e"}


def shown(tokens: list[Token]) -> str:
    """Tokens in a line: :w word, :f function, :t text, :e environment, ~ after space, ' with separators."""
    return " ".join(
        ("~" if token.spaced else "")
        + token.text.replace(" ", "_")
        + _SUFFIXES[token.kind]
        + ("'" if token.grouped else "")
        for token in tokens
    )


NUMBERS = [
    (r"12", "12"),
    (r"-12", "- 12"),
    (r"−12", "- 12"),
    (r"0.50", "0.50"),
    (r".5", ".5"),
    (r"7.", "7 ."),
    (r"1e5", "1e5"),
    (r"1.5E-3", "1.5E-3"),
    (r"2e", "2 e:w"),
    (r"１２．５", "12.5"),
    (r"٣", "3"),
    (r"𝟙𝟚", "12"),
    (r"0.1\overline{6}", "0.1(6)"),
    (r"0.\bar{3}", "0.(3)"),
    (r"0.1\dot{2}3\dot{4}", "0.1(234)"),
    (r"①②", "~1 , ~2 ,"),
]
SEPARATORS = [
    (r"1,234,567", "1234567'"),
    (r"12,345.6", "12345.6'"),
    (r"1{,}234", "1234"),
    (r"1\,234", "1234"),
    (r"1,\!234", "1234"),
    (r"1 234", "1234"),
    (r"1~234", "1234"),
    (r"1,23", "1 , 23"),
    (r"1,2345", "1 , 2345"),
    (r"0,123", "0 , 123"),
    (r"(1,234)", "( 1 , 234 )"),
    (r"\{1,234\}", r"\{ 1 , 234 \}"),
    (r"x_1,234", "x:w _ 1 , 234"),
]
SIGNS = [
    (r"3×4", "3 * 4"),
    (r"3\times4", "3 * 4"),
    (r"3\cdot4", "3 * 4"),
    (r"3·4", "3 * 4"),
    (r"3÷4", "3 / 4"),
    (r"x**2", "x:w ^ 2"),
    (r"x≤3", r"x:w \leq ~3"),
    (r"x<=3", r"x:w \leq 3"),
    (r"x\leqslant3", r"x:w \leq 3"),
    (r"x!=3", r"x:w \neq 3"),
    (r"x\not=3", r"x:w \neq 3"),
    (r"x≠3", r"x:w \neq ~3"),
    (r"x\not\in A", r"x:w \notin ~A:w"),
    (r"a->b", r"a:w \to b:w"),
    (r"a=>b", "a:w , b:w"),
    (r"±3", r"\pm ~3"),
    (r"≈3", r"\approx ~3"),
    (r"5!!", "5 ! !"),
    (r"x\mid y", "x:w | ~y:w"),
    (r"\lvert x\rvert", "| ~x:w |"),
    (r"⌊x⌋", r"\lfloor ~x:w \rfloor"),
    (r"1：2", "1 : 2"),
    (r"1、2", "1 , 2"),
    (r"（1，2）", "( 1 , 2 )"),
    (r"1…n", r"1 \dots ~n:w"),
]
SCRIPTS = [
    (r"x²", "x:w ^ { 2 }"),
    (r"x⁻¹", "x:w ^ { - 1 }"),
    (r"x₁₂", "x:w _ { 12 }"),
    (r"x_1", "x:w _ 1"),
    (r"√2", r"\sqrt ~2"),
    (r"∛x", r"\sqrt [ 3 ] ~x:w"),
    (r"½", r"\frac { 1 } { 2 }"),
    (r"\dfrac{1}{2}", r"\frac { 1 } { 2 }"),
    (r"sqrt(2)", r"\sqrt ( 2 )"),
    (r"2π", r"2 \pi"),
    (r"2pi", r"2 \pi"),
    (r"-∞", r"- \infty"),
    (r"f^\prime", "f:w ^ '"),
]
FUNCTIONS = [
    (r"\sin^2 x", "sin:f ^ 2 ~x:w"),
    (r"exp(16)", "exp:f ( 16 )"),
    (r"sinx", "sinx:w"),
    (r"\operatorname{lcm}(4,6)", "lcm:f ( 4 , 6 )"),
    (r"\mathrm{gcd}(4,6)", "gcd:f ( 4 , 6 )"),
    (r"\log_2 8", "log:f _ 2 ~8"),
    (r"max(1,2)", "max:f ( 1 , 2 )"),
    (r"5 min", "5 ~min:w"),
    (r"\int_0^1 x\,dx", r"\int _ 0 ^ 1 ~x:w ~dx:w"),
    (r"\lim_{x\to0}", r"\lim _ { x:w \to 0 }"),
]
SETS = [
    (r"\left(1,2\right]", "( 1 , 2 ]"),
    (r"\bigl[1,2\bigr)", "[ 1 , 2 )"),
    (r"\left.x\right|", "x:w |"),
    (r"\lbrace1\rbrace", r"\{ 1 \}"),
    (r"(0,1)U(2,3)", r"( 0 , 1 ) \cup ( 2 , 3 )"),
    (r"\mathbb R", r"\mathbbR"),
    (r"\mathbf{R}", r"\mathbbR"),
    (r"ℝ", r"\mathbbR"),
    (r"\mathbb{Z}^+", r"\mathbbZ+"),
    (r"\varnothing", r"\emptyset"),
    (r"∅", r"\emptyset"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"pmatrix:e 1 & 2 \\ 3 & 4 end:e"),
    (r"\begin{array}{c|c}1&2\end{array}", "array:e 1 & 2 end:e"),
]
WORDS = [
    (r"\text{ cm}", "~cm:t"),
    (r"\text{5}", "{ 5 }"),
    (r"\mathrm{cm}", "cm:t"),
    (r"\mathrm{e}", "e:w"),
    (r"\text{ and }", "and"),
    (r"x \text{ or } y", "x:w ~or ~y:w"),
    (r"1 或 2", "1 ~or ~2"),
    (r"\textbf{(A)}", "(A):t"),
    (r"\mathbf{x}", "x:w"),
    (r"\vec{v}", "v:w"),
    (r"\overline{AB}", r"\bar_AB"),
    (r"5\%", "5 %"),
    (r"50 percent", "50 ~%"),
    (r"90 degrees", "90 ~°"),
    (r"90^{\circ}", r"90 ^ { \circ }"),
    (r"\$5", r"\$ 5"),
    (r"€5", "€ 5"),
    (r"漢字", "漢字:t"),
]
WRAPPERS = [
    (r"$5$", "5"),
    (r"\(5\)", "5"),
    (r"\[5\]", "5"),
    (r"\boxed{5}", "{ 5 }"),
    (r"**5**", "5"),
    (r"`5`", "5"),
    (r"\displaystyle 5", "~5"),
    (r"\color{red}5", "5"),
    (r"\phantom{xx}5", "5"),
    (r"5\quad6", "5 ~6"),
    (r"&lt;5", "< 5"),
    (r"\\sqrt{5}", r"\sqrt { 5 }"),
    ("x\u200by", "xy:w"),
    (r"\unknown x", r"\unknown ~x:w"),
]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [*NUMBERS, *SEPARATORS, *SIGNS, *SCRIPTS, *FUNCTIONS, *SETS, *WORDS, *WRAPPERS],
)
def test_tokens(text: str, tokens: str) -> None:
    assert shown(lex(text)) == tokens


def test_commas_may_be_read_otherwise() -> None:
    assert shown(lex("1000,99")) == "1000 , 99"
    assert shown(lex("1000,99", decimal_comma=True)) == "1000.99"
    assert shown(lex("(1,5)", decimal_comma=True)) == "( 1 , 5 )"
    assert shown(lex("1,234")) == "1234'"
    assert shown(lex("1,234", thousands=False)) == "1 , 234"


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("$\\dfrac{1}{2}$", "\\frac{1}{2}"),
        ("\\left( 1 ,\\, 2 \\right)", "(1,2)"),
        ("x ≤ ½", "x\\leq\\frac{1}{2}"),
        ("\\text{Yes}.", "Yes"),
        ("１２", "12"),
        ("x²", "x^{2}"),
        ("sqrt(x+1)", "\\sqrt(x+1)"),
        ("2 x y", "2 x y"),
        ("1and 2", "1 and 2"),
        ("5\\text{ cm}", "5\\text{cm}"),
        ("The answer is: 5.", "5"),
    ],
)
def test_one_spelling_for_each_way_of_writing(text: str, normalised: str) -> None:
    assert canonical(tokens_of(text)) == normalised


@given(st.text(max_size=200))
def test_any_text_has_tokens_and_a_spelling(text: str) -> None:
    tokens = lex(text)
    assert all(token.text for token in tokens)
    assert canonical(tokens) == canonical(lex(text))


def test_there_is_a_limit_on_tokens() -> None:
    assert len(lex("+" * MAX_TOKENS)) == MAX_TOKENS
    with pytest.raises(Unreadable):
        lex("+" * (MAX_TOKENS + 1))
