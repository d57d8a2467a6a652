"""Equality of two shapes: the answer may leave out a label or a unit, never add or lack a value."""

import re
from collections.abc import Sequence
from fractions import Fraction

from guerdon_services.math.arithmetic.values import Values
from guerdon_services.math.comparison.equations import known_equal, meet, same_equation, solved, solves
from guerdon_services.math.comparison.realsets import same_sets
from guerdon_services.math.comparison.singles import same_single
from guerdon_services.math.decision import UnreadableReference
from guerdon_services.math.notation.tree import (
    Symbol,
    substitute,
    symbols,
)
from guerdon_services.math.reading.relations import MIRRORED, is_denial
from guerdon_services.math.reading.shapes import (
    Labelled,
    Many,
    Matrix,
    Ordered,
    Quantity,
    Relation,
    Restricted,
    Shape,
    Without,
    Words,
    is_interval,
    is_listed,
)

#: Arguments that can have another name: variables, and figures, whose corners are named in any order.
_RENAMED = re.compile(r"(?:\\[a-z]+\s*)?(?:[a-z]\w*|[A-Z]{2}\w*)|\\[a-z]+")
#: Items that are compared each with each; longer lists must agree item by item, or be plain numbers.
_MAX_PAIRED = 40
_UNINDEXED = re.compile(r"_\d+$")


