"""Inequalities of one variable, solved."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon_services.math.arithmetic.values import NeedsBalls, Values
from guerdon_services.math.comparison.inequalities import solve
from guerdon_services.math.comparison.realline import RealSet, same
from guerdon_services.math.comparison.realsets import real_set
from guerdon_services.math.notation.lexer import lex
from guerdon_services.math.notation.tree import Add, Call, Mul, Node, Number, Symbol, quotient
from guerdon_services.math.reading.reader import Reader, unwrapped
from guerdon_services.math.reading.shapes import Quantity, Relation, Shape

EXACT, BALLS = Values(balls=False), Values(balls=True)
X = Symbol("x")


def read(text: str) -> Shape:
    """The shape of an answer."""
    return Reader().read(unwrapped(lex(text)))


def solved(text: str, values: Values = BALLS) -> RealSet | None:
    """The solution of a relation."""
    shape = read(text)
    assert isinstance(shape, Relation), shape
    return solve(values, shape)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2x+1<5", r"(-\infty,2)"),
        (r"3-x\le 5", r"[-2,\infty)"),
        (r"2\le 3x-1<5", "[1,2)"),
        ("5>3-2x>1", "(-1,1)"),
        (r"|x-1|\le 3", "[-2,4]"),
        ("|2x+1|>3", r"(-\infty,-2)\cup(1,\infty)"),
        (r"1\le|2x|\le 4", r"[-2,-\frac12]\cup[\frac12,2]"),
        ("|x-1|+|x+2|<5", "(-3,2)"),
        (r"|x-1|+|x+2|\le 3", "[-2,1]"),
        ("|x-1|+|x+2|<3", r"\emptyset"),
        ("|x+1|<|x-3|", r"(-\infty,1)"),
        ("|x^2-2|<2", r"(-2,0)\cup(0,2)"),
        ("|||2x|-1|-1|<1", r"(-\frac32,-\frac12)\cup(-\frac12,\frac12)\cup(\frac12,\frac32)"),
        ("x^2<4", "(-2,2)"),
        (r"x^2\ge 4", r"(-\infty,-2]\cup[2,\infty)"),
        (r"x^2\ne 4", r"\mathbb{R}\setminus\{2,-2\}"),
        ("x^2=4", r"\{2\}\cup\{-2\}"),
        ("x^2+1>0", r"\mathbb{R}"),
        ("x^2<0", r"\emptyset"),
        (r"x^2\le 0", r"\{0\}\cup\emptyset"),
        ("(x-1)^2>0", r"\mathbb{R}\setminus\{1\}"),
        ("x^2-2x<0", "(0,2)"),
        ("x^2<2", r"(-\sqrt2,\sqrt2)"),
        (r"x^2\le 2", r"[-\sqrt2,\sqrt2]"),
        ("(x^2-2)^2>0", r"\mathbb{R}\setminus\{\pm\sqrt2\}"),
        (r"|x^2-2|\le 0", r"\{\sqrt2\}\cup\{-\sqrt2\}"),
        (r"\frac{x}{x^2-2}\ge 0", r"(-\sqrt2,0]\cup(\sqrt2,\infty)"),
        ("x^2-x-1>0", r"(-\infty,\frac{1-\sqrt5}{2})\cup(\frac{1+\sqrt5}{2},\infty)"),
        ("1<x^2<2", r"(-\sqrt2,-1)\cup(1,\sqrt2)"),
        (r"(x-1)(x-2)(x-3)\ge 0", r"[1,2]\cup[3,\infty)"),
        (r"x^3+1\le x+1", r"(-\infty,-1]\cup[0,1]"),
        ("x^3>1", r"(1,\infty)"),
        ("x^4-3x^2+2<0", r"(-\sqrt2,-1)\cup(1,\sqrt2)"),
        ("x^4+x^2+7>0", r"\mathbb{R}"),
        (r"\frac{x-1}{x+2}\ge 0", r"(-\infty,-2)\cup[1,\infty)"),
        (r"\frac{x^2-1}{x-1}>0", r"(-1,1)\cup(1,\infty)"),
        (r"\frac1x<1", r"(-\infty,0)\cup(1,\infty)"),
        (r"x+\frac1x\ge 2", r"(0,\infty)"),
        (r"\frac{1}{|x|-1}>0", r"(-\infty,-1)\cup(1,\infty)"),
        (r"\frac{1}{\frac{1}{x}}>-1", r"(-1,0)\cup(0,\infty)"),
        (r"2x>\frac{0}{x-5}", r"(0,5)\cup(5,\infty)"),
        (r"0.5x\le 1", r"(-\infty,2]"),
        (r"2x>\sqrt4", r"(1,\infty)"),
    ],
)
def test_solutions(text: str, expected: str) -> None:
    found, wanted = solved(text), real_set(BALLS, read(expected))
    assert found is not None
    assert wanted is not None
    assert same(BALLS, found, wanted), found


@pytest.mark.parametrize(
    "text",
    [
        "2x+y<1",
        "2<3",
        r"\sin 2x>0",
        "2^x>8+x",
        r"\sqrt{x-1}>2+x",
        "2x<\\pi",
        "x^3-2>0",
        "x^{1000000000}<2",
        "2x+1<10^{10^{9}}",
        "|2x+|3x-|x-1|||+|x^2-4|<1",
        "<".join(["2x+1"] * 400),
        "2x+1<" + "+".join(["x"] * 5000),
        "(x+1)^{12}(x-1)^{12}<1+x",
        r"\frac{1}{x-x}>1",
        r"2x\approx 1",
    ],
)
@pytest.mark.timeout(20)
def test_unsolved(text: str) -> None:
    shape = read(text)
    found = solve(BALLS, shape) if isinstance(shape, Relation) else None
    assert found is None or not any(found.between)


def test_factoring_needs_balls() -> None:
    with pytest.raises(NeedsBalls):
        solved("x^3-x>0", EXACT)
    assert solved("x(x-1)(x+1)>0", EXACT) is not None


# Random inequalities, looked at where they are easy to evaluate

_small = st.integers(-4, 4).map(Fraction)
_line = st.tuples(_small, _small)
_SIGNS = ("<", ">", r"\leq", r"\geq", "=", r"\neq")


def _node(line: tuple[Fraction, Fraction]) -> Node:
    return Add((Mul((Number(line[0]), X)), Number(line[1])))


@given(
    st.lists(_line, min_size=1, max_size=3),
    st.lists(_line, max_size=2),
    st.lists(_line, max_size=2),
    _small,
    st.sampled_from(_SIGNS),
)
def test_random_inequalities(
    above: list[tuple[Fraction, Fraction]],
    below: list[tuple[Fraction, Fraction]],
    absolute: list[tuple[Fraction, Fraction]],
    right: Fraction,
    sign: str,
) -> None:
    side: Node = Mul(tuple(map(_node, above))) if len(above) > 1 else _node(above[0])
    for line in below:
        side = quotient(side, _node(line))
    for line in absolute:
        side = Add((side, Call("abs", (_node(line),))))
    found = solve(BALLS, Relation((Quantity(side), Quantity(Number(right))), (sign,)))
    if found is None:
        return
    for place in (Fraction(n, 12) for n in range(-100, 101)):
        assert _has(found, place) == _holds(above, below, absolute, right, sign, place), (found, place)


def _holds(
    above: list[tuple[Fraction, Fraction]],
    below: list[tuple[Fraction, Fraction]],
    absolute: list[tuple[Fraction, Fraction]],
    right: Fraction,
    sign: str,
    place: Fraction,
) -> bool:
    value = Fraction(1)
    for slope, start in above:
        value *= slope * place + start
    for slope, start in below:
        if slope * place + start == 0:
            return False
        value /= slope * place + start
    value += sum(abs(slope * place + start) for slope, start in absolute)
    held = {"<": value < right, ">": value > right, "=": value == right}
    held |= {r"\leq": not held[">"], r"\geq": not held["<"], r"\neq": not held["="]}
    return held[sign]


def _has(found: RealSet, place: Fraction) -> bool:
    below = sum(point.high < place for point in found.points)
    if below < len(found.points) and found.points[below].low == place:
        return found.at[below]
    return found.between[below]
