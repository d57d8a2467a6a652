"""Shapes: lists, sets, tuples, intervals, relations, labels, matrices, and single values with their units."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest

from guerdon_services.math.meaning import tokens_of
from guerdon_services.math.notation.expression import parse
from guerdon_services.math.notation.lexer import Unreadable, lex
from guerdon_services.math.notation.tree import Node, Number
from guerdon_services.math.reading.reader import Reader, split_list, unwrapped
from guerdon_services.math.reading.shapes import (
    ABOVE_ALL,
    BELOW_ALL,
    REALS,
    ZERO_UP,
    Based,
    Clock,
    Labelled,
    Many,
    Matrix,
    Ordered,
    Quantity,
    Ratio,
    Relation,
    Restricted,
    Shape,
    Without,
    Words,
    canonical,
)


def node(text: str) -> Node:
    return parse(lex(text))


def one(text: str, unit: str = "", *, percent: bool = False, degrees: bool = False) -> Quantity:
    return Quantity(node(text), unit, percent, degrees)


def group(kind: str, *items: Shape | str) -> Many:
    assert kind in ("list", "and", "or", "set", "union")
    return Many(kind, _shapes(items))


def between(left: str, *items: Shape | str) -> Ordered:
    """Values between brackets, which come last: between("(", "1", "2", "]")."""
    *values, right = items
    assert isinstance(right, str)
    return Ordered(left, right, _shapes(values))


def of_x(left: str, *items: Shape | str) -> Ordered:
    """An interval that was written as a condition on x."""
    return replace(between(left, *items), variable="x")


def relation(*parts: str) -> Relation:
    """Sides and signs in turn."""
    return Relation(_shapes(parts[::2]), parts[1::2])


def labelled(
    label: str, value: Shape | str, *, over: tuple[str, ...] = (), said: Shape | None = None
) -> Labelled:
    """A value with its name; `said` is the name as an expression where it differs from the label."""
    (shape,) = _shapes([value])
    return Labelled(label, over, shape, Relation((said or one(label), shape), ("=",)))


def _shapes(items: Sequence[Shape | str]) -> tuple[Shape, ...]:
    return tuple(one(item) if isinstance(item, str) else item for item in items)


def _whole(*values: int) -> tuple[Number, ...]:
    return tuple(Number(Fraction(value)) for value in values)


def read(text: str) -> Shape:
    return Reader().read(tokens_of(text))


SINGLE = [
    ("42", one("42")),
    ("(3)", one("3")),
    ("[3]", one("3")),
    ("{3}", one("3")),
    ("((3))", one("3")),
    ("(a+b)(a-b)", one("(a+b)(a-b)")),
    (r"3\text{ cm}", one("3", "cm")),
    ("3 cm", one("3", "cm")),
    (r"3\ \mathrm{m/s}", one("3", "m/s")),
    ("5 apples", one("5", "apples")),
    ("$5", one("5")),
    (r"\$5", one("5", "dollar")),
    ("€5", one("5", "euro")),
    (r"50\%", one("50", percent=True)),
    ("50 percent", one("50", percent=True)),
    (r"90^\circ", one("90", degrees=True)),
    ("90°", one("90", degrees=True)),
    (r"\sin 30^\circ", one(r"\sin 30^\circ")),
    ("3rd", one("3")),
    (r"5^{\text{th}}", one("5")),
    ("about 5", one("5")),
    (r"\approx 3.14", one("3.14")),
    (r"\frac12\approx 0.5", one(r"\frac12")),
    (r"\begin{vmatrix}1&2\\3&4\end{vmatrix}", one("(1*4)+-(2*3)")),
]
LISTS = [
    ("3, 11", group("list", "3", "11")),
    ("3; 11", group("list", "3", "11")),
    ("3 and 11", group("and", "3", "11")),
    (r"3\text{ or }11", group("or", "3", "11")),
    (r"2\pm\sqrt3", group("list", r"2+\sqrt3", r"2-\sqrt3")),
    ("1,234", one("1234")),
    ("1,2,3", group("list", "1", "2", "3")),
    (r"\{3,11\}", group("set", "3", "11")),
    (r"\left\{3;11\right\}", group("set", "3", "11")),
    (r"\{a\pm b\}", group("set", "a+b", "a-b")),
    (r"\{\}", Words(r"\emptyset")),
    ("∅", Words(r"\emptyset")),
    ("(1,2), (3,4)", group("list", between("(", "1", "2", ")"), between("(", "3", "4", ")"))),
    (r"n\pi, n\in\mathbb{Z}", one(r"n\pi")),
    (r"\begin{cases}x=1\\y=2\end{cases}", group("list", labelled("x", "1"), labelled("y", "2"))),
    (
        "p=5, q=2; p=7, q=2",
        group(
            "list",
            between("(", labelled("p", "5"), labelled("q", "2"), ")"),
            between("(", labelled("p", "7"), labelled("q", "2"), ")"),
        ),
    ),
]
ORDERED = [
    ("(1,2)", between("(", "1", "2", ")")),
    (r"\left(1,2\right]", between("(", "1", "2", "]")),
    ("(1,2,3)", between("(", "1", "2", "3", ")")),
    ("[1,2,3]", between("[", "1", "2", "3", "]")),
    (r"\langle 1,2\rangle", between("(", "1", "2", ")")),
    ("]1,2[", between("(", "1", "2", ")")),
    ("[1,2[", between("[", "1", "2", ")")),
    (r"(\pm 1,2)", group("list", between("(", "1", "2", ")"), between("(", "-1", "2", ")"))),
    ("P(3,-1)", between("(", "3", "-1", ")")),
    ("(1,(2,3))", between("(", "1", between("(", "2", "3", ")"), ")")),
]
SETS_OF_NUMBERS = [
    ("x<3", of_x("(", BELOW_ALL, "3", ")")),
    ("3>x", of_x("(", BELOW_ALL, "3", ")")),
    (r"x\ge 2", of_x("[", "2", ABOVE_ALL, ")")),
    (r"1<x\le 3", of_x("(", "1", "3", "]")),
    (r"3\ge x>1", of_x("(", "1", "3", "]")),
    (r"[0,\infty)", between("[", "0", ABOVE_ALL, ")")),
    (r"x\in(1,2)", between("(", "1", "2", ")")),
    (r"\{x\mid 1<x<2\}", between("(", "1", "2", ")")),
    (r"\{x\in\mathbb{R}:x>1\}", between("(", "1", ABOVE_ALL, ")")),
    (r"\{x\in\mathbb{Z}:0<x<4\}", Restricted(r"\mathbbZ", between("(", "0", "4", ")"))),
    (r"(1,2)\cup[3,4]", group("union", between("(", "1", "2", ")"), between("[", "3", "4", "]"))),
    (r"x<1\text{ or }x>3", group("or", of_x("(", BELOW_ALL, "1", ")"), of_x("(", "3", ABOVE_ALL, ")"))),
    (r"2x+1\in(1,2)", Relation((one("2x+1"), between("(", "1", "2", ")")), (r"\in",))),
    (r"\mathbb{R}", REALS),
    ("all real numbers", Words("all real numbers")),
    (r"\mathbb{R}^+", ZERO_UP),
    (r"\mathbb{Z}", Words(r"\mathbbZ")),
    (r"\mathbb{R}\setminus\{0\}", Without(REALS, group("set", "0"))),
    (r"x\ne 2", Without(REALS, group("set", "2"), "x")),
]
RELATIONS = [
    ("x=3", labelled("x", "3")),
    ("3=x", labelled("x", "3")),
    ("= 3", one("3")),
    ("x, y = 3", group("list", "x", labelled("y", "3"))),
    ("a_n=3n-2", labelled("a_n", "3n-2")),
    ("f(x)=x+1", labelled("f(x)", "x+1", over=("x",))),
    ("|AB|=5", labelled("|AB|", "5")),
    ("(x,y)=(1,2)", labelled("(x,y)", between("(", "1", "2", ")"), said=between("(", "x", "y", ")"))),
    ("y=±2", group("list", labelled("y", "2"), labelled("y", "-2"))),
    ("3x±y=0", group("list", relation("3x+y", "=", "0"), relation("3x-y", "=", "0"))),
    ("x+1=3", relation("x+1", "=", "3")),
    ("3*4=12", relation("3*4", "=", "12")),
    ("2x+3y=6", relation("2x+3y", "=", "6")),
    ("x^2<4", relation("x^2", "<", "4")),
    ("a<b<c<d", relation("a", "<", "b", "<", "c", "<", "d")),
]
OTHERS = [
    ("3:4", Ratio((node("3"), node("4")))),
    ("2:3:5", Ratio((node("2"), node("3"), node("5")))),
    ("12:30", Clock(45_000, _whole(12, 30))),
    ("3:30 PM", Clock(55_800, _whole(3, 30), "pm")),
    ("12:30:15", Clock(45_015, _whole(12, 30, 15))),
    ("101_2", Based("101", 2)),
    ("1A_{16}", Based("1A", 16)),
    ("(101)_2", Based("101", 2)),
    ("hello world", Words("hello world")),
    (r"\text{Hello World.}", Words("hello world")),
    (r"\unknown", Words(r"\unknown", unread=True)),
    ("3 4", Words("3 4", unread=True)),
]
MATRICES = [
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", Matrix((_shapes("12"), _shapes("34")))),
    (r"\begin{bmatrix}1\\2\end{bmatrix}", Matrix((_shapes("1"), _shapes("2")))),
    (r"\left(\begin{array}{cc}1&2\\3&4\end{array}\right)", Matrix((_shapes("12"), _shapes("34")))),
    (r"2\begin{pmatrix}1&x\end{pmatrix}", Matrix((_shapes(["2*1", "2*x"]),))),
    (
        r"\begin{pmatrix}1&2\end{pmatrix}\begin{pmatrix}3\\4\end{pmatrix}",
        Matrix((_shapes(["(1*3)+(2*4)"]),)),
    ),
]


@pytest.mark.parametrize(
    ("text", "shape"),
    [*SINGLE, *LISTS, *ORDERED, *SETS_OF_NUMBERS, *RELATIONS, *OTHERS, *MATRICES],
    ids=[
        row[0]
        for table in (SINGLE, LISTS, ORDERED, SETS_OF_NUMBERS, RELATIONS, OTHERS, MATRICES)
        for row in table
    ],
)
def test_shapes(text: str, shape: Shape) -> None:
    assert read(text) == shape


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("5.", "5"),
        ("5;", "5"),
        (", 5", "5"),
        ("{{5}}", "5"),
        ("((5))", "(5)"),
        ("{1,2}", "{1,2}"),
        ("(1)(2)", "(1)(2)"),
        ("The answer is 5", "5"),
        ("Final answer: 5", "5"),
        ("Ann: 12", "12"),
        (r"\text{The value is } 8", "8"),
        (r"\text{It is not } 8", r"\text{It is not}8"),
        ("is 5", "is 5"),
    ],
)
def test_what_surrounds_an_answer_is_left_out(text: str, inside: str) -> None:
    assert canonical(unwrapped(lex(text))) == inside


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("(1,2), (3,4)", ["(1,2)", "(3,4)"]),
        ("1,234,567", ["1234567"]),
        ("1, 234", ["1", "234"]),
        ("2 and 3 or 4", ["2", "3", "4"]),
        (r"\{1,2\}", [r"\{1,2\}"]),
        ("1, 2; 3", ["1,2", "3"]),
        ("1,,2,", ["1", "2"]),
        ("f(x, y), z", ["f(x,y)", "z"]),
    ],
)
def test_lists_split_outside_brackets_only(text: str, items: list[str]) -> None:
    assert [canonical(item) for item in split_list(lex(text))] == items


@pytest.mark.parametrize(
    "text",
    [
        ", ".join(map(str, range(700))),
        "(1," * 30 + "2" + ")" * 30,
        r"1\end{pmatrix}",
        r"\begin{pmatrix}1\end{pmatrix}\begin{pmatrix}1&2\\3&4\end{pmatrix}",
        r"\begin{vmatrix}1&2\end{vmatrix}",
        r"(\pm1,\pm2,\pm3,\pm4,\pm5)",
    ],
)
def test_what_is_too_much_or_does_not_fit(text: str) -> None:
    with pytest.raises(Unreadable):
        read(text)