class Comparison:
    """Compares shapes by the values of their expressions."""

    def __init__(self, values: Values) -> None:
        self.values = values

    def answers(self, answer: Shape, gold: Shape) -> bool:
        """Whether the answer is the reference; of one value alone, the braces of a set say nothing.

        Raises:
            UnreadableReference: the reference, or the part of it that decides, cannot be read.
        """
        return self.same(_alone(answer), _alone(gold))

    def same(self, answer: Shape, gold: Shape) -> bool:
        """Whether the answer is the reference.

        Raises:
            UnreadableReference: the reference, or the part of it that decides, cannot be read.
        """
        if isinstance(gold, Labelled):
            return self._labelled(answer, gold)
        if isinstance(answer, Labelled):
            if isinstance(gold, Relation):
                return answer.relation is not None and same_equation(self.values, answer.relation, gold)
            return self.same(answer.value, gold)
        if isinstance(answer, Without) and isinstance(gold, Without) and _of_others(answer, gold):
            return False
        found = same_sets(self.values, answer, gold)
        if found is not None:
            return found
        if isinstance(gold, Relation) or isinstance(answer, Relation):
            return self._relation(answer, gold)
        if isinstance(gold, Matrix) or isinstance(answer, Matrix):
            return self._matrix(answer, gold)
        if isinstance(gold, Without | Restricted) or isinstance(answer, Without | Restricted):
            return self._without(answer, gold)
        if isinstance(gold, Many | Ordered) or isinstance(answer, Many | Ordered):
            return self._collection(answer, gold)
        return same_single(self.values, answer, gold)

    # Relations

    def _labelled(self, answer: Shape, gold: Labelled) -> bool:
        if isinstance(answer, Labelled):
            value = self._renamed(answer, gold)
            if value is not None:
                return self.same(value, gold.value)
            return same_equation(self.values, answer.relation, gold.relation)
        if isinstance(answer, Relation):
            if same_equation(self.values, answer, gold.relation):
                return True
            # "a + b = 3" may stand for S = 3, but "x + 1 = 3" says something else of x than x = 3 does.
            return not _mentions(answer, gold.label) and self._relation(answer, gold.value)
        return self.same(answer, gold.value)

    @staticmethod
    def _renamed(answer: Labelled, gold: Labelled) -> Shape | None:
        """The answer's value in the reference's variables, when both label the same thing."""
        if answer.label.startswith("(") or gold.label.startswith("("):
            return _in_order_of(answer, gold.label)
        if answer.label != gold.label and (_has_condition(answer) or _has_condition(gold)):
            return None
        name, wanted = answer.label.partition("(")[0], gold.label.partition("(")[0]
        if answer.label == gold.label or (
            _UNINDEXED.sub("", answer.label) == _UNINDEXED.sub("", gold.label)
            and (answer.label in gold.label or gold.label in answer.label)
        ):
            return answer.value
        if (
            name == wanted
            and len(answer.arguments) == len(gold.arguments)
            and isinstance(answer.value, Quantity)
        ):
            node = answer.value.node
            for old, new in zip(answer.arguments, gold.arguments, strict=True):
                node = substitute(node, old, Symbol(new))
            return Quantity(node)
        if (
            name == wanted
            or (answer.label == "y" and gold.arguments)
            or (gold.label == "y" and answer.arguments)
        ):
            return answer.value
        return None

    def _relation(self, answer: Shape, gold: Shape) -> bool:
        """At least one side is a relation that is neither an interval nor a labelled value."""
        if isinstance(answer, Relation) and isinstance(gold, Relation):
            return self._same_relation(answer, gold)
        if isinstance(gold, Relation):
            found = solved(self.values, gold)
            if found is not None and isinstance(answer, Ordered):
                return self.same(answer, found)
            if len(gold.parts) > 2 and set(gold.signs) == {"="} and isinstance(answer, Quantity):
                return self.same(answer, gold.parts[-1])
            return isinstance(answer, Quantity) and solves(self.values, answer.node, gold)
        if isinstance(answer, Relation):
            found = solved(self.values, answer)
            if found is not None:
                return self.same(found, gold)
            if set(answer.signs) == {"="}:
                # "3 * 4 = 12": every side that is a number must agree with the last one, or the answer hedges.
                *sides, last = answer.parts
                return all(_is_name(side) or self._agree(side, last) for side in sides) and self.same(
                    last, gold
                )
        return False

    def _same_relation(self, answer: Relation, gold: Relation) -> bool:
        for parts, signs in ((answer.parts, answer.signs), _reversed(answer)):
            if (
                signs == gold.signs
                and len(parts) == len(gold.parts)
                and all(map(self._same_side, parts, gold.parts))
            ):
                return True
        return same_equation(self.values, answer, gold)

    def _same_side(self, answer: Shape, gold: Shape) -> bool:
        if isinstance(answer, Quantity) and isinstance(gold, Quantity):
            return known_equal(self.values, answer.node, gold.node)
        return self.same(answer, gold)

    # Matrices, sets, tuples

    def _matrix(self, answer: Shape, gold: Shape) -> bool:
        given, wanted = _rows(answer), _rows(gold)
        if given and wanted and isinstance(gold, Ordered) is not isinstance(answer, Ordered):
            given, wanted = _as_column(given), _as_column(wanted)
        if given is None or wanted is None or [len(row) for row in given] != [len(row) for row in wanted]:
            return False
        return all(
            self.same(cell, expected)
            for row, expected_row in zip(given, wanted, strict=True)
            for cell, expected in zip(row, expected_row, strict=True)
        )

    def _without(self, answer: Shape, gold: Shape) -> bool:
        """Sets that are no known sets of real numbers."""
        match answer, gold:
            case Without(), Without():
                return self.same(answer.whole, gold.whole) and self.same(answer.removed, gold.removed)
            case Restricted(), Restricted():
                return answer.domain == gold.domain and self.same(answer.whole, gold.whole)
            case _:
                return False

    def _collection(self, answer: Shape, gold: Shape) -> bool:
        if isinstance(gold, Many) and isinstance(answer, Many):
            if {answer.kind, gold.kind} == {"and", "or"} and _is_statement(gold):
                return False
            return self._unordered(_flat(answer), _flat(gold), distinct="set" in (answer.kind, gold.kind))
        if isinstance(gold, Ordered) and isinstance(answer, Ordered):
            brackets = (answer.left, answer.right), (gold.left, gold.right)
            same_kind = len(gold.items) != 2 or brackets[0] == brackets[1]
            if answer.variable and gold.variable and answer.variable != gold.variable:
                return False
            return same_kind and self._in_order(answer.items, gold.items)
        for many, ordered in ((answer, gold), (gold, answer)):
            if isinstance(many, Many) and isinstance(ordered, Ordered):
                return self._list_or_tuple(many, ordered, answered=many is answer)
        return self._unread(gold)

    def _list_or_tuple(self, many: Many, ordered: Ordered, *, answered: bool) -> bool:
        """A bare list may be a tuple without its brackets, or two conditions whose meet is an interval."""
        items = many.items
        if many.kind in ("list", "and") and len(items) == 2 and is_interval(ordered):
            one, other = items
            if (
                isinstance(one, Ordered)
                and isinstance(other, Ordered)
                and is_interval(one)
                and is_interval(other)
            ):
                common = meet(one, other)
                return common is not None and self.same(common, ordered)
        if not is_listed(many):
            return False
        if all(isinstance(item, Labelled) for item in items):
            items = tuple(sorted(items, key=lambda item: item.label if isinstance(item, Labelled) else ""))
        return self._in_order(items, ordered.items) if answered else self._in_order(ordered.items, items)

    def _in_order(self, answer: Sequence[Shape], gold: Sequence[Shape]) -> bool:
        return len(answer) == len(gold) and all(map(self.same, answer, gold))

    def _unordered(self, answer: Sequence[Shape], gold: Sequence[Shape], *, distinct: bool) -> bool:
        """The same values in any order."""
        if distinct or any(
            isinstance(item, Ordered) for item in gold
        ):  # a tuple named twice is no other answer
            answer, gold = self._distinct(answer), self._distinct(gold)
        if len(answer) != len(gold):
            return any(map(self._unread, gold))
        if len(gold) > _MAX_PAIRED:
            in_size = sorted(answer, key=self._by_value), sorted(gold, key=self._by_value)
            return self._in_order(answer, gold) or self._in_order(*in_size)
        if _is_assignment(gold) and not any(isinstance(item, Labelled) for item in answer):
            return self._in_order(answer, gold)
        left, missing = _rest(answer, gold)
        for wanted in missing:
            found = next((index for index, item in enumerate(left) if self._same_item(item, wanted)), None)
            if found is None:
                return False
            del left[found]
        return True

    def _agree(self, one: Shape, other: Shape) -> bool:
        """Whether two parts of one side are the same; what cannot be read there is no fault of the reference."""
        try:
            return self.same(one, other)
        except UnreadableReference:
            return False

    def _same_item(self, answer: Shape, gold: Shape) -> bool:
        """Of a list; a condition there is one on its variable."""
        if isinstance(answer, Ordered) and isinstance(gold, Ordered) and answer.variable and gold.variable:
            return answer.variable == gold.variable and self.same(answer, gold)
        return self.same(answer, gold)

    def _by_value(self, shape: Shape) -> tuple[Fraction, str]:
        """Orders long lists: rational values first by size, all else by spelling."""
        value = self.values.rational(shape.node) if isinstance(shape, Quantity) else None
        return (Fraction(0), repr(shape)) if value is None else (value, "")

    def _distinct(self, items: Sequence[Shape]) -> list[Shape]:
        kept: list[Shape] = []
        for item in items:
            if len(kept) > _MAX_PAIRED or not any(self._agree(item, other) for other in kept):
                kept.append(item)
        return kept

    def _unread(self, gold: Shape) -> bool:
        """False; a reference that cannot be read is at fault itself."""
        if isinstance(gold, Words) and gold.unread:
            raise UnreadableReference(f"cannot be read: {gold.text[:80]!r}")
        return False


