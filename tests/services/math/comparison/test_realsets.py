"""Sets of real numbers: every spelling of one set is the same set, and no other one is."""

import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon_services.math.arithmetic.bounds import bounds
from guerdon_services.math.arithmetic.values import NeedsBalls, Values
from guerdon_services.math.comparison.realline import (
    EVERYTHING,
    NOTHING,
    RealSet,
    complement,
    difference,
    intersection,
    same,
    union,
)
from guerdon_services.math.comparison.realsets import integers_in, real_set, same_sets
from guerdon_services.math.notation.lexer import lex
from guerdon_services.math.reading.reader import Reader, unwrapped
from guerdon_services.math.reading.shapes import Quantity, Restricted, Shape

EXACT, BALLS = Values(balls=False), Values(balls=True)


def read(text: str) -> Shape:
    """The shape of an answer."""
    return Reader().read(unwrapped(lex(text)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"(1,3)\cup(2,5)", "(1,5)"),
        (r"[1,3)\cup[3,4]", "[1,4]"),
        (r"[1,3]\cup[2,4]", r"1\le x\le 4"),
        (r"(0,1)\cup\{1\}", "(0,1]"),
        (r"\{1\}\cup(2,3)", r"(2,3)\cup\{1\}"),
        (r"(1,2)\cup(3,4)", r"(3,4)\cup(1,2)"),
        (r"(-3,0)\cup(0,3)", r"(-3,3)\setminus\{0\}"),
        (r"(-3,3)\setminus\{0\}", r"-3<x<3, x\ne 0"),
        (r"[0,4]\setminus(1,2)", r"[0,1]\cup[2,4]"),
        (r"[0,4]\setminus[1,5]", "0\\le x<1"),
        (r"\mathbb{R}\setminus\{2\}", r"(-\infty,2)\cup(2,\infty)"),
        (r"\mathbb{R}\setminus\{2\}", r"x\ne 2"),
        (r"\mathbb{R}\setminus\{\pm1\}", r"x\ne\pm 1"),
        (r"\mathbb{R}\setminus\{-1,1\}", r"(-\infty,-1)\cup(-1,1)\cup(1,\infty)"),
        (r"\mathbb{R}\setminus\{-1,1\}", r"x\ne 1\text{ and }x\ne-1"),
        (r"\mathbb{R}\setminus\{-1,1\}", r"x\ne -1, 1"),
        (r"\mathbb{R}\setminus[0,1]", r"x<0\text{ or }x>1"),
        ("x>2, x<5", "(2,5)"),
        (r"x>2\text{ and }x\le 5", "(2,5]"),
        ("x<-2, x>3", r"(-\infty,-2)\cup(3,\infty)"),
        (r"x<-2\text{ or }x>3", r"\{x\mid x<-2\text{ or }x>3\}"),
        (r"x\ge 1\text{ and }x\ne 3", r"[1,3)\cup(3,\infty)"),
        (r"x<0, x>1, x\ne 5", r"(-\infty,0)\cup(1,5)\cup(5,\infty)"),
        (r"x\ge 0\text{ or }x=-1", r"\{-1\}\cup[0,\infty)"),
        (r"x<1\text{ or }x\ge 1", r"\mathbb{R}"),
        (r"|x-1|\le 3", "[-2,4]"),
        (r"x^2>4", r"x<-2\text{ or }x>2"),
        (r"x^2\ne 4", r"x\ne\pm 2"),
        (r"x^2<4\text{ and }x>0", "(0,2)"),
        (r"x^2<0", r"\emptyset"),
        (r"x^2+1>0", r"(-\infty,\infty)"),
        (r"(0.5,1)\cup(1,2)", r"(\frac12,2)\setminus\{1\}"),
        (r"(0,0.333)\cup(1,2)", r"(1,2)\cup(0,0.333)"),
        (r"[1,1]\cup[2,3]", r"\{1\}\cup[2,3]"),
    ],
)
def test_same_set(one: str, other: str) -> None:
    assert same_sets(EXACT, read(one), read(other)) is True
    assert same_sets(EXACT, read(other), read(one)) is True


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"(1,3)\cup(2,5)", "[1,5]"),
        (r"(1,3)\cup(2,5)", "(2,3)"),
        (r"[1,2)\cup(2,4]", "[1,4]"),
        (r"(1,2)\cup(3,4)", "(1,4)"),
        (r"(1,2)\cup(3,4)", r"(1,2)\cup(3,5)"),
        (r"(1,2)\cup(3,4)", r"(1,2]\cup(3,4)"),
        (r"\{1\}\cup\{4\}", "[1,4]"),
        (r"\{1\}\cup(2,3)", "(2,3)"),
        (r"\{1\}\cup(2,3)", r"\{2\}\cup(2,3)"),
        ("(3,8)", r"\{3,8\}"),
        (r"\mathbb{R}\setminus\{2\}", r"\mathbb{R}"),
        (r"\mathbb{R}\setminus\{2\}", r"\mathbb{R}\setminus\{-2\}"),
        (r"\mathbb{R}\setminus\{2\}", r"\mathbb{R}\setminus\{2,3\}"),
        (r"\mathbb{R}\setminus\{2\}", r"(-\infty,2)"),
        (r"x<-2\text{ or }x>3", r"x<-2\text{ and }x>3"),
        (r"x<3\text{ or }x>-2", "(-2,3)"),
        ("x>2, x<5", "[2,5)"),
        (r"x\ge 0\text{ or }x=-1", r"[0,\infty)"),
        (r"|x-1|\le 3", "(-2,4)"),
        (r"x^2>4", "(2,\\infty)"),
        (r"x^2<0", "(-1,1)"),
        (r"(0,1)", r"\emptyset"),
    ],
)
def test_other_set(one: str, other: str) -> None:
    assert same_sets(EXACT, read(one), read(other)) is False
    assert same_sets(EXACT, read(other), read(one)) is False


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("(1,2)", "(1,2)"),
        ("(1,2),(3,4)", "(3,4),(1,2)"),
        (r"(1,2)\text{ or }(3,4)", "(1,2)"),
        (r"(1,5)\text{ or }(2,3)", "(1,5)"),
        (r"\{1,2\}", r"\{2,1\}"),
        ("1,2", "2,1"),
        ("x=1", r"\{1\}"),
        ("x^2=4", r"\{2,-2\}"),
        ("a=3, x>2", r"(2,\infty)"),
        (r"(a,a+1)\cup(a+2,\infty)", r"(a,\infty)\setminus[a+1,a+2]"),
        (r"(2,1)\cup(3,4)", "(3,4)"),
        (r"(1,1)\cup(3,4)", "(3,4)"),
        (r"(10\%,20\%)\cup(20\%,30\%)", r"(0.1,0.3)\setminus\{0.2\}"),
        (r"(0,1)\cup(1,2,3)", "(0,1)"),
        (r"x\ne k\pi", r"\mathbb{R}"),
        ("y>2x, x>1", r"(1,\infty)"),
    ],
)
def test_left_to_others(one: str, other: str) -> None:
    assert same_sets(BALLS, read(one), read(other)) is None
    assert same_sets(BALLS, read(other), read(one)) is None


