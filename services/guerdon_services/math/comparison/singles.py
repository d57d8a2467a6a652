"""Equality of two single values of any kind: quantities, words, digits in a base, times, ratios."""

from guerdon_services.math.arithmetic.values import Values
from guerdon_services.math.comparison.equations import known_equal
from guerdon_services.math.comparison.quantities import same_quantity
from guerdon_services.math.decision import UnreadableReference
from guerdon_services.math.notation.tree import ZERO, Mul, Node, quotient
from guerdon_services.math.reading.named import EMPTY, MISSING
from guerdon_services.math.reading.shapes import (
    Based,
    Clock,
    Quantity,
    Ratio,
    Shape,
    Words,
    literal,
    quantity,
)

#: Seconds of half a day.
_NOON = 12 * 3600


def same_single(values: Values, answer: Shape, gold: Shape) -> bool:
    """Whether two values are the same.

    Raises:
        UnreadableReference: the reference cannot be read.
    """
    match answer, gold:
        case Words(), Words() if same_words(answer, gold):
            return True
        case (_, Words(text, unread)):
            if unread:
                raise UnreadableReference(f"cannot be read: {text[:80]!r}")
            return False
        case Quantity(), Quantity():
            return same_quantity(values, answer, gold)
        case Based(), Based():
            return int(answer.digits, answer.base) == int(gold.digits, gold.base)
        case (Clock(), Clock()):
            return _same_time(answer, gold)
        case (Clock(), Quantity()) if hour := _hour(gold):
            return _same_time(answer, hour)
        case (Quantity(), Clock()) if hour := _hour(answer):
            return _same_time(hour, gold)
        case (Ratio() | Clock() | Quantity(), Ratio() | Clock() | Quantity()):
            return _same_ratio(values, answer, gold)
        case _:
            return False


def _same_ratio(values: Values, answer: Ratio | Clock | Quantity, gold: Ratio | Clock | Quantity) -> bool:
    """Whether the parts have the same proportions; a ratio of two is also a fraction."""
    given, wanted = _parts(answer), _parts(gold)
    if given is None and wanted is not None and isinstance(answer, Quantity):
        return len(wanted) == 2 and same_quantity(values, answer, quantity(quotient(*wanted)))
    if wanted is None and given is not None and isinstance(gold, Quantity):
        return len(given) == 2 and same_quantity(values, quantity(quotient(*given)), gold)
    if given is None or wanted is None or len(given) != len(wanted):
        return False
    pairs = list(zip(given, wanted, strict=True))
    if any(known_equal(values, part, ZERO) for part in (*given, *wanted)):
        return all(known_equal(values, one, other) for one, other in pairs)
    return all(known_equal(values, Mul((one, wanted[0])), Mul((other, given[0]))) for one, other in pairs)


def same_words(answer: Words, gold: Words) -> bool:
    """Whether two texts say the same, articles aside."""
    return _plain(answer.text) == _plain(gold.text)


def _plain(text: str) -> str:
    text = " ".join(text.replace("-", " ").split())
    text = text.removeprefix("the ").removeprefix("a ").removeprefix("an ")
    if text in MISSING:
        return "does not exist"
    return "empty set" if text in EMPTY else text


def _same_time(answer: Clock, gold: Clock) -> bool:
    """Equal, or twelve hours apart where one side does not say which half of the day it means."""
    if answer.seconds == gold.seconds:
        return True
    unsaid = gold if answer.half else answer
    told = bool(answer.half) == bool(gold.half) or unsaid.seconds > _NOON
    return not told and answer.seconds % _NOON == gold.seconds % _NOON


def _hour(shape: Quantity) -> Clock | None:
    """`10 am` as a time of day."""
    half = shape.unit.replace(".", "").strip().lower()
    value = literal(shape.node)
    if half not in ("am", "pm") or value is None or value.value not in range(1, 13):
        return None
    hours = int(value.value) % 12 + (12 if half == "pm" else 0)
    return Clock(3600 * hours, (shape.node,), half)


def _parts(shape: Ratio | Clock | Quantity) -> tuple[Node, ...] | None:
    return None if isinstance(shape, Quantity) else shape.parts
