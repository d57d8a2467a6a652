"""What is known of the values of expressions: the cheapest arithmetic that can tell is asked first."""

from fractions import Fraction

from guerdon_services.math import exact, residues
from guerdon_services.math.decision import Method
from guerdon_services.math.tree import (
    Add,
    Constant,
    Mul,
    Node,
    Number,
    Symbol,
    substitute,
    symbols,
    walk,
)

_INFINITY = Constant("infinity")
#: Equally spaced values of a variable; |x| is not linear on both.
_SPACED = (
    (Fraction(-29, 7), Fraction(13, 7), Fraction(55, 7)),
    (Fraction(3, 11), Fraction(9, 22), Fraction(6, 11)),
)


class NeedsBalls(Exception):
    """Only ball arithmetic can tell, and it is switched off."""


class Values:
    """Answers questions about values. All answers are the same in every process.

    With `balls`, python-flint is imported when it is first needed; without, NeedsBalls is raised in its place.
    """

    def __init__(self, balls: bool) -> None:
        self._balls = balls
        #: The strongest arithmetic that was asked so far.
        self.method: Method = "rational"

    def equal(self, left: Node, right: Node) -> bool | None:
        """Whether two expressions have the same value; None where that cannot be told. Raises NeedsBalls."""
        if left == right:
            return True
        ends = infinite(left), infinite(right)
        if ends[0] or ends[1]:
            return ends[0] == ends[1] if all(end is not None for end in ends) else None
        values = exact.rational(left), exact.rational(right)
        if values[0] is not None and values[1] is not None:
            return values[0] == values[1]
        if self.method == "rational":
            self.method = "symbolic"
        found = residues.same(left, right)
        if found is not None:
            return found
        self._need_balls()
        from guerdon_services.math import balls

        return balls.same(left, right)

    def ratio_sign(self, left: Node, right: Node) -> int:
        """The sign of the real constant k with left = k * right; 0 where none is known. Raises NeedsBalls."""
        if left == right:
            return 1
        if infinite(left) != 0 or infinite(right) != 0:
            return 0
        if self.method == "rational":
            self.method = "symbolic"
        factor = residues.ratio(left, right)
        if factor is not None:
            return (factor > 0) - (factor < 0)
        self._need_balls()
        from guerdon_services.math import balls

        return balls.ratio_sign(left, right) or 0

    def decimal(self, node: Node) -> tuple[Fraction, Fraction] | None:
        """The middle and the radius of an interval around a real constant; None where it has none that is short.

        Raises NeedsBalls.
        """
        value = exact.rational(node)
        if value is not None:
            return value, Fraction(0)
        if infinite(node) != 0 or symbols(node):
            return None
        self._need_balls()
        from guerdon_services.math import balls

        return balls.decimal(node)

    def rational(self, node: Node) -> Fraction | None:
        """The exact value of a rational constant; None where there is none that is short."""
        return exact.rational(node)

    def is_linear(self, node: Node, name: str) -> bool:
        """Whether an expression has the form a*x + b, a not 0, in a variable. Raises NeedsBalls."""
        if isinstance(node, Symbol):
            return node.name == name
        if name not in symbols(node) or infinite(node) != 0:
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
        if left == right:
            return 0
        ends = infinite(left), infinite(right)
        if ends[0] is None or ends[1] is None:
            return None
        if ends[0] or ends[1]:
            if symbols(left) or symbols(right):
                return None
            return (ends[0] > ends[1]) - (ends[0] < ends[1])
        values = exact.rational(left), exact.rational(right)
        if values[0] is not None and values[1] is not None:
            return (values[0] > values[1]) - (values[0] < values[1])
        if symbols(left) or symbols(right):
            return None
        if residues.same(left, right):
            return 0
        self._need_balls()
        from guerdon_services.math import balls

        return balls.compare(left, right)

    def _need_balls(self) -> None:
        if not self._balls:
            raise NeedsBalls
        self.method = "numeric"


def infinite(node: Node) -> int | None:
    """1 or -1 for an infinity, 0 for what has none in it, None for anything else with one."""
    if node == _INFINITY:
        return 1
    if isinstance(node, Mul) and node.factors[1:] == (_INFINITY,) and isinstance(node.factors[0], Number):
        sign = node.factors[0].value
        return (sign > 0) - (sign < 0) or None
    return None if any(part == _INFINITY for part in walk(node)) else 0