def _reversed(relation: Relation) -> tuple[tuple[Shape, ...], tuple[str, ...]]:
    return relation.parts[::-1], tuple(MIRRORED.get(sign, "") for sign in reversed(relation.signs))


def _is_name(side: Shape) -> bool:
    """Whether a side of a chain only names what the others are the value of."""
    if isinstance(side, Words):
        return not is_denial(side.text)
    return not isinstance(side, Quantity) or bool(symbols(side.node))


def _of_others(answer: Without, gold: Without) -> bool:
    """y != 0 beside x != 0."""
    return bool(answer.variable and gold.variable) and answer.variable != gold.variable


def _has_condition(labelled: Labelled) -> bool:
    """Whether the label says in its parentheses what it is of: P(X > 1), E(X^2), P(A), f(2), unlike f(x)."""
    named = labelled.arguments and all(map(_RENAMED.fullmatch, labelled.arguments))
    return "(" in labelled.label and not named


def _in_order_of(answer: Labelled, label: str) -> Shape | None:
    """The value of (y, x) = (3, 2) in the order of (x, y)."""
    given, wanted = answer.label.strip("()").split(","), label.strip("()").split(",")
    if given == wanted:
        return answer.value
    if sorted(given) != sorted(wanted) or not isinstance(answer.value, Ordered):
        return None
    if len(answer.value.items) != len(given) or len(set(given)) != len(given):
        return None
    items = dict(zip(given, answer.value.items, strict=True))
    return Ordered(answer.value.left, answer.value.right, tuple(items[name] for name in wanted))


