"""Equality by shape and algebra; runs inside a worker, on text that nobody trusts.

The shape (`forms`) is compared here, expressions by value at random points in high precision. Math-Verify reads
LaTeX into sympy, and decides where values cannot.
"""

# sympy and Math-Verify have no type stubs.
# pyright: reportMissingTypeStubs=false

import random
import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, cast

import sympy
from latex2sympy2_extended.latex2sympy2 import NormalizationConfig
from math_verify import parse, verify  # pyright: ignore[reportUnknownVariableType]
from math_verify.parser import LatexExtractionConfig

from guerdon_services.math.decision import Decision, UnreadableReference
from guerdon_services.math.forms import (
    Form,
    Group,
    Labelled,
    Matrix,
    Relation,
    Scalar,
    TooComplex,
    flatten,
    is_balanced,
    is_label,
    read,
    relation_in,
)
from guerdon_services.math.normalise import is_words, key, normalise
from guerdon_services.math.numbers import Number, equal_numbers, parse_number, rounds_to, shows, strip_units

_DIGITS = 40
_RELATIVE = sympy.Float("1e-25", _DIGITS)
_POINTS = 6
#: Points at which two expressions must have been compared before they count as equal.
_ENOUGH = 3
#: Characters and levels of brackets of one expression that is parsed.
_MAX_EXPRESSION, _MAX_NESTING = 5000, 60
_DIRECTIONS = {"<": ">", ">": "<", "\\leq": "\\geq", "\\geq": "\\leq"}
#: Sets with a name of their own: each equals itself and nothing else. All reals are an interval (`forms`).
_NAMED_SET = re.compile(r"\\emptyset|\\mathbb\s*(?:\{\s*[A-Z]\s*\}|[A-Z])")
_TRIGONOMETRIC = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")
#: How Math-Verify may rewrite LaTeX: units and boxes are dealt with before.
_READ = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)


def warm_up() -> None:
    """Import and cache what the first comparison would otherwise wait for."""
    equal("\\frac{x}{2}", "\\frac{2x}{4}")


def equal(answer: str, gold: str) -> Decision:
    """Whether the answer equals the reference.

    Raises:
        UnreadableReference: the reference is no mathematics that can be read.
    """
    try:
        expected = read(normalise(gold))
    except TooComplex as problem:
        raise UnreadableReference(f"cannot be read: {problem}") from problem
    try:
        given = read(normalise(answer))
    except TooComplex as problem:
        return Decision(False, "none", f"the answer cannot be read: {problem}")
    same = _same(given, expected)
    if not same:
        same = _same_inequality(relation_in(normalise(answer)), relation_in(normalise(gold)))
    return Decision(same, "symbolic", "algebra")


def _same(answer: Form, gold: Form) -> bool:
    """Equality of two shapes; the answer may leave out a label, never add a value."""
    if isinstance(gold, Labelled):
        return _same_labelled(answer, gold)
    if isinstance(answer, Labelled):
        if isinstance(gold, Relation):
            return _same_equation(answer.relation, gold)
        return _same(answer.value, gold)
    if isinstance(gold, Relation) or isinstance(answer, Relation):
        return _same_relation(answer, gold)
    if isinstance(gold, Matrix) or isinstance(answer, Matrix):
        return _same_matrix(answer, gold)
    if isinstance(gold, Group) or isinstance(answer, Group):
        return isinstance(gold, Group) and isinstance(answer, Group) and _same_group(answer, gold)
    return _same_scalar(answer.text, gold.text)


def _same_inequality(answer: Relation | None, gold: Relation | None) -> bool:
    """`2x < 6` and `x < 3`: the differences of the sides have a constant ratio, whose sign turns the relation."""
    if answer is None or gold is None or not (set(answer.signs) | set(gold.signs) <= _DIRECTIONS.keys()):
        return False
    left, right = _difference(answer), _difference(gold)
    ratio = None if left is None or right is None else _constant_ratio(left, right)
    if ratio is None:
        return False
    turned = answer.signs[0] if ratio > 0 else _DIRECTIONS[answer.signs[0]]
    return turned == gold.signs[0]