@pytest.mark.parametrize(
    ("one", "other", "right"),
    [
        (r"(-\infty,-\sqrt2)\cup(\sqrt2,\infty)", r"x^2>2", True),
        (r"(-\infty,-\sqrt2)\cup(\sqrt2,\infty)", r"x<-\sqrt2\text{ or }x>\frac{2}{\sqrt2}", True),
        (r"(-\sqrt8,0)\cup(0,\sqrt8)", r"(-2\sqrt2,2\sqrt2)\setminus\{0\}", True),
        (r"(-\sqrt8,0)\cup(0,\sqrt8)", r"(-2\sqrt2,2\sqrt3)\setminus\{0\}", False),
        (r"(\frac{1-\sqrt5}{2},\frac{1+\sqrt5}{2})", "x^2-x-1<0", True),
        (r"(0,\frac{\pi}{2})\cup(\frac{\pi}{2},\pi)", r"(0,\pi)\setminus\{\frac{2\pi}{4}\}", True),
        (r"(0,e)\cup[e,3)", "(0,3)", True),
        (r"(0,\ln 2)\cup[\ln 2,1)", "0<x<1", True),
        (r"(0,\ln 2)\cup(\ln 2,1)", "0<x<1", False),
        (r"(0,3.14159)\cup(4,5)", r"(0,\pi)\cup(4,5)", True),
        (r"(0,3.2)\cup(4,5)", r"(0,\pi)\cup(4,5)", False),
    ],
)
def test_irrational_ends(one: str, other: str, right: bool) -> None:
    assert same_sets(BALLS, read(one), read(other)) is right


