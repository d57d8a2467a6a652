"""Measures in several units, and angles in degrees and minutes: 1 h 30 min, 5 ft 6 in, 45°30'."""

from fractions import Fraction
from itertools import pairwise

from guerdon_services.math.notation.lexer import Token
from guerdon_services.math.notation.numerals import number
from guerdon_services.math.notation.tree import Number
from guerdon_services.math.reading.shapes import Quantity, canonical
from guerdon_services.math.reading.units import factor, is_unit

#: Parts that such a measure may have, and tokens of a part.
_MOST_PARTS, _LONGEST_PART = 4, 4
_PARTS_OF_DEGREE = {"°": Fraction(1), r"\circ": Fraction(1), "'": Fraction(1, 60), "''": Fraction(1, 3600)}
#: What the parts of an angle are, from the largest one.
_DOWNWARDS = [Fraction(1), Fraction(1, 60), Fraction(1, 3600)]


def compound(tokens: list[Token]) -> Quantity | None:
    """The sum of such a measure in its first unit, or of such an angle in degrees; None for all else."""
    if (
        tokens[0].kind != "number"
        or len(tokens) < 4
        or len(tokens) > _MOST_PARTS * _LONGEST_PART
        or tokens[-1].kind == "number"
    ):
        return None
    parts = _parts(tokens)
    if len(parts) < 2:
        return None
    measured = _angle(parts) or _measure(parts)
    if measured and any(token.text == "," for token in tokens) and not _is_time(measured.unit):
        return None  # 2 m, 30 cm are rather two lengths
    return measured


def _is_time(unit: str) -> bool:
    known = factor(unit)
    return known is not None and known[0] == "time^1"


def _parts(tokens: list[Token]) -> list[tuple[Fraction, list[Token]]]:
    """Each numeral with what follows it; none when not all are positive numerals."""
    parts: list[tuple[Fraction, list[Token]]] = []
    for token in tokens:
        if token.kind == "number":
            node = number(token.text)
            if not isinstance(node, Number):
                return []
            parts.append((node.value, []))
        elif token.text not in ("and", ","):
            parts[-1][1].append(token)
        elif not parts[-1][1]:
            return []
    return parts


def _angle(parts: list[tuple[Fraction, list[Token]]]) -> Quantity | None:
    """Degrees, minutes, seconds."""
    marks = ["".join(token.text for token in signs if token.text not in "^{}") for _, signs in parts]
    if [_PARTS_OF_DEGREE.get(mark) for mark in marks] != _DOWNWARDS[: len(marks)]:
        return None
    total = sum((value * size for (value, _), size in zip(parts, _DOWNWARDS, strict=False)), Fraction(0))
    return Quantity(Number(total), degrees=True)


def _measure(parts: list[tuple[Fraction, list[Token]]]) -> Quantity | None:
    """Known units of one dimension, each smaller than the one before."""
    if not all(signs and all(map(is_unit_name, signs)) for _, signs in parts):
        return None
    names = [canonical(signs).replace(r"\text", "").strip("{}") for _, signs in parts]
    found = [factor(name) for name in names]
    known = [each for each in found if each is not None]
    if len(known) != len(parts) or len({dimension for dimension, _ in known}) > 1:
        return None
    sizes = [size for _, size in known]
    if any(small >= large for large, small in pairwise(sizes)):
        return None
    total = sum((value * size for (value, _), size in zip(parts, sizes, strict=True)), Fraction(0))
    return Quantity(Number(total / sizes[0]), names[0])


def is_unit_name(token: Token) -> bool:
    """Whether a token names a unit; a letter alone does beside another unit: 1 h 30 min."""
    return is_unit(token) or (token.kind == "word" and token.text in ("h", "m", "s"))
