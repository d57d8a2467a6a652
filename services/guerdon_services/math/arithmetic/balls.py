"""Identities tested by their values in ball arithmetic: exact bounds on real and complex numbers."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from enum import Enum
from fractions import Fraction
from typing import NamedTuple

from flint import arb, ctx

from guerdon_services.math.arithmetic.ball_functions import Ball, NotFinite, Unknown, magnitude, real
from guerdon_services.math.arithmetic.ball_points import Point, beyond, point
from guerdon_services.math.arithmetic.ball_values import Evaluator
from guerdon_services.math.arithmetic.exact import Budget, Outside
from guerdon_services.math.arithmetic.survey import inscription, survey
from guerdon_services.math.notation.tree import Node

#: Bits of the first evaluation, of the second, and the most that any may take.
_BITS, _MORE_BITS, _MAX_BITS = 256, 1024, 32_768
_ROUNDS = 4
#: Bits that arithmetic may lose.
_LOST_BITS = 40
#: A decimal is told when it is known to this many bits.
_DECIMAL_BITS = 90
_MAX_EXPONENT = 20_000
#: Points at which all expressions are compared, at which some are, and the number of comparisons that must work.
_POINTS, _WHOLE_POINTS, _MORE_POINTS, _COMPARED = 6, 10, 16, 3
#: Steps to find about where an expression may follow another formula.
_NEAR_STEPS = 500

#: Expressions of more nodes are compared at no more points than must be.
_MANY_NODES = 1_000
_MAX_NODES = 50_000
#: Steps of one answer.
_STEPS = 60_000

#: The precision belongs to the process.
_LOCK = threading.Lock()


class _Outcome(Enum):
    """What a comparison of two values found."""

    EQUAL = 1
    DIFFERENT = 2
    #: Not finite.
    NONE = 3
    #: Neither seen to be equal nor to be different.
    OPEN = 4


class _Pair(NamedTuple):
    """Values of two expressions at a point."""

    left: Ball
    right: Ball
    evaluator: Evaluator


def same(left: Node, right: Node, budget: Budget | None = None) -> bool | None:
    """Whether two expressions have the same values; None where that cannot be told.

    Variables are real numbers. Where a side leaves the real numbers on the way to its value at a point, that point
    counts only if there are no others.
    """
    seen = survey((left, right), _MAX_NODES)
    budget = budget or Budget(_STEPS)
    if seen.nodes > _MAX_NODES:
        return None
    if not seen.names:
        return _ANSWERS.get(_compare(left, right, _no_variables, budget)[0])
    wanted = _COMPARED if seen.nodes > _MANY_NODES else _WHOLE_POINTS if seen.whole else _POINTS
    seed = inscription(left, right)
    trial = _Trial(left, right, budget, seed)
    for index in range(_MORE_POINTS):
        if index >= wanted and trial.equal >= _COMPARED:
            break
        if trial.ended_at(point(index, seen.whole, seed)):
            return trial.verdict
    for place, far in beyond((left, right), seen.names, seen.whole, _near):
        if trial.ended_at(place, far):
            return trial.verdict
    return trial.last_verdict()


class _Trial:
    """Compares two expressions at one point after the other."""

    def __init__(self, left: Node, right: Node, budget: Budget, seed: str) -> None:
        #: Points where both are real and equal.
        self.equal = 0
        #: What is known at the end.
        self.verdict: bool | None = None
        self._sides, self._budget, self._seed = (left, right), budget, seed
        self._open = 0
        self._beyond: list[_Outcome] = []

    def ended_at(self, at: Point, far: bool = False) -> bool:
        """Whether the verdict is known after one more point. Far away, values may be too large to be compared."""
        outcome, pair = _compare(*self._sides, at, self._budget, self._seed)
        if outcome is _Outcome.OPEN:
            self._open += not far or self._budget.steps < 0
            return self._open > 1
        if pair is not None and pair.evaluator.left_reals:
            self._beyond.append(outcome)
        elif outcome is _Outcome.DIFFERENT:
            self.verdict = False
            return True
        else:
            self.equal += outcome is _Outcome.EQUAL
        return False

    def last_verdict(self) -> bool | None:
        """What all points together say."""
        if self._open:
            return None
        if self.equal >= _COMPARED:
            return True
        if _Outcome.DIFFERENT in self._beyond:
            return False
        return True if self._beyond.count(_Outcome.EQUAL) >= _COMPARED else None


def _near(node: Node) -> Fraction | None:
    """About the value of a real constant."""
    with _precision(_BITS):
        try:
            value = real(Evaluator(_no_variables, Budget(_NEAR_STEPS)).value(node))
        except Outside:
            return None
    size = magnitude(value)
    return _fraction(value.mid()) if value.is_finite() and size is not None and abs(size) < _BITS else None


def ratio_sign(left: Node, right: Node, budget: Budget | None = None) -> int | None:
    """The sign of the real constant k with left = k * right; 0 if there is none, None where that cannot be told."""
    seen = survey((left, right), _MAX_NODES)
    budget = budget or Budget(_STEPS)
    if seen.nodes > _MAX_NODES:
        return None
    seed = inscription(left, right)
    quotients: list[arb] = []
    with _precision(2 * _BITS):
        for index in range(_MORE_POINTS):
            evaluator = Evaluator(point(index, seen.whole, seed), budget, seed)
            try:
                above, below = map(real, evaluator.pair(left, right))
            except Unknown:
                continue
            except Outside:
                return None
            if evaluator.left_reals or above.contains(0) or below.contains(0):
                continue
            quotients.append(above / below)
            outcome, _ = _difference(quotients[0] - quotients[-1], evaluator)
            if outcome is not _Outcome.EQUAL:
                return 0 if outcome is _Outcome.DIFFERENT else None
            if len(quotients) > _COMPARED or not seen.names:
                return 1 if quotients[0] > 0 else -1
    return None


def compare(left: Node, right: Node, budget: Budget | None = None) -> int | None:
    """-1 if a real constant is below another one, 1 if it is above, 0 if they are equal; None where that is open."""
    outcome, pair = _compare(left, right, _no_variables, budget or Budget(_STEPS))
    if outcome is _Outcome.EQUAL:
        return 0
    if outcome is not _Outcome.DIFFERENT or pair is None or pair.evaluator.unknown:
        return None
    if not isinstance(pair.left, arb) or not isinstance(pair.right, arb):
        return None
    return -1 if pair.left < pair.right else 1


def decimal(node: Node, budget: Budget | None = None) -> tuple[Fraction, Fraction] | None:
    """The middle and the radius of an interval around the value of a real constant; None where there is none."""
    budget = budget or Budget(_STEPS)
    for bits in (_BITS, _MORE_BITS):
        with _precision(bits):
            evaluator = Evaluator(_no_variables, budget)
            try:
                value = real(evaluator.value(node))
            except Outside:
                continue
        if evaluator.unknown or evaluator.opaque or not value.is_finite():
            return None
        found = _fractions(value)
        if found is not None:
            return found
    return None


def _fractions(value: arb) -> tuple[Fraction, Fraction] | None:
    middle, radius = value.mid(), value.rad()
    size, error = magnitude(middle) or 0, magnitude(radius)
    # What is very near to 0 is known to so many places instead.
    if error is not None and error > max(size, -_DECIMAL_BITS) - _DECIMAL_BITS:
        return None
    if abs(size) > _MAX_EXPONENT or abs(error or 0) > _MAX_EXPONENT:
        return None
    return _fraction(middle), _fraction(radius)


def _fraction(value: arb) -> Fraction:
    mantissa, exponent = value.man_exp()
    return int(mantissa) * Fraction(2) ** int(exponent)


@contextmanager
def _precision(bits: int) -> Generator[None]:
    with _LOCK:
        before = ctx.prec
        ctx.prec = bits
        try:
            yield
        finally:
            ctx.prec = before


def _compare(
    left: Node, right: Node, at: Point, budget: Budget, seed: str = ""
) -> tuple[_Outcome, _Pair | None]:
    """Compares two values with as many bits as that takes."""
    bits = _BITS
    for _ in range(_ROUNDS):
        with _precision(bits):
            outcome, pair, missing = _attempt(left, right, Evaluator(at, budget, seed))
        if outcome is not _Outcome.OPEN or not 0 < missing <= _MAX_BITS - bits:
            return outcome, pair
        bits += missing
    return _Outcome.OPEN, None


def _attempt(left: Node, right: Node, evaluator: Evaluator) -> tuple[_Outcome, _Pair | None, int]:
    """Compares two values; the last number is that of the bits that it takes to tell."""
    try:
        pair = _Pair(*evaluator.pair(left, right), evaluator)
    except NotFinite:
        return _Outcome.NONE, None, 0
    except Unknown:
        return _Outcome.OPEN, None, max(_MORE_BITS, 3 * evaluator.size) - ctx.prec
    except Outside:
        return _Outcome.OPEN, None, 0
    outcome, missing = _difference(pair.left - pair.right, evaluator)
    return outcome, pair, missing


def _difference(value: Ball, evaluator: Evaluator) -> tuple[_Outcome, int]:
    """What a difference says, and how many bits it lacks to say it."""
    if not value.is_finite():
        return _Outcome.NONE, 0
    if not value.contains(0):
        return (_Outcome.OPEN if evaluator.opaque else _Outcome.DIFFERENT), 0
    missing = evaluator.lacking(value)
    return (_Outcome.EQUAL, 0) if missing < 0 else (_Outcome.OPEN, missing + _LOST_BITS)


def _no_variables(_: str) -> arb:
    raise Unknown


_ANSWERS = {_Outcome.EQUAL: True, _Outcome.DIFFERENT: False}
