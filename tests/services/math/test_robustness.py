"""Any text at all is decided in bounded time, or the reference is at fault."""

# Fragments of answers are full of characters that look alike.
# ruff: noqa: RUF001

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon_services.math.arithmetic.values import Values
from guerdon_services.math.decide import decide
from guerdon_services.math.decision import Decision, UnreadableReference

_FRAGMENTS = r"""
\frac \frac{1}{2} \sqrt \sqrt[3]{ \left( \right) \left[ \right. \{ \} { } ( ) [ ] | \| ^ _ ! ' % ° ^\circ $ & \\ \ = <
> + - * / , ; : . .. \dots \pm \le \ne \in \cup \cap \setminus \equiv \approx \choose \over \pmod -> == ** ^{ _{ \, ~
\! \pi e i x y n A B f(x) f( P( \sin \sin^{-1} \arcsin2 \log_ \ln \gcd \max max( sqrt( \det \binom \angle \prime
\infty inf \sum_{k=1}^{n} \prod_{i=1}^{5} \int_0^1 dx \int dt abx \lim_{x\to0} \mathbb{R} \mathbb{Z} \emptyset
\begin{pmatrix} \end{pmatrix} \begin{cases} \end{cases} \begin{vmatrix}1&2\\3&4\end{vmatrix} \text{and} \text{or}
\text{cm} \text{ \mathrm \boxed{ \textbf{(A)} (A) B. 12:30 PM 1:2 101_2 0 1 2 7 42 0.5 .5 5. 1,234 1{,}234 1e5
1e999999 9999999999999 1/0 0^0 9^9^9 (20!)! i^i (-1)^n x^x 0.\overline{3} \overline{3} \vec{v} \hat \color{red} \not
\left ½ ² √ ∞ ≤ − １ ① 中 或 ℝ ⌊ ⌋ &lt; &frac12; \$ \% the is and or not answer: yes None nan
"""
FRAGMENT = st.sampled_from(_FRAGMENTS.split())
SOUP = st.builds(str.join, st.sampled_from(["", " "]), st.lists(FRAGMENT, max_size=12))
GOOD = st.sampled_from(
    [
        r"-\frac{3}{4}", "1,234.5", r"2\sqrt{3}-1", "x^2-4x+3", r"\sin^2 x", r"[0, \infty)", r"1<x\le 3",
        r"\{1, 2, 3\}", r"(2, -\pi)", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "y=2x+1", "x=1, y=2", "2 or 3",
        r"50\%", r"5\text{ cm}",
        r"90^\circ", "12:30", "3:4", "101_2", "A", "(B) 7", "yes", r"x\in\mathbb{R}\setminus\{0\}", r"a\equiv 3\pmod 7",
        r"\sum_{k=1}^{10} k^2", r"\int_0^1 xyt\,dt",
         r"\int_0^1 x^2\,dx", "f(x)=x+1", r"|x-2|\ge 3", r"\{x\in\mathbb{Z}\mid x^2<9\}", "10!",
    ]
)  # fmt: skip
DAMAGED = st.builds(
    lambda text, start, end, inside: text[:start] + inside + text[end:],
    GOOD,
    st.integers(0, 30),
    st.integers(0, 30),
    FRAGMENT | st.text(max_size=3),
)
ANYTHING = SOUP | DAMAGED | GOOD | st.text(max_size=60)


@settings(max_examples=1200, deadline=None, derandomize=True)
@given(ANYTHING, ANYTHING)
def test_anything_is_decided_or_the_reference_is_at_fault(answer: str, reference: str) -> None:
    start = time.process_time()
    for one, other in ((answer, reference), (reference, answer), (answer, answer)):
        try:
            decision = decide(one, other, Values(balls=True))
        except UnreadableReference:
            continue
        _check_form(decision)
        if one == other:
            assert decision.equal
    # Three decisions of a few milliseconds each; the bound is for the slowest machine.
    assert time.process_time() - start < 6


def _check_form(decision: Decision) -> None:
    """What a result shows of a decision: a known way of comparison, a reason, and texts of bounded length."""
    assert decision.method in ("string", "rational", "symbolic", "numeric", "none")
    assert decision.reason
    assert len(decision.reason) <= 300
    assert max(len(decision.answer), len(decision.reference)) <= 2000
    assert not (decision.equal and decision.method == "none")