def _same_labelled(answer: Form, gold: Labelled) -> bool:
    if isinstance(answer, Labelled):
        names = key(answer.label), key(gold.label)
        if names[0] == names[1] or names[0].partition("(")[0] == names[1].partition("(")[0]:
            return _same(answer.value, gold.value)
        return _same_equation(answer.relation, gold.relation)
    if isinstance(answer, Relation):
        if _same_equation(answer, gold.relation):
            return True
        # "a + b = 3" may stand for S = 3, but "x + 1 = 3" says something else of x than x = 3 does.
        return not any(_mentions(side, gold.label) for side in answer.parts) and _same_relation(
            answer, gold.value
        )
    return _same(answer, gold.value)


def _mentions(text: str, name: str) -> bool:
    return re.search(rf"(?<![a-zA-Z\\]){re.escape(name)}(?![a-zA-Z])", text) is not None


def _same_relation(answer: Form, gold: Form) -> bool:
    """At least one side is a relation that is neither an interval nor a labelled value."""
    if isinstance(answer, Relation) and isinstance(gold, Relation):
        if answer.signs == gold.signs and all(map(_same_scalar, answer.parts, gold.parts)):
            return True
        return _same_equation(answer, gold)
    if isinstance(gold, Relation):
        return isinstance(answer, Scalar) and _solves(answer.text, gold)
    if isinstance(answer, Relation) and set(answer.signs) == {"="}:
        # "3 \cdot 4 = 12": every side that is a number must agree with the last one, or the answer hedges.
        *sides, last = answer.parts
        consistent = all(_same_scalar(side, last) for side in sides if not _has_variable(side))
        return consistent and _same(read(last), gold)
    return False


def _same_equation(answer: Relation, gold: Relation) -> bool:
    """Relations that differ by a nonzero factor or in arrangement."""
    if len(answer.signs) == len(gold.signs) == 1 and answer.signs == gold.signs == ("=",):
        left, right = _difference(answer), _difference(gold)
        if left is not None and right is not None and left.free_symbols == right.free_symbols:
            return _constant_ratio(left, right) is not None
    return _math_verify(_text(answer), _text(gold))


def _solves(answer: str, gold: Relation) -> bool:
    """Whether an expression is what an equation gives for the one variable that the expression leaves out."""
    difference, value = _difference(gold), _expression(answer)
    if difference is None or value is None or gold.signs != ("=",):
        return False
    missing = difference.free_symbols - value.free_symbols
    if len(missing) != 1:
        return False
    (variable,) = missing
    if variable in difference.diff(variable).free_symbols:  # not linear: there may be more than one solution
        return False
    solved = difference.subs(variable, value)
    return _values_agree(solved, sympy.Integer(0)) is True


def _same_matrix(answer: Form, gold: Form) -> bool:
    if isinstance(gold, Matrix) and isinstance(answer, Scalar):
        return _math_verify(answer.text, gold.text)
    if isinstance(answer, Matrix) and isinstance(gold, Scalar):
        return "\\begin" in gold.text and _math_verify(answer.text, gold.text)
    given, expected = _rows(answer), _rows(gold)
    if given and expected and isinstance(gold, Group) is not isinstance(answer, Group):
        given, expected = _as_column(given), _as_column(expected)
    if given is None or expected is None or [len(row) for row in given] != [len(row) for row in expected]:
        return False
    return all(
        _same(cell, wanted)
        for row, wanted_row in zip(given, expected, strict=True)
        for cell, wanted in zip(row, wanted_row, strict=True)
    )


def _rows(form: Form) -> tuple[tuple[Form, ...], ...] | None:
    """Rows of a matrix; a tuple of three or more, or of two, counts as a column."""
    if isinstance(form, Matrix):
        return form.rows
    if isinstance(form, Group) and (form.left, form.right) in (("(", ")"), ("[", "]")):
        return tuple((item,) for item in form.items)
    return None


