"""Trees of expressions, functions and binders, under each reading of what notation leaves open."""

from contextlib import suppress
from fractions import Fraction

import pytest

from guerdon_services.math.notation.expression import READINGS, Reading, number, parse
from guerdon_services.math.notation.lexer import Unreadable, lex
from guerdon_services.math.notation.tree import (
    Add,
    Apply,
    Bound,
    Call,
    Constant,
    Mul,
    Node,
    Number,
    Pow,
    Symbol,
)


def shown(node: Node | None) -> str:
    """A tree in brackets: (+ a b), (^ x 2), (/ a b), /a for 1 by a, f[x] for an unknown function, E for constants."""
    match node:
        case None:
            return "_"
        case Number(value):
            return str(value)
        case Constant(name):
            return name.upper()
        case Symbol(name):
            return name
        case Add(parts):
            return f"(+ {' '.join(map(shown, parts))})"
        case Mul((above, Pow(below, Number(minus)))) if minus == -1:
            return f"(/ {shown(above)} {shown(below)})"
        case Mul(parts):
            return f"(* {' '.join(map(shown, parts))})"
        case Pow(below, Number(minus)) if minus == -1:
            return f"/{shown(below)}"
        case Pow(base, exponent):
            return f"(^ {shown(base)} {shown(exponent)})"
        case Call(name, arguments):
            return f"({name} {' '.join(map(shown, arguments))})"
        case Apply(name, arguments):
            return f"{name}[{' '.join(map(shown, arguments))}]"
        case Bound(kind, variable, low, high, body):
            return f"({kind} {variable} {shown(low)} {shown(high)} {shown(body)})"


