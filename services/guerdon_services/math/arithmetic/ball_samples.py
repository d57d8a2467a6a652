"""Values of the variable of a sum, an integral or a limit that show what it is made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from flint import acb, arb

from guerdon_services.math.arithmetic.ball_functions import Ball, Unknown, integer
from guerdon_services.math.arithmetic.ball_points import around, draw, marks, multiples, number, switches
from guerdon_services.math.notation.tree import Node

#: A number, or 1 and -1 for the infinities.
End = Ball | int

#: Parts of a range that ends on both sides, and distances from the end of one that does not: first those for a body
#: of one formula, then those for one that may switch to another.
_PARTS = ("0.2113", "0.4729", "0.9613"), (
    "0.0071", "0.0712", "0.1419", "0.2837", "0.3531", "0.5501", "0.6317", "0.7022", "0.7771", "0.8417", "0.9173",
    "0.9931",
)  # fmt: skip
_DISTANCES = ("0.31", "1.7", "6.3"), ("0.017", "3.61", "10.9", "29.7", "97.3")
#: Distances of natural numbers from the first one, likewise; some more are drawn.
_STEPS = (0, 1, 2, 3, 5, 8), (4, 6, 7, 9, 10, 11, 12, 13, 22, 44, 60, 91)
_DRAWN = 2


@dataclass(frozen=True, slots=True)
class Scene:
    """What two expressions that are compared say of where to look: the same for both."""

    #: Whether a part may switch from one formula to another.
    switching: bool
    #: Numbers that such parts name, and natural ones to look at for their sake.
    marks: Sequence[Fraction]
    natural: Sequence[Fraction]
    #: What drawn numbers depend on.
    seed: str


def scene(sides: Sequence[Node], seed: str) -> Scene:
    """Where to look at what two expressions are made of."""
    parts = switches(*sides)
    marked = marks(parts, lambda _: None)
    return Scene(bool(parts), marked, multiples(marked, parts), seed)


def samples(kind: str, low: End, high: End, scene: Scene) -> list[arb]:
    """Values within the range of a variable; on both sides of a limit.

    Raises Unknown for ends that are not real.
    """
    if isinstance(low, acb) or isinstance(high, acb):
        raise Unknown
    if kind in ("sum", "prod"):
        return _natural(low, high, scene)
    distances = [number(Fraction(text)) for text in _DISTANCES[0] + scene.switching * _DISTANCES[1]]
    near = list(map(number, around(scene.marks)))
    if kind == "lim":
        if isinstance(low, int):
            return _beyond(arb(0), low, distances, near)
        return [low + sign * distance / 16 for distance in distances for sign in (1, -1)]
    if isinstance(low, arb) and isinstance(high, arb):
        parts = [number(Fraction(text)) for text in _PARTS[0] + scene.switching * _PARTS[1]]
        # |x| changes at 0.
        near += [end / 8 for end in (low, high)]
        inside = [value for value in near if (value - low) * (high - value) > 0]
        return [low + (high - low) * part for part in parts] + inside
    if isinstance(low, arb) and isinstance(high, int):
        return _beyond(low, high, distances, near)
    if isinstance(high, arb) and isinstance(low, int):
        return _beyond(high, low, distances, near)
    return _beyond(arb(0), 1, distances, near) + _beyond(arb(0), -1, distances, near)


def _beyond(end: arb, direction: int, distances: Sequence[arb], near: Sequence[arb]) -> list[arb]:
    return [end + direction * distance for distance in distances] + [
        value for value in near if (value - end) * direction > 0
    ]


def _natural(low: arb | int, high: arb | int, scene: Scene) -> list[arb]:
    """Whole numbers in a range; its ends need not be known to be whole."""
    first, last = (None if isinstance(end, int) else integer(end) for end in (low, high))
    drawn = [13 + draw(f"step {index}{scene.seed}") % 97 for index in range(_DRAWN)]
    distances = [*_STEPS[0], *(scene.switching * _STEPS[1]), *drawn]
    if first is not None:
        found = [first + distance for distance in distances]
    elif last is not None:
        found = [last - distance for distance in distances]
    else:
        found = [sign * distance for distance in distances for sign in (1, -1)]
    found += [sign * int(mark) for mark in (1, *scene.natural) for sign in (1, -1)]
    return [
        arb(value)
        for value in dict.fromkeys(found)
        if (first is None or value >= first) and (last is None or value <= last)
    ]