def _as_column(rows: tuple[tuple[Form, ...], ...]) -> tuple[tuple[Form, ...], ...]:
    """A row vector as a column; anything else as it is."""
    return tuple((cell,) for cell in rows[0]) if len(rows) == 1 else rows


def _same_group(answer: Group, gold: Group) -> bool:
    unordered = ("", "{")
    if gold.left in unordered and answer.left in unordered:
        return _same_items(flatten(answer), flatten(gold))
    if "{" in (gold.left, answer.left):
        return False
    if len(answer.items) != len(gold.items):
        return False
    brackets = (answer.left, answer.right), (gold.left, gold.right)
    if brackets[0] != brackets[1] and ("", "") not in brackets and len(gold.items) == 2:
        return False
    return all(map(_same, answer.items, gold.items))


def _same_items(answer: Sequence[Form], gold: Sequence[Form]) -> bool:
    """The same values in any order."""
    if any(isinstance(item, Group) for item in gold):  # a tuple named twice is no other answer
        answer, gold = _distinct(answer), _distinct(gold)
    if len(answer) != len(gold):
        return False
    left = list(answer)
    for wanted in gold:
        found = next((index for index, item in enumerate(left) if _same(item, wanted)), None)
        if found is None:
            return False
        del left[found]
    return True


def _distinct(items: Sequence[Form]) -> list[Form]:
    kept: list[Form] = []
    for item in items:
        if not any(_same(item, other) for other in kept):
            kept.append(item)
    return kept


def _same_scalar(answer: str, gold: str) -> bool:
    if key(answer) == key(gold):
        return True
    if is_words(gold) or is_words(answer):
        return False
    if _NAMED_SET.fullmatch(answer.strip()) or _NAMED_SET.fullmatch(gold.strip()):
        return False
    number, gold_number = parse_number(answer), parse_number(gold)
    if number and gold_number:
        return equal_numbers(number, gold_number)
    if _is_decimal(gold_number) or _is_decimal(number):
        return _same_decimal(answer, gold, number, gold_number)
    if "\\begin" in answer or "\\begin" in gold:  # a product of matrices
        return "\\begin" in answer and "\\begin" in gold and _math_verify(answer, gold)
    expressions = _expression(answer), _expression(gold)
    if expressions[1] is None:
        raise UnreadableReference(f"cannot be read: {gold[:80]!r}")
    if expressions[0] is None:
        return False
    agree = _values_agree(*expressions)
    return _math_verify(answer, gold) if agree is None else agree


def _is_decimal(number: Number | None) -> bool:
    return number is not None and bool(number.places)


def _same_decimal(answer: str, gold: str, number: Number | None, gold_number: Number | None) -> bool:
    """One side is a decimal, the other a closed form such as pi or a root."""
    value = _value(gold if gold_number is None else answer)
    if value is None:
        return False
    if gold_number is None:
        return number is not None and shows(value, number)
    return value == gold_number.value or rounds_to(value, gold_number) or shows(value, gold_number)


def _value(text: str) -> Fraction | None:
    expression = _expression(text)
    if expression is None or expression.free_symbols:
        return None
    number = _evaluated(expression)
    return Fraction(str(number)) if number.is_Float or number.is_Rational else None


def _values_agree(left: Any, right: Any) -> bool | None:
    """Whether two expressions have the same values at random points; None when that cannot be told."""
    symbols = sorted(left.free_symbols | right.free_symbols, key=str)
    if not symbols:
        left, right = left.doit(), right.doit()
        if left.is_Rational and right.is_Rational:
            return bool(left == right)
        return _close(left, right)
    draw = random.Random(0)
    compared = 0
    for point in range(_POINTS):
        sign = -1 if point % 3 == 2 else 1
        values = {name: sympy.Rational(sign * draw.randint(2100, 7900), 1009) for name in symbols}
        verdict = _close(left.subs(values), right.subs(values), real=sign < 0)
        if verdict is False:
            return False
        compared += verdict is True
    return True if compared >= _ENOUGH else None


