"""What is known of the values of expressions: the cheapest arithmetic that can tell is asked first."""

from collections.abc import Generator
from contextlib import contextmanager
from fractions import Fraction

from guerdon_services.math.arithmetic import exact, radicals, residues
from guerdon_services.math.arithmetic.bounds import bounds
from guerdon_services.math.arithmetic.survey import endless, survey
from guerdon_services.math.decision import Method
from guerdon_services.math.notation.tree import (
    Add,
    Node,
    Number,
    Symbol,
    substitute,
)

_MAX_NODES = 50_000
#: Nodes of constants that are short.
_SHORT = 60
#: Steps of a part of an answer, of about a microsecond each.
_MODULAR_STEPS, _BALL_STEPS = 60_000, 60_000
#: Equally spaced values of a variable, far apart and near: |x - a| is not linear at both.
_SPACED = (
    (Fraction(-1_000_003, 7), Fraction(13, 7), Fraction(1_000_029, 7)),
    (Fraction(3, 11), Fraction(9, 22), Fraction(6, 11)),
)


class NeedsBalls(Exception):
    """Only ball arithmetic can tell, and it is switched off."""


class Values:
    """Answers questions about values. All answers are the same in every process.

    With `balls`, python-flint is imported when it is first needed; without, NeedsBalls is raised in its place.
    `steps` is what all answers together may take, in about microseconds; beyond, nothing can be told. Without it, each
    answer has as many as it may need.
    """

    def __init__(self, balls: bool, steps: int | None = None) -> None:
        self._balls = balls
        #: The strongest arithmetic that was asked so far.
        self.method: Method = "rational"
        self._steps = steps

    def equal(self, left: Node, right: Node) -> bool | None:
        """Whether two expressions have the same value; None where that cannot be told. Raises NeedsBalls."""
        if isinstance(left, Number) and isinstance(right, Number):
            return left.value == right.value
        if left is right:
            return True
        seen = survey((left, right), _MAX_NODES)
        if seen.nodes > _MAX_NODES:
            return None
        if left == right:
            return True
        if seen.infinite:
            ends = _extended(left), _extended(right)
            return ends[0] == ends[1] if all(end is not None for end in ends) else None
        if seen.bound or not (seen.names or seen.irrational):
            values = self._rationals(left, right)
            if values[0] is not None and values[1] is not None:
                return values[0] == values[1]
        self._asked("symbolic")
        if not seen.names and seen.nodes <= _SHORT:
            found = radicals.same(left, right)
            if found is not None:
                return found
        with self._budget(_MODULAR_STEPS) as budget:
            found = residues.same(left, right, budget)
        if found is not None:
            return found
        if not seen.names and seen.nodes <= _SHORT and _apart(left, right):
            return False
        self._need_balls()
        from guerdon_services.math.arithmetic import balls

        with self._budget(_BALL_STEPS) as budget:
            return balls.same(left, right, budget)

    def ratio_sign(self, left: Node, right: Node) -> int:
        """The sign of the real constant k with left = k * right; 0 where none is known. Raises NeedsBalls."""
        seen = survey((left, right), _MAX_NODES)
        if seen.nodes > _MAX_NODES or seen.infinite:
            return 0
        if left == right:
            return 1
        with self._budget(_MODULAR_STEPS) as budget:
            factor = residues.ratio(left, right, budget)
        self._asked("symbolic")
        if factor is not None:
            return (factor > 0) - (factor < 0)
        self._need_balls()
        from guerdon_services.math.arithmetic import balls

        with self._budget(_BALL_STEPS) as budget:
            return balls.ratio_sign(left, right, budget) or 0

    def decimal(self, node: Node) -> tuple[Fraction, Fraction] | None:
        """The middle and the radius of an interval around a real constant; None where it has none that is short.

        Raises NeedsBalls.
        """
        value = self.rational(node)
        if value is not None:
            return value, Fraction(0)
        seen = survey((node,), _MAX_NODES)
        if seen.nodes > _MAX_NODES or seen.infinite or seen.names:
            return None
        self._need_balls()
        from guerdon_services.math.arithmetic import balls

        with self._budget(_BALL_STEPS) as budget:
            return balls.decimal(node, budget)

    def rational(self, node: Node) -> Fraction | None:
        """The exact value of a rational constant; None where there is none that is short."""
        with self._budget(exact.MAX_STEPS) as budget:
            return exact.rational(node, budget)

    def is_linear(self, node: Node, name: str) -> bool:
        """Whether an expression has the form a*x + b, a not 0, in a variable. Raises NeedsBalls."""
        if isinstance(node, Symbol):
            return node.name == name
        seen = survey((node,), _MAX_NODES)
        if seen.nodes > _MAX_NODES or seen.infinite or name not in seen.names:
            return False
        for places in _SPACED:
            low, middle, high = (substitute(node, name, Number(place)) for place in places)
            if self.equal(low, middle) is not False:
                return False
            if not self.equal(Add((low, high)), Add((middle, middle))):
                return False
        return True

    def compare(self, left: Node, right: Node) -> int | None:
        """-1 if a real constant is below another one, 1 if above, 0 if equal; None where that cannot be told.

        Raises NeedsBalls.
        """
        seen = survey((left, right), _MAX_NODES)
        if seen.nodes > _MAX_NODES or seen.names:
            return None
        if left == right:
            return 0
        if seen.infinite:
            low, high = _extended(left), _extended(right)
            return None if low is None or high is None else (low > high) - (low < high)
        values = self._rationals(left, right)
        if values[0] is not None and values[1] is not None:
            return (values[0] > values[1]) - (values[0] < values[1])
        with self._budget(_MODULAR_STEPS) as budget:
            if residues.same(left, right, budget):
                return 0
        self._need_balls()
        from guerdon_services.math.arithmetic import balls

        with self._budget(_BALL_STEPS) as budget:
            return balls.compare(left, right, budget)

    def _rationals(self, left: Node, right: Node) -> tuple[Fraction | None, Fraction | None]:
        with self._budget(exact.MAX_STEPS) as budget:
            value = exact.rational(left, budget)
            return value, None if value is None else exact.rational(right, budget)

    @contextmanager
    def _budget(self, steps: int) -> Generator[exact.Budget]:
        """Steps for a part of an answer; what is taken from them is taken from those of all answers."""
        if self._steps is None:
            yield exact.Budget(steps)
            return
        granted = max(0, min(steps, self._steps))
        budget = exact.Budget(granted)
        try:
            yield budget
        finally:
            self._steps -= granted - max(0, budget.steps)

    def _asked(self, method: Method) -> None:
        if self.method != "numeric":
            self.method = method

    def _need_balls(self) -> None:
        if not self._balls:
            raise NeedsBalls
        self._asked("numeric")


def _apart(left: Node, right: Node) -> bool:
    """Whether rational bounds of two constants show that they differ."""
    one, other = bounds(left), bounds(right)
    return one is not None and other is not None and (one[1] < other[0] or other[1] < one[0])


def _extended(node: Node) -> int | None:
    """1 or -1 for an infinity, 0 for what has none in it, None for anything else with one."""
    return endless(node) or (None if survey((node,), _MAX_NODES).infinite else 0)