@settings(max_examples=400, deadline=None, derandomize=True)
@given(ANYTHING)
def test_a_text_that_can_be_read_is_itself(text: str) -> None:
    try:
        assert decide(text, text, Values(balls=True)).equal
    except UnreadableReference:
        return


@pytest.mark.parametrize(
    "reference",
    ["", "   ", "$$", r"\text{}", "{}", "nan", "None", "an answer that only a reader could judge", r"\frac"],
)
def test_an_unreadable_reference_is_never_right(reference: str) -> None:
    for answer in ("42", "nan", "x"):
        with pytest.raises(UnreadableReference):
            decide(answer, reference, Values(balls=True))


LONG = 20_000
REPEATED = [
    "1", "x", "x!", "-", "1/", "x/", "1+", "1<", "x=", "1,", "1, ", "1,234,", "1:", "2^", "2^{", "9^", "(", "[", "{",
    r"\{", "|", "'", "A. ", "the ", "and ", "½", "²", "①", r"\sqrt{", r"\frac", r"\sin ", r"\log_", r"\pm 1",
    r"\text{cm}", r"\textbf{(A)}", r"\left", r"\\", r"x\in\{", "f(", "a_{", r"(1,2)\cup", r"x<1\text{ or }",
    r"\sum_{k=1}^{9}", r"\lim_{x\to0}", r"\int ", r"\begin{pmatrix}", "1&", "|x-1|+", "(x-1)", "5 cm", r"\max(1,",
    "&lt;", r"\mathbf", r"\begin{matrix}1&1\\1&1\end{matrix}", r"\det\begin{matrix}1&1\\1&1\end{matrix}",
    "(x!!!!", r"\max(1,1,", "{x'^2",
]  # fmt: skip


@pytest.mark.parametrize("fragment", REPEATED)
def test_size_does_not_stop_a_decision(fragment: str) -> None:
    text = fragment * (LONG // len(fragment))
    check_quickly(text, "7")
    check_quickly(f"{text}1", "x>2, 3")


@pytest.mark.parametrize("reference", [r"5\text{ cm}", r"60\text{ km/h}", r"50\%", "B. 5", "12:30"])
def test_nor_beside_units_and_letters(reference: str) -> None:
    for fragment in ("1+", "x!", "the ", "5 cm"):
        check_quickly(fragment * (LONG // len(fragment)), reference)


def test_nor_does_space() -> None:
    for space in (" ", "\n", "\\,", "~"):
        check_quickly(space * 2 * LONG, "7")
        check_quickly(f"8{space * 2 * LONG}", "7")


MATRIX = r"\begin{matrix}1&1\\1&1\end{matrix}"


@pytest.mark.parametrize("count", [9, 17, 20, 28])
def test_a_product_of_matrices_is_not_multiplied_out_without_end(count: int) -> None:
    check_quickly(MATRIX * count, "7")
    check_quickly(MATRIX * count, r"\begin{pmatrix}2&2\\2&2\end{pmatrix}")
    check_quickly(rf"\det{MATRIX * count}", "7")
    check_quickly(r"(x+1)" * 200 + rf"\begin{{matrix}}{'x&' * 499}x\end{{matrix}}", "7")


@pytest.mark.parametrize(
    ("opener", "closer"),
    [("(", "!" * 19 + ")"), ("(", "%" * 19 + ")"), ("max(", ",1" * 39 + ")"), ("-(", ")^2")],
)
def test_levels_that_signs_make_count_as_well(opener: str, closer: str) -> None:
    for count in (2, 20, 45, 59):
        check_quickly(opener * count + "x" + closer * count, "7")
        check_quickly(opener * count + "x" + closer * count, "x+y^2")


def check_quickly(answer: str, reference: str) -> None:
    start = time.process_time()
    decision = decide(answer, reference, Values(balls=True))
    assert not decision.equal
    _check_form(decision)
    # A few tenths of a second; the bound is for the slowest machine.
    assert time.process_time() - start < 3