def _evaluated(expression: Any) -> Any:
    try:
        return expression.evalf(_DIGITS)
    except ValueError:  # a pole: there is no value
        return sympy.nan


def _number(expression: Any) -> Any:
    value = _evaluated(expression.doit()) if hasattr(expression, "doit") else expression
    return value if value.is_number and value.is_finite else None


def _close(left: Any, right: Any, *, real: bool = False) -> bool | None:
    """Whether two numbers agree to all digits; None when they cannot be compared."""
    above, below = _number(left), _number(right)
    if above is None or below is None or (real and not (above.is_real and below.is_real)):
        return None
    if bool(abs(above - below) > max(abs(above), abs(below)) * _RELATIVE):
        return False
    # A difference too small for these digits is resolved with more of them; what stays at one bit is zero.
    difference = left - right
    if difference.is_Rational:
        return bool(difference == 0)
    rest = difference.evalf(_DIGITS)
    return not (rest.is_Float and rest != 0 and getattr(rest, "_prec", 1) > 1)


def _constant_ratio(left: Any, right: Any) -> Any:
    """The constant factor between two expressions; None when there is none."""
    draw = random.Random(1)
    symbols = sorted(left.free_symbols | right.free_symbols, key=str)
    ratios: list[Any] = []
    for _ in range(_ENOUGH):
        values = {name: sympy.Rational(draw.randint(2100, 7900), 1009) for name in symbols}
        above, below = _number(left.subs(values)), _number(right.subs(values))
        if above is None or below is None or below == 0 or not (above / below).is_real:
            return None
        ratios.append(above / below)
    same = all(bool(abs(ratio - ratios[0]) <= abs(ratios[0]) * _RELATIVE) for ratio in ratios)
    return ratios[0] if same and ratios[0] != 0 else None


def _difference(relation: Relation) -> Any:
    if len(relation.parts) != 2:
        return None
    left, right = _expression(relation.parts[0]), _expression(relation.parts[1])
    return None if left is None or right is None else left - right


def _has_variable(text: str) -> bool:
    expression = _expression(text)
    return expression is None or bool(expression.free_symbols) or is_label(text)


def _text(relation: Relation) -> str:
    rest = "".join(f" {sign} {part}" for sign, part in zip(relation.signs, relation.parts[1:], strict=True))
    return relation.parts[0] + rest


@lru_cache(maxsize=256)
def _parsed(text: str) -> Any:
    """What Math-Verify reads, or None. Its own timeouts use signals and stay off: the parent kills."""
    if len(text) > _MAX_EXPRESSION or not is_balanced(text, _MAX_NESTING):
        return None
    config = [LatexExtractionConfig(normalization_config=_READ)]
    try:
        found = cast(
            "list[Any]", parse(f"${text}$", config, parsing_timeout=cast(int, None), raise_on_error=True)
        )
    except MemoryError:  # says nothing about the text
        raise
    except Exception:  # the parser raises whatever it likes over text that is no mathematics
        return None
    return found[0] if found and not isinstance(found[0], str) else None


def _expression(text: str) -> Any:
    """The text as one sympy expression, units aside, or None."""
    bare = strip_units(text)
    if _TRIGONOMETRIC.search(bare):
        bare = bare.replace("^{\\circ}", " \\cdot \\frac{\\pi}{180}")
    parsed = _parsed(bare)
    return parsed if isinstance(parsed, sympy.Expr) else None


def _math_verify(answer: str, gold: str) -> bool:
    given, expected = _parsed(answer), _parsed(gold)
    if expected is None:
        raise UnreadableReference(f"cannot be read: {gold[:80]!r}")
    if given is None:
        return False
    try:
        return bool(verify(expected, given, timeout_seconds=None, raise_on_error=True))
    except MemoryError:
        raise
    except Exception:  # sympy has no answer to such a pair: they are not known to be equal
        return False
