"""Why two shapes are not the same, in a clause."""

from guerdon_services.math.reading.shapes import (
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
    is_interval,
    is_listed,
)

_NAMES: dict[type[object], str] = {
    Quantity: "a value",
    Words: "words",
    Based: "digits in a base",
    Clock: "a time",
    Ratio: "a ratio",
    Matrix: "a matrix",
    Relation: "a relation",
    Without: "a set of numbers",
    Restricted: "a set of numbers",
}


def why_not(answer: Shape, gold: Shape) -> str:
    """What tells an answer from the reference that it is not."""
    given, wanted = _bare(answer), _bare(gold)
    if isinstance(given, Words) and given.unread:
        return "the answer cannot be read"
    if _name(given) != _name(wanted):
        return f"{_name(given)} where {_name(wanted)} is expected"
    if isinstance(given, Many | Ordered) and isinstance(wanted, Many | Ordered):
        if len(given.items) != len(wanted.items):
            return f"{len(given.items)} values where {len(wanted.items)} are expected"
        return _which(given, wanted)
    if isinstance(given, Quantity) and isinstance(wanted, Quantity) and given.unit and wanted.unit:
        return "another value or unit"
    return "another value"


def _which(given: Many | Ordered, wanted: Many | Ordered) -> str:
    if isinstance(given, Ordered) and isinstance(wanted, Ordered):
        if (given.left, given.right) != (wanted.left, wanted.right) and is_interval(wanted):
            return "other brackets or ends"
        return "other values or another order"
    return "other values"


def _bare(shape: Shape) -> Shape:
    return shape.value if isinstance(shape, Labelled) else shape


def _name(shape: Shape) -> str:
    if is_listed(shape):
        return "a list"
    if isinstance(shape, Many):
        return f"a {shape.kind}"
    if isinstance(shape, Ordered):
        return "an interval or a pair" if is_interval(shape) else "a tuple"
    return _NAMES.get(type(shape), "a value")