def _mentions(relation: Relation, label: str) -> bool:
    return any({label, *label} & symbols(part.node) for part in relation.parts if isinstance(part, Quantity))


def _rows(shape: Shape) -> tuple[tuple[Shape, ...], ...] | None:
    """Rows of a matrix; a tuple counts as a column, a list of lists as rows."""
    if isinstance(shape, Matrix):
        return shape.rows
    if isinstance(shape, Ordered) and (shape.left, shape.right) in (("(", ")"), ("[", "]")):
        rows = tuple(item.items for item in shape.items if isinstance(item, Ordered))
        return rows if len(rows) == len(shape.items) else tuple((item,) for item in shape.items)
    return None


def _as_column(rows: tuple[tuple[Shape, ...], ...]) -> tuple[tuple[Shape, ...], ...]:
    """A row vector as a column; anything else as it is."""
    return tuple((cell,) for cell in rows[0]) if len(rows) == 1 else rows


def _flat(many: Many) -> tuple[Shape, ...]:
    """The items, with the lists inside (double signs, unions) taken apart."""
    flat: list[Shape] = []
    for item in many.items:
        inner = item.value if isinstance(item, Labelled) else item
        opened = isinstance(inner, Many) and (inner.kind != "set" or many.kind == "union")
        flat.extend(_flat(inner) if opened and isinstance(inner, Many) else (item,))
    return tuple(flat)


def _alone(shape: Shape) -> Shape:
    alone = isinstance(shape, Many) and len(shape.items) == 1 and not isinstance(shape.items[0], Words)
    return shape.items[0] if alone and isinstance(shape, Many) else shape


def _is_statement(many: Many) -> bool:
    """Letters alone, of which "and" and "or" say different things."""
    return all(isinstance(item, Quantity) and isinstance(item.node, Symbol) for item in many.items)


def _is_assignment(items: Sequence[Shape]) -> bool:
    """Whether each item gives a value to another letter: x = 1, y = 2, but not x_1 = 1, x_2 = 2."""
    letters = [_UNINDEXED.sub("", item.label) for item in items if isinstance(item, Labelled)]
    return len(letters) == len(items) > 1 and len(set(letters)) == len(letters)


def _rest(answer: Sequence[Shape], gold: Sequence[Shape]) -> tuple[list[Shape], list[Shape]]:
    """What is left of two lists without the items that are read alike in both."""
    left, missing = list(answer), list[Shape]()
    for wanted in gold:
        if wanted in left:
            left.remove(wanted)
        else:
            missing.append(wanted)
    return left, missing