SUMS = [
    ("x", "x"),
    ("-x", "(* -1 x)"),
    ("-3", "-3"),
    ("--x", "x"),
    ("a+b-c", "(+ a b (* -1 c))"),
    ("a-(b-c)", "(+ a (* -1 (+ b (* -1 c))))"),
    ("-a^2", "(* -1 (^ a 2))"),
    ("(-a)^2", "(^ (* -1 a) 2)"),
]
PRODUCTS = [
    ("ab", "(* a b)"),
    ("2xy", "(* 2 (* x y))"),
    ("a*b", "(* a b)"),
    (r"a\cdot b", "(* a b)"),
    ("2(a+b)", "(* 2 (+ a b))"),
    ("(a+b)(a-b)", "(* (+ a b) (+ a (* -1 b)))"),
    ("a/b", "(/ a b)"),
    ("a/b/c", "(* a /b /c)"),
    ("a/b*c", "(* a /b c)"),
    (r"\frac{a}{b}", "(/ a b)"),
    (r"\frac12", "(/ 1 2)"),
    (r"\frac ab", "(/ a b)"),
    (r"\frac{1}{2}x", "(* (/ 1 2) x)"),
    (r"\frac{\sqrt{3}}{2}i", "(* (/ (root 3 2) 2) I)"),
    (r"{a\over b}", "(/ a b)"),
    (r"1\frac{1}{2}", "(+ 1 (/ 1 2))"),
    (r"-1\frac12", "(* -1 (+ 1 (/ 1 2)))"),
    ("1 1/2", "(+ 1 (/ 1 2))"),
    ("1½", "(+ 1 (/ 1 2))"),
    (r"3\cdot\frac12", "(* 3 (/ 1 2))"),
    (r"x\frac{1}{2}", "(* x (/ 1 2))"),
    (r"2\frac{x}{3}", "(* 2 (/ x 3))"),
    (r"3.5\times10^{-2}", "(* 7/2 (^ 10 -2))"),
    (r"50\%", "(/ 50 100)"),
]
POWERS = [
    ("a^b", "(^ a b)"),
    ("a^{b+c}", "(^ a (+ b c))"),
    ("a^bc", "(* (^ a b) c)"),
    ("ab^2", "(* a (^ b 2))"),
    ("2^3^2", "(^ 2 (^ 3 2))"),
    ("2^{3^2}", "(^ 2 (^ 3 2))"),
    ("a^12", "(^ a 12)"),
    ("a^-1", "/a"),
    ("x^{1/2}", "(^ x (/ 1 2))"),
    (r"x^\frac12", "(^ x (/ 1 2))"),
    (r"2^{-\frac12}", "(^ 2 (* -1 (/ 1 2)))"),
    ("x²y", "(* (^ x 2) y)"),
    (r"\sqrt2", "(root 2 2)"),
    (r"2\sqrt3", "(* 2 (root 3 2))"),
    (r"\sqrt{x+1}", "(root (+ x 1) 2)"),
    (r"\sqrt[3]{8}", "(root 8 3)"),
    ("sqrt(x)y", "(* (root x 2) y)"),
    ("√2", "(root 2 2)"),
    ("n!", "(factorial n)"),
    ("n!!", "(double_factorial n)"),
    ("2n!", "(* 2 (factorial n))"),
    ("(n+1)!", "(factorial (+ n 1))"),
]
NAMES = [
    (r"2\pi", "(* 2 PI)"),
    ("e^x", "(^ E x)"),
    ("3+4i", "(+ 3 (* 4 I))"),
    (r"-\infty", "(* -1 INFINITY)"),
    (r"+\infty", "INFINITY"),
    (r"\alpha+\beta", r"(+ \alpha \beta)"),
    ("a_1", "a_1"),
    ("a_{1}", "a_1"),
    ("x_{12}", "x_12"),
    (r"x_{\text{max}}", "x_max"),
    ("a_n", "a_[n]"),
    ("a_{n-1}", "a_[(+ n -1)]"),
    ("f(x,y)", "f[x y]"),
    ("f_1(x)", "f_1[x]"),
    ("f'(x)", "f'[x]"),
    ("y''", "y''"),
    ("a(n)", "(* a n)"),
    ("|AB|", "(abs (* A B))"),
]
FUNCTIONS = [
    (r"\sin x", "(sin x)"),
    ("sinx", "(sin x)"),
    (r"\sin 2x\cos y", "(* (sin (* 2 x)) (cos y))"),
    (r"\sin x+1", "(+ (sin x) 1)"),
    (r"\sin(x)y", "(* (sin x) y)"),
    (r"\sin 2(x+1)", "(sin (* 2 (+ x 1)))"),
    (r"\sin x(y+1)", "(* (sin x) (+ y 1))"),
    (r"\sin\cos x", "(sin (cos x))"),
    (r"\sin -x", "(sin (* -1 x))"),
    (r"\sin^2 x", "(^ (sin x) 2)"),
    (r"\sin^{-1}x", "(asin x)"),
    (r"\arcsin x", "(asin x)"),
    (r"\sin 30^\circ", "(sin (* 30 (/ PI 180)))"),
    (r"\cos \pi/3", "(cos (/ PI 3))"),
    (r"\ln x^2", "(ln (^ x 2))"),
    (r"\ln|x|", "(ln (abs x))"),
    (r"\log x", "(ln x)"),
    (r"\log_2 8", "(log 8 2)"),
    (r"\log_2^2 x", "(^ (log x 2) 2)"),
    (r"\lg x", "(log x 10)"),
    ("exp(x)", "(^ E x)"),
    (r"\max(a,b,c)", "(max (max a b) c)"),
    (r"\operatorname{lcm}(4,6)", "(lcm 4 6)"),
    ("|x+1|-|y|", "(+ (abs (+ x 1)) (* -1 (abs y)))"),
    ("|a|b|c|", "(* (abs a) b (abs c))"),
    ("||x|-1|", "(abs (+ (abs x) -1))"),
    (r"\lfloor x\rfloor", "(floor x)"),
    (r"\lceil x/2\rceil", "(ceil (/ x 2))"),
    (r"\binom nk", "(binomial n k)"),
    (r"{n\choose k}", "(binomial n k)"),
]
BINDERS = [
    (r"\sum_{k=1}^n k", "(sum k 1 n k)"),
    (r"\sum_{k=1}^{n}k^2+1", "(+ (sum k 1 n (^ k 2)) 1)"),
    (r"\sum_{i=1}^{n} i x", "(sum i 1 n (* i x))"),
    (r"\prod_{k=1}^{n}k", "(prod k 1 n k)"),
    (r"\sum_{n=1}^\infty\frac{1}{n^2}", "(sum n 1 INFINITY (/ 1 (^ n 2)))"),
    (r"\int_0^1 x^2\,dx", "(int x 0 1 (^ x 2))"),
    (r"\int_0^1 x\,dx+1", "(+ (int x 0 1 x) 1)"),
    (r"\int\sin x\,dx", "(int x _ _ (sin x))"),
    (r"\lim_{x\to0}\frac{\sin x}{x}", "(lim x 0 _ (/ (sin x) x))"),
]