def test_balls_are_asked_for_only_where_they_must_be() -> None:
    same_sets(EXACT, read(r"(0,\sqrt2)\cup(\pi,\infty)"), read(r"x>\pi\text{ or }0<x<\sqrt2"))
    with pytest.raises(NeedsBalls):
        real_set(EXACT, read(r"(0,\ln 2)\cup(\ln 3,\infty)"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\{x\in\mathbb{Z}\mid 0<x<4\}", (1, 2, 3)),
        (r"\{x\in\mathbb{Z}\mid -\frac72\le x\le -1\}", (-3, -2, -1)),
        (r"\{x\in\mathbb{Z}\mid x^2<5\}", (-2, -1, 0, 1, 2)),
        (r"\{x\in\mathbb{Z}\mid -\sqrt{10}<x<\sqrt{4}\}", (-3, -2, -1, 0, 1)),
        (r"\{x\in\mathbb{Z}\mid 0<x<1\}", ()),
        (r"\{x\in\mathbb{Z}\mid x<1\}", None),
        (r"\{x\in\mathbb{Z}\mid 0<x<202\}", None),
        (r"\{x\in\mathbb{N}\mid 0<x<4\}", (1, 2, 3)),
        (r"\{x\in\mathbb{N}\mid x<4\}", None),
        (r"\{x\in\mathbb{Z}^+\mid x<4\}", (1, 2, 3)),
        (r"\{x\in\mathbb{Q}\mid 0<x<4\}", None),
        (r"\{x\in\mathbb{Z}\mid a<x<4\}", None),
    ],
)
def test_integers(text: str, expected: tuple[int, ...] | None) -> None:
    shape = read(text)
    assert isinstance(shape, Restricted)
    assert integers_in(BALLS, shape) == expected


@pytest.mark.parametrize(
    ("one", "other", "right"),
    [
        (r"\{x\in\mathbb{Z}\mid 0<x<4\}", r"\{1,2,3\}", True),
        (r"\{x\in\mathbb{Z}\mid 0<x<4\}", "1,2,3", None),
        (r"\{x\in\mathbb{Z}\mid 0<x<4\}", r"\{1,2,4\}", False),
        (r"\{x\in\mathbb{Z}\mid 0<x<4\}", "(0,4)", None),
        (r"\{x\in\mathbb{Z}\mid 0<x<4\}", r"\{x\in\mathbb{Z}\mid 1\le x\le 3\}", True),
        (r"\{x\in\mathbb{Z}\mid 0<x<4\}", r"\{x\in\mathbb{N}\mid 1\le x\le 3\}", True),
        (r"\{x\in\mathbb{Z}\mid x>2\}", r"\{x\in\mathbb{Z}\mid x\ge 3\}", True),
        (r"\{x\in\mathbb{Z}\mid x>2\}", r"\{x\in\mathbb{Z}\mid x\ge 2\}", False),
        (r"\{x\in\mathbb{N}\mid x<4\}", r"\{x\in\mathbb{N}\mid x\le 3\}", True),
        (r"\{x\in\mathbb{N}\mid x<4\}", r"\{x\in\mathbb{Z}\mid 0\le x\le 3\}", None),
    ],
)
def test_sets_of_integers(one: str, other: str, right: bool | None) -> None:
    assert same_sets(BALLS, read(one), read(other)) is right
    assert same_sets(BALLS, read(other), read(one)) is right


# Random unions of intervals, as (low, high, low is in it, high is in it)

Piece = tuple[Fraction, Fraction, bool, bool]
_ends = st.fractions(-6, 6, max_denominator=3)
_pieces = st.lists(
    st.tuples(_ends, _ends, st.booleans(), st.booleans())
    .filter(lambda piece: piece[0] != piece[1])
    .map(lambda piece: (min(piece[:2]), max(piece[:2]), piece[2], piece[3])),
    min_size=1,
    max_size=6,
)
_PROBES = sorted(
    {Fraction(n, d) for d in (1, 2, 3) for n in range(-7 * d, 7 * d + 1)}
    | {Fraction(n, 3) + Fraction(1, 100) * sign for n in range(-20, 21) for sign in (1, -1)}
    | {Fraction(n, 2) + Fraction(1, 100) * sign for n in range(-13, 14) for sign in (1, -1)}
)


def spelled(piece: Piece) -> str:
    """The interval in brackets."""
    low, high, left, right = piece
    return f"{'[' if left else '('}{_number(low)},{_number(high)}{']' if right else ')'}"


def _number(value: Fraction) -> str:
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}" if value.denominator > 1 else str(value)


def inside(piece: Piece, place: Fraction) -> bool:
    """Whether a number is in the interval."""
    low, high, left, right = piece
    return low < place < high or (left and place == low) or (right and place == high)


def has(found: RealSet, place: Fraction) -> bool:
    """Whether a number is in a set of rational ends."""
    below = sum(point.high < place for point in found.points)
    if below < len(found.points) and found.points[below].low == place:
        return found.at[below]
    return found.between[below]


