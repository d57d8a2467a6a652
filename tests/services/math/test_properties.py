"""Answers whose value is known by construction: every spelling of it is right, and every other value is wrong."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from random import Random
from typing import Protocol

from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon_services.math.arithmetic.values import Values
from guerdon_services.math.decide import decide

#: The same examples in every run: a verifier is judged by the same answers today and tomorrow.
EXAMPLES = settings(max_examples=400, deadline=None, derandomize=True)
RANDOMS = st.randoms(use_true_random=False)


def equal(answer: str, reference: str) -> bool:
    return decide(answer, reference, Values(balls=True)).equal


class Answer(Protocol):
    """What can be spelled in several ways, and changed into something else of its kind."""

    def spelled(self, rng: Random) -> str: ...

    def changed(self, rng: Random) -> "Answer": ...


# Single values


@dataclass(frozen=True)
class Value:
    """`plain + factor * unit`, where the unit is pi, i or a square root; without one the factor is 0."""

    plain: Fraction
    factor: Fraction = Fraction(0)
    unit: str = ""

    def spelled(self, rng: Random, *, alone: bool = True) -> str:
        if not self.factor:
            return a_spelling(rng, self.plain, alone=alone)
        unit = rng.choice(UNITS[self.unit])
        size = "" if abs(self.factor) == 1 else a_fraction(rng, abs(self.factor))
        between = ["\\cdot ", "*"] if unit[0].isdigit() else ["", "\\cdot ", " "]
        product = size + (rng.choice(between) if size else "") + unit
        if not self.plain:
            return ("-" if self.factor < 0 else "") + product
        if rng.random() < 0.5:
            return a_fraction(rng, self.plain) + ("-" if self.factor < 0 else "+") + product
        plain = a_fraction(rng, self.plain)
        return ("-" if self.factor < 0 else "") + product + ("" if plain.startswith("-") else "+") + plain

    def changed(self, rng: Random) -> "Value":
        if not self.factor:
            return Value(another(rng, self.plain))
        if rng.random() < 0.2:
            return replace(self, unit=rng.choice([unit for unit in UNITS if unit != self.unit]))
        if rng.random() < 0.4:
            return replace(self, plain=another(rng, self.plain))
        return replace(self, factor=another(rng, self.factor) or Fraction(1, 97))


UNITS = {
    "pi": ["\\pi", "π", "{\\pi}"],
    "i": ["i"],
    "2": ["\\sqrt{2}", "\\sqrt2", "√2", "2^{1/2}", "\\sqrt{2}"],
    "3": ["\\sqrt{3}", "\\sqrt 3", "3^{\\frac12}", "\\frac{3}{\\sqrt{3}}"],
    "10": ["\\sqrt{10}", "sqrt(10)", "\\sqrt{2}\\sqrt{5}", "10^{0.5}"],
}


def a_spelling(rng: Random, value: Fraction, *, alone: bool) -> str:
    """A rational number in any notation; between others without spaces and separators that could be misread."""
    sign, size = "-" if value < 0 else "", abs(value)
    above, below = size.numerator, size.denominator
    if below == 1:
        forms = [f"{above}", f"{above}.0", f"\\frac{{{3 * above}}}{{3}}", f"{2 * above}/2"]
        if above >= 1000:
            forms += [
                f"{above:,}".replace(",", mark) for mark in ("{,}", "\\,", ",", " ")[: 4 if alone else 2]
            ]
        if above and above % 100 == 0:
            forms += [f"{above // 100}\\times 10^{{2}}", f"{above // 100}\\cdot 10^2", f"{above // 100}e2"]
        return sign + rng.choice(forms)
    forms = [f"\\frac{{{above}}}{{{below}}}", f"{above}/{below}", f"\\frac{{{2 * above}}}{{{2 * below}}}"]
    if 10**4 % below == 0:
        decimal = f"{above / below:.4f}".rstrip("0")
        forms += [decimal, decimal + "0", decimal.removeprefix("0")]
    if above > below:
        forms += [f"{above // below}\\frac{{{above % below}}}{{{below}}}"]
        forms += [f"{above // below} {above % below}/{below}"] if alone else []
    if below < 10 and above < 10:
        forms.append(f"\\frac{above}{below}")
    return sign + rng.choice(forms)


def a_fraction(rng: Random, value: Fraction) -> str:
    if value.denominator == 1:
        return str(value)
    sign = "-" if value < 0 else ""
    return rng.choice(
        [
            f"{sign}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}",
            f"\\frac{{{value.numerator}}}{{{value.denominator}}}",
        ]
    )


def another(rng: Random, value: Fraction) -> Fraction:
    """The value with another sign or another digit."""
    if value and rng.random() < 0.3:
        return -value
    digits = list(str(abs(value.numerator)))
    index = rng.randrange(len(digits))
    digits[index] = rng.choice([digit for digit in "0123456789" if digit != digits[index]])
    return Fraction(int("".join(digits)) * (-1 if value < 0 else 1), value.denominator)


def a_rational(rng: Random) -> Fraction:
    size = rng.choice([9, 100, 10**4, 10**7, 10**25])
    below = rng.choice([1, 1, 1, 2, 3, 7, 8, 10, 25]) if size <= 10**4 else 1
    return Fraction(rng.randint(-size, size), below)


def a_value(rng: Random) -> Value:
    if rng.random() < 0.6:
        return Value(a_rational(rng))
    plain = Fraction(rng.randint(-20, 20), rng.choice([1, 1, 2, 5])) if rng.random() < 0.5 else Fraction(0)
    factor = Fraction(rng.choice([-1, 1]) * rng.randint(1, 40), rng.choice([1, 1, 2, 3, 7]))
    return Value(plain, factor, rng.choice(list(UNITS)))


# Several values


@dataclass(frozen=True)
class Several:
    """Values in a set, a list or a tuple."""

    kind: str
    items: tuple[Value, ...]

    def spelled(self, rng: Random) -> str:
        items = list(self.items)
        if self.kind != "tuple":
            rng.shuffle(items)
        texts = [item.spelled(rng, alone=False) for item in items]
        if self.kind == "list":
            last = rng.choice([", ", " and ", "; ", "\\text{ or }"] if len(items) == 2 else [", ", "; "])
            return last.join(texts)
        left, right = rng.choice([("(", ")"), ("\\left(", "\\right)")] if self.kind == "tuple" else BRACES)
        return left + rng.choice([",", ", ", ",\\, "]).join(texts) + right

    def changed(self, rng: Random) -> "Several":
        index = rng.randrange(len(self.items))
        before, item, after = self.items[:index], self.items[index], self.items[index + 1 :]
        ways = [(*before, item.changed(rng), *after), (*self.items, Value(Fraction(9999)))]
        if len(self.items) > 2:
            ways.append((*before, *after))
        if self.kind == "tuple" and before:
            ways.append((item, *before[1:], before[0], *after))
        return replace(self, items=rng.choice(ways))

    def same(self, other: "Several") -> bool:
        if self.kind == "tuple":
            return self.items == other.items
        return set(self.items) == set(other.items)


BRACES = [("\\{", "\\}"), ("\\left\\{", "\\right\\}"), ("\\lbrace ", "\\rbrace")]


@dataclass(frozen=True)
class Interval:
    """Real numbers between two, or from one on; `low` or `high` may be None."""

    low: Fraction | None
    high: Fraction | None
    closed: tuple[bool, bool]

    def spelled(self, rng: Random) -> str:
        low = "-\\infty" if self.low is None else a_fraction(rng, self.low)
        high = rng.choice(["\\infty", "+\\infty", "∞"]) if self.high is None else a_fraction(rng, self.high)
        left, right = "([" if self.low is not None else "((", ")]" if self.high is not None else "))"
        bracketed = f"{left[self.closed[0]]}{low}, {high}{right[self.closed[1]]}"
        condition = self._condition(rng, low, high)
        return rng.choice(
            [
                bracketed,
                f"x\\in{bracketed}",
                condition,
                condition,
                f"\\{{x\\mid {condition}\\}}",
                f"\\{{x\\in\\mathbb{{R}}:{condition}\\}}",
            ]
        )

    def _condition(self, rng: Random, low: str, high: str) -> str:
        below, above = ("<", rng.choice(["\\le ", "\\leq ", "≤", "<="])), (">", rng.choice(["\\ge ", "≥"]))
        if self.low is None:
            return f"x{below[self.closed[1]]}{high}"
        if self.high is None:
            return rng.choice([f"x{above[self.closed[0]]}{low}", f"{low}{below[self.closed[0]]}x"])
        return f"{low}{below[self.closed[0]]}x{below[self.closed[1]]}{high}"

    def changed(self, rng: Random) -> "Interval":
        left, right = self.closed
        ways: list[Interval] = []
        if self.low is not None:
            ways += [replace(self, closed=(not left, right)), replace(self, low=another(rng, self.low))]
        if self.high is not None:
            ways += [replace(self, closed=(left, not right)), replace(self, high=another(rng, self.high))]
        return rng.choice([way for way in ways if way.low is None or way.high is None or way.low < way.high])


@dataclass(frozen=True)
class Matrix:
    """Rows of values."""

    rows: tuple[tuple[Value, ...], ...]

    def spelled(self, rng: Random) -> str:
        cells = [[cell.spelled(rng, alone=False) for cell in row] for row in self.rows]
        name = rng.choice(["pmatrix", "bmatrix"])
        body = rng.choice(["\\\\", " \\\\ ", "\\\\\n"]).join(
            rng.choice(["&", " & "]).join(row) for row in cells
        )
        return f"\\begin{{{name}}}{body}\\end{{{name}}}"

    def changed(self, rng: Random) -> "Matrix":
        rows = list(self.rows)
        index = rng.randrange(len(rows))
        row = list(rows[index])
        column = rng.randrange(len(row))
        row[column] = row[column].changed(rng)
        rows[index] = tuple(row)
        return Matrix(tuple(rows)) if rng.random() < 0.8 else Matrix((*self.rows, self.rows[0]))


# Expressions


@dataclass(frozen=True)
class Polynomial:
    """Coefficients, not all 0, of powers of x and y."""

    terms: tuple[tuple[int, int, int], ...]  # (coefficient, power of x, power of y)

    def spelled(self, rng: Random) -> str:
        terms = list(self.terms)
        rng.shuffle(terms)
        text = "".join(self._term(rng, *term) for term in terms)
        return text.removeprefix("+")

    @staticmethod
    def _term(rng: Random, coefficient: int, *powers: int) -> str:
        letters = "".join(
            letter
            + (
                ""
                if power == 1
                else rng.choice([f"^{power}", f"^{{{power}}}", f"**{power} ", "⁰¹²³⁴"[power]])
            )
            for letter, power in zip("xy", powers, strict=True)
            if power
        )
        size = "" if abs(coefficient) == 1 and letters else str(abs(coefficient))
        times = rng.choice(["", "\\cdot ", "*", " "]) if size and letters else ""
        return ("-" if coefficient < 0 else "+") + size + times + letters

    def changed(self, rng: Random) -> "Polynomial":
        terms = list(self.terms)
        index = rng.randrange(len(terms))
        coefficient, *powers = terms[index]
        value = int(another(rng, Fraction(coefficient))) or 1 - coefficient
        terms[index] = (value, powers[0], powers[1])
        return Polynomial(tuple(term for term in terms if term[0]) or ((7, 0, 0),))


@dataclass(frozen=True)
class Line:
    """`a x + b y = c` with a and b not 0."""

    a: int
    b: int
    c: int

    def spelled(self, rng: Random) -> str:
        factor = rng.choice([1, 1, 2, -3, 7])
        a, b, c = factor * self.a, factor * self.b, factor * self.c
        return rng.choice(
            [
                f"{a}x{b:+}y={c}",
                f"{c}={b}y{a:+}x",
                f"{a}x{b:+}y{-c:+}=0",
                f"{b}y = {c}{-a:+}x",
                f"y=\\frac{{{c}{-a:+}x}}{{{b}}}",
                f"y=-\\frac{{{a}}}{{{b}}}x+\\frac{{{c}}}{{{b}}}",
            ]
        )

    def changed(self, rng: Random) -> "Line":
        changed = rng.choice(
            [
                replace(self, a=int(another(rng, Fraction(self.a))) or self.a + 1),
                replace(self, b=int(another(rng, Fraction(self.b))) or self.b + 1),
                replace(self, c=int(another(rng, Fraction(self.c)))),
            ]
        )
        return changed if changed.a and changed.b else replace(self, c=self.c + 1)


def an_answer(rng: Random) -> Answer:
    return rng.choice([a_value, a_value, several, an_interval, a_matrix, a_polynomial, a_line])(rng)


def several(rng: Random) -> Several:
    items = {a_value(rng) for _ in range(rng.randint(2, 5))} | {Value(Fraction(1234567))}
    return Several(rng.choice(["set", "list", "tuple"]), tuple(sorted(items, key=repr)))


def an_interval(rng: Random) -> Interval:
    low = Fraction(rng.randint(-50, 50), rng.choice([1, 1, 3]))
    high = low + Fraction(rng.randint(1, 50), rng.choice([1, 2]))
    closed = (rng.random() < 0.5, rng.random() < 0.5)
    return rng.choice(
        [
            Interval(low, high, closed),
            Interval(None, high, (False, closed[1])),
            Interval(low, None, (closed[0], False)),
        ]
    )


def a_matrix(rng: Random) -> Matrix:
    width = rng.randint(1, 3)
    return Matrix(tuple(tuple(a_value(rng) for _ in range(width)) for _ in range(rng.randint(2, 3))))


def a_polynomial(rng: Random) -> Polynomial:
    powers = [(first, second) for first in range(4) for second in range(3)]
    chosen = rng.sample(powers, rng.randint(1, 4))
    return Polynomial(
        tuple((rng.choice([-1, 1]) * rng.randint(1, 200), *power) for power in {*chosen, (1, 0)})
    )


def a_line(rng: Random) -> Line:
    a, b = (rng.choice([-1, 1]) * rng.randint(2, 30) for _ in range(2))
    return Line(a, b, rng.randint(-30, 30))


# Noise

Noise = Callable[[Random, str], str]


def _spaces(rng: Random, text: str) -> str:
    for sign in "=+<" if "<=" not in text else "+":
        text = text.replace(sign, rng.choice([sign, f" {sign} ", f"{sign} ", f"{sign}\\ "]))
    return text.replace(", ", rng.choice([",\\ ", ",  ", ",\\quad "]))


def _stretched(rng: Random, text: str) -> str:
    if (
        "\\left" in text
        or "^" in text
        or text.count("(") + text.count("[") != text.count(")") + text.count("]")
    ):
        return text
    for mark in "([":
        text = text.replace(mark, f"\\left{mark}")
    for mark in ")]":
        text = text.replace(mark, f"\\right{mark}")
    return text


def _wide(rng: Random, text: str) -> str:
    return text.translate({ord("0") + digit: 0xFF10 + digit for digit in range(10)})


INNER: Sequence[Noise] = (
    _spaces,
    _stretched,
    _wide,
    lambda rng, text: text.replace("\\frac", rng.choice(["\\dfrac", "\\tfrac"])),
    lambda rng, text: text.replace("-", "\N{MINUS SIGN}"),
    lambda rng, text: text.replace(" and ", "\\text{ and }").replace("\\text{ or }", " or "),
    lambda rng, text: text.replace("<", "&lt;") if "<=" not in text else text,
    lambda rng, text: text if "\\begin" in text else text.replace("\\frac", "\\\\frac"),
    lambda rng, text: f"\\displaystyle {text}",
    lambda rng, text: f"{text}.",
    lambda rng, text: f"  {text}\n",
)
OUTER: Sequence[Noise] = (
    lambda rng, text: f"${text}$",
    lambda rng, text: f"$${text}$$",
    lambda rng, text: f"\\({text}\\)",
    lambda rng, text: f"\\[ {text} \\]",
    lambda rng, text: text if ", " in text or ";" in text else f"{{{text}}}",
    lambda rng, text: text if "*" in text else f"**{text}**",
)


def noisy(rng: Random, text: str) -> str:
    for noise in rng.sample(INNER, rng.randint(0, 3)):
        text = noise(rng, text)
    return rng.choice(OUTER)(rng, text) if rng.random() < 0.7 else text


# Properties


@EXAMPLES
@given(RANDOMS)
def test_every_answer_is_itself(rng: Random) -> None:
    text = noisy(rng, an_answer(rng).spelled(rng))
    assert equal(text, text)


@EXAMPLES
@given(RANDOMS)
def test_every_spelling_of_a_value_is_right(rng: Random) -> None:
    answer = an_answer(rng)
    one, other = answer.spelled(rng), answer.spelled(rng)
    assert equal(one, other)
    assert equal(other, one)


@EXAMPLES
@given(RANDOMS)
def test_formatting_says_nothing(rng: Random) -> None:
    answer = an_answer(rng)
    reference = answer.spelled(rng)
    given_answer, wanted = noisy(rng, answer.spelled(rng)), noisy(rng, reference)
    assert equal(given_answer, reference)
    assert equal(given_answer, wanted)


@EXAMPLES
@given(RANDOMS)
def test_every_other_value_is_wrong(rng: Random) -> None:
    answer = an_answer(rng)
    other = answer.changed(rng)
    if isinstance(answer, Several) and isinstance(other, Several) and answer.same(other):
        return
    if isinstance(answer, Line) and isinstance(other, Line) and _proportional(answer, other):
        return
    wrong, reference = noisy(rng, other.spelled(rng)), noisy(rng, answer.spelled(rng))
    assert not equal(wrong, reference)
    assert not equal(reference, wrong)


def _proportional(one: Line, other: Line) -> bool:
    sides = [(one.a, other.a), (one.b, other.b), (one.c, other.c)]
    return all(left[0] * right[1] == left[1] * right[0] for left, right in pairwise([*sides, sides[0]]))


@EXAMPLES
@given(RANDOMS)
def test_kinds_are_not_confused(rng: Random) -> None:
    """A set is no tuple, a value no list, and an interval no pair of its ends in braces."""
    items = several(rng).items
    texts = {kind: Several(kind, items).spelled(rng) for kind in ("set", "tuple")}
    assert not equal(texts["set"], texts["tuple"])
    assert not equal(texts["tuple"], texts["set"])
    assert not equal(items[0].spelled(rng), texts["set"])
    assert not equal(texts["tuple"], items[0].spelled(rng))