@pytest.mark.parametrize(
    ("text", "tree"), [*SUMS, *PRODUCTS, *POWERS, *NAMES, *FUNCTIONS, *BINDERS], ids=lambda text: text
)
def test_trees(text: str, tree: str) -> None:
    assert shown(parse(lex(text))) == tree


@pytest.mark.parametrize(
    ("text", "value", "places", "digits"),
    [
        ("12", Fraction(12), None, 2),
        ("0012", Fraction(12), None, 2),
        ("0.50", Fraction(1, 2), 2, 2),
        (".5", Fraction(1, 2), 1, 1),
        ("1.50", Fraction(3, 2), 2, 3),
        ("0.003", Fraction(3, 1000), 3, 1),
        ("1e5", Fraction(100_000), None, 1),
        ("1.5e3", Fraction(1500), None, 2),
        ("1.5E-3", Fraction(15, 10_000), 4, 2),
        ("0.(3)", Fraction(1, 3), None, 0),
        ("0.1(6)", Fraction(1, 6), None, 0),
        (".(142857)", Fraction(1, 7), None, 0),
    ],
)
def test_numerals(text: str, value: Fraction, places: int | None, digits: int) -> None:
    assert number(text) == Number(value, places, digits)


def test_an_exponent_out_of_proportion_stays_a_power() -> None:
    assert shown(number("1e999999999")) == "(* 1 (^ 10 999999999))"


TIGHT, LOOSE, DECADIC = Reading(), Reading(tight=False), Reading(decadic=True)


@pytest.mark.parametrize(
    ("text", "reading", "tree"),
    [
        ("1/2x", TIGHT, "(/ 1 (* 2 x))"),
        ("1/2x", LOOSE, "(* 1 /2 x)"),
        (r"2/3\pi", TIGHT, "(/ 2 (* 3 PI))"),
        (r"2/3\pi", LOOSE, "(* 2 /3 PI)"),
        (r"\frac{1}{2}x", TIGHT, "(* (/ 1 2) x)"),
        (r"\log 8", TIGHT, "(ln 8)"),
        (r"\log 8", DECADIC, "(log 8 10)"),
        (r"\ln 8", DECADIC, "(ln 8)"),
    ],
)
def test_what_notation_leaves_open(text: str, reading: Reading, tree: str) -> None:
    assert reading in READINGS
    assert shown(parse(lex(text), reading)) == tree


@pytest.mark.parametrize(
    "text",
    [
        "", "()", "x+", "*x", "^2", "x^", r"\frac{1}", r"\sqrt", "{}", "(a", "a)", "[1)", "a=b", "3 4", "1.5 2",
        "hello", r"\unknown", r"a\pm b", r"\int x", r"\sum k", r"\lim x", r"\max()", r"\gcd(4)", "'", "&", "a,b",
        "9" * 5000,
    ],
)  # fmt: skip
def test_what_is_no_expression(text: str) -> None:
    with pytest.raises(Unreadable):
        parse(lex(text))


@pytest.mark.parametrize("opener", ["(", "{", r"\sqrt{", r"\frac{1}{", "2^{", r"\sin(", "|", "f("])
def test_nesting_has_a_limit(opener: str) -> None:
    closer = {"|": "|", "(": ")"}.get(opener[-1], "}")
    parse(lex(opener * 20 + "x" + closer * 20))
    with pytest.raises(Unreadable):
        parse(lex(opener * 10_000 + "x" + closer * 10_000))


@pytest.mark.parametrize(
    "text",
    ["x" + "!" * 20_001, r"\sin " * 10_000 + "x", r"\log_" * 10_000, "f" + "'" * 20_000, "-" * 20_000 + "1"],
)
def test_long_runs_do_not_recurse(text: str) -> None:
    with suppress(Unreadable):
        parse(lex(text))