def as_set(pieces: list[Piece]) -> RealSet:
    """The union as it is read."""
    found = real_set(EXACT, read(r"\cup".join(map(spelled, pieces))))
    assert found is not None
    return found


@given(_pieces)
def test_membership(pieces: list[Piece]) -> None:
    found = as_set(pieces)
    for place in _PROBES:
        assert has(found, place) == any(inside(piece, place) for piece in pieces)


@given(_pieces, st.randoms(use_true_random=False))
def test_any_order_and_any_cut_is_the_same(pieces: list[Piece], draw: random.Random) -> None:
    cut: list[Piece] = []
    for low, high, left, right in pieces:
        middle = low + (high - low) * Fraction(draw.randint(1, 9), 10)
        kept = draw.choice(((True, False), (False, True), (True, True)))
        cut += [(low, middle, left, kept[0]), (middle, high, kept[1], right)]
    draw.shuffle(cut)
    assert same(EXACT, as_set(pieces), as_set(cut))
    holes = complement(as_set(cut))
    assert same(EXACT, difference(EXACT, EVERYTHING, holes), as_set(pieces))


@given(_pieces, st.data())
def test_one_change_is_another_set(pieces: list[Piece], data: st.DataObject) -> None:
    found = as_set(pieces)
    index = data.draw(st.integers(0, len(found.points) - 1))
    flipped = [not here if place == index else here for place, here in enumerate(found.at)]
    assert not same(EXACT, RealSet(found.points, tuple(flipped), found.between), found)
    moved = list(found.points)
    end = moved[index].low + Fraction(1, 1000)
    moved[index] = moved[index]._replace(quantity=read_quantity(_number(end)), low=end, high=end)
    assert not same(EXACT, RealSet(tuple(moved), found.at, found.between), found)


def read_quantity(text: str) -> Quantity:
    """A number."""
    shape = read(text)
    assert isinstance(shape, Quantity)
    return shape


@given(_pieces, _pieces)
def test_boolean_algebra(one: list[Piece], other: list[Piece]) -> None:
    left, right = as_set(one), as_set(other)
    both, either = intersection(EXACT, left, right), union(EXACT, left, right)
    assert same(EXACT, complement(either), intersection(EXACT, complement(left), complement(right)))
    assert same(EXACT, complement(both), union(EXACT, complement(left), complement(right)))
    assert same(EXACT, difference(EXACT, left, right), intersection(EXACT, left, complement(right)))
    assert same(EXACT, union(EXACT, both, difference(EXACT, left, right)), left)
    assert same(EXACT, union(EXACT, left, complement(left)), EVERYTHING)
    assert intersection(EXACT, left, complement(left)) == NOTHING
    for place in _PROBES:
        assert has(both, place) == (has(left, place) and has(right, place))


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        (r"\frac{1-\sqrt5}{2}", "-0.618033988749894849", "-0.618033988749894848"),
        (r"\pi^2", "9.869604401089358618", "9.869604401089358619"),
        (r"\frac{e}{\sqrt3-2}", "-10.144765893100384147", "-10.144765893100384146"),
        (r"2^{\frac12}", "1.41421356237309504", "1.41421356237309505"),
    ],
)
def test_bounds(text: str, low: str, high: str) -> None:
    found = bounds(read_quantity(text).node)
    assert found is not None
    assert Fraction(low) < found[0] < found[1] < Fraction(high)


@pytest.mark.parametrize(
    "text", [r"\sqrt{1-\sqrt2}", r"\frac{1}{\sqrt4-2}", r"\ln 2", "x", r"\pi^{1000}", "i"]
)
def test_no_bounds(text: str) -> None:
    assert bounds(read_quantity(text).node) is None


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    [
        r"\cup".join(rf"(\sqrt[3]{{{n}}},\sqrt[3]{{{n + 1}}})" for n in range(2, 100)),
        r"\cup".join(rf"\{{{n}\sqrt2-{n - 1}\sqrt2\}}" for n in range(2, 100)),
        r"\cup".join(rf"({n},{n + 1})" for n in range(450)),
        ",".join(rf"x\ne {n}" for n in range(300)),
        r"(1,10^{10^{10}})\cup(3,4)",
        r"(0,\sum_{k=1}^{5000}\frac1k)\cup(3,4)",
        r"\{x\in\mathbb{Z}\mid 0<x<10^{100}\}",
    ],
)
def test_large_sets_never_hang(text: str) -> None:
    same_sets(BALLS, read(text), read(r"x\ne 0"))
