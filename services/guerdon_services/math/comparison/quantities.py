"""When two single values are the same: exact numbers exactly, decimals to the digits that they show, units, percent."""

from fractions import Fraction

from guerdon_services.math.arithmetic.values import Values
from guerdon_services.math.notation.tree import (
    Constant,
    Mul,
    Node,
    Number,
    Symbol,
    quotient,
    substitute,
    symbols,
    walk,
)
from guerdon_services.math.reading.shapes import Quantity, literal
from guerdon_services.math.reading.units import contradict, factor

#: Significant digits with which a decimal may stand for a number that has no finite decimal form.
_CLOSE_DIGITS = 6
#: Significant digits that a decimal reference must have before answers are rounded to it.
_ROUNDED_DIGITS = 3
#: Largest relative difference that this rounding may hide.
_ROUNDED_RELATIVE = Fraction(2, 1000)
#: Letters that stand for a constant of integration, and for any integer.
_CONSTANTS, _INTEGERS = frozenset("CcKD"), frozenset("klmn")
_HUNDRED = Number(Fraction(100))


def same_quantity(values: Values, answer: Quantity, gold: Quantity) -> bool:
    """Whether an answer is the value of the reference."""
    if (
        answer.unit != gold.unit
        and answer.unit
        and gold.unit
        and (symbols(answer.node) or symbols(gold.node))
    ):
        return False  # n even, n odd: with a variable the words are a condition
    scaled = _units(answer, gold)
    if scaled is None:
        return False
    answer = scaled
    if answer.degrees != gold.degrees and _same_angle(values, answer, gold):
        return True
    if answer.percent == gold.percent:
        return (
            _same(values, answer.node, gold.node)
            or _same_unit_letter(values, answer, gold)
            or _same_parameter(values, answer.node, gold.node)
        )
    # A percent sign on one side only may also be a unit that the other left out: 10 and 10% agree, and 0.1 and
    # 10%, but never 10 and 0.1.
    if answer.percent:
        return _same(values, _hundredth(answer.node), gold.node) or _same(values, answer.node, gold.node)
    return _same(values, answer.node, _hundredth(gold.node)) or _same(values, answer.node, gold.node)


def _units(answer: Quantity, gold: Quantity) -> Quantity | None:
    """The answer in the unit of the reference where both name one that is known; None when they cannot agree."""
    if not answer.unit or not gold.unit or answer.unit == gold.unit:
        return answer
    if contradict(answer.unit, gold.unit):
        return None
    given, wanted = factor(answer.unit), factor(gold.unit)
    if given is None or wanted is None or given == wanted:
        return answer
    if given[0] != wanted[0]:
        return None
    scale = given[1] / wanted[1]
    number = literal(answer.node)
    if number is not None:
        return Quantity(Number(number.value * scale), gold.unit)
    return Quantity(Mul((Number(scale), answer.node)), gold.unit)


def _same_angle(values: Values, answer: Quantity, gold: Quantity) -> bool:
    """Degrees on one side and a multiple of pi on the other."""
    plain, turned = (gold.node, answer.node) if answer.degrees else (answer.node, gold.node)
    if not any(part == Constant("pi") for part in walk(plain)):
        return False
    radians = Mul((turned, quotient(Constant("pi"), Number(Fraction(180)))))
    return values.equal(radians, plain) is True


def _same_unit_letter(values: Values, answer: Quantity, gold: Quantity) -> bool:
    """`5 m` read as a product, where the other side says that m is the unit."""
    for one, other in ((answer, gold), (gold, answer)):
        match one.node:
            case Mul((*factors, Symbol(name))) if other.unit and not one.unit and _measures(name, other.unit):
                rest = Quantity(factors[0] if len(factors) == 1 else Mul(tuple(factors)), name)
                pair = (rest, other) if one is answer else (other, rest)
                return same_quantity(values, *pair)
            case _:
                pass
    return False


def _same_parameter(values: Values, answer: Node, gold: Node) -> bool:
    """`x + C` and `x + c`, `2k\\pi` and `2n\\pi`: a free constant, or an integer beside pi, has no name of its own."""
    if isinstance(answer, Symbol) or isinstance(gold, Symbol):
        return False
    free, wanted = symbols(answer) - symbols(gold), symbols(gold) - symbols(answer)
    if len(free) != 1 or len(wanted) != 1:
        return False
    (old,), (new,) = free, wanted
    turns = {old, new} <= _INTEGERS and all(Constant("pi") in walk(node) for node in (answer, gold))
    if not turns and not {old, new} <= _CONSTANTS:
        return False
    return values.equal(substitute(answer, old, Symbol(new)), gold) is True


def _measures(name: str, unit: str) -> bool:
    """Whether a letter is a unit that can stand where another one does."""
    return name == unit or (factor(name) is not None and factor(unit) is not None)


def _hundredth(node: Node) -> Node:
    number = literal(node)
    if number is None:
        return quotient(node, _HUNDRED)
    places = None if number.places is None else number.places + 2
    return Number(number.value / 100, places, number.digits)


def _same(values: Values, answer: Node, gold: Node) -> bool:
    number, gold_number = literal(answer), literal(gold)
    if number and gold_number:
        return same_number(number, gold_number)
    if (number and number.places) or (gold_number and gold_number.places):
        return _same_decimal(values, answer, gold, number, gold_number)
    return values.equal(answer, gold) is True


def same_number(answer: Number, gold: Number) -> bool:
    """Exact where both are exact; where one is a decimal, equal to the digits that it shows."""
    if answer.value == gold.value:
        return True
    if gold.places is not None and (answer.places is None or answer.places > gold.places):
        return _rounds_to(answer.value, gold)
    if gold.places is None and answer.places is not None and not _terminates(gold.value):
        return _shows(gold.value, answer)
    return False


def _same_decimal(
    values: Values, answer: Node, gold: Node, number: Number | None, gold_number: Number | None
) -> bool:
    """One side is a decimal, the other a closed form such as 100/3, pi or a root."""
    if values.equal(answer, gold):
        return True
    closed = gold if number and gold_number is None else answer
    value = _approximate(values, closed)
    if value is None:
        return False
    if gold_number is None or (number is not None and not gold_number.places):
        return (
            number is not None and same_number(number, Number(value))
            if _is_rational(values, closed)
            else (number is not None and _shows(value, number))
        )
    return value == gold_number.value or _rounds_to(value, gold_number) or _shows(value, gold_number)


def _is_rational(values: Values, node: Node) -> bool:
    return values.rational(node) is not None


def _approximate(values: Values, node: Node) -> Fraction | None:
    exact = values.rational(node)
    if exact is not None:
        return exact
    ball = values.decimal(node)
    return None if ball is None else ball[0]


def _rounds_to(value: Fraction, gold: Number) -> bool:
    """Whether a value gives the decimal `gold` when it is rounded to the places that gold has."""
    if not gold.places or gold.digits < _ROUNDED_DIGITS:
        return False
    off = abs(value - gold.value)
    return off <= Fraction(1, 2 * 10**gold.places) and off <= _ROUNDED_RELATIVE * abs(gold.value)


def _shows(value: Fraction, shown: Number) -> bool:
    """Whether `shown` is the endless `value`, cut or rounded to at least six digits."""
    return (
        bool(shown.places)
        and shown.digits >= _CLOSE_DIGITS
        and abs(value - shown.value) < Fraction(1, 10**shown.places)
    )


def _terminates(value: Fraction) -> bool:
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1
