"""Compares what two texts mean under every way in which notation lets them be read."""

import re
from typing import NamedTuple

from guerdon_services.math.arithmetic.values import Values
from guerdon_services.math.comparison.compare import Comparison
from guerdon_services.math.comparison.reasons import why_not
from guerdon_services.math.decision import Decision, UnreadableReference
from guerdon_services.math.notation.expression import READINGS, Reading
from guerdon_services.math.notation.lexer import Token, Unreadable, lex
from guerdon_services.math.notation.variants import as_one_number, with_decimal_point
from guerdon_services.math.reading.reader import Reader, unwrapped
from guerdon_services.math.reading.shapes import Quantity, Shape, canonical, literal
from guerdon_services.math.reading.units import split_unit

#: Tokens that a unit in letters may have.
_LONGEST_UNIT = 12


class Side(NamedTuple):
    """An answer or a reference: its text, its tokens, these as text again, and whether they are words."""

    text: str
    tokens: list[Token]
    spelled: str
    in_words: bool


def decide_meaning(answer: Side, reference: Side, values: Values) -> Decision:
    """Whether two texts mean the same.

    Raises:
        UnreadableReference: the reference cannot be read.
        NeedsBalls: only ball arithmetic could tell, and `values` has none.
    """
    return _Pair(answer, reference, values).decision()


def tokens_of(text: str, *, decimal_comma: bool = False, thousands: bool = True) -> list[Token]:
    """The tokens of an answer without what surrounds it; what is all in a text command is read like any other.

    Raises:
        Unreadable: there are too many.
    """
    tokens = unwrapped(lex(text, decimal_comma=decimal_comma, thousands=thousands))
    if len(tokens) == 1 and tokens[0].kind == "text":
        tokens = unwrapped(lex(tokens[0].text, decimal_comma=decimal_comma, thousands=thousands)) or tokens
    return tokens


class _Pair:
    """One answer and one reference under all the ways in which they may be read."""

    def __init__(self, answer: Side, reference: Side, values: Values) -> None:
        self._answer, self._given = answer.text, answer.tokens
        self._reference, self._gold = reference.text, reference.tokens
        self._values = values
        self._shapes: dict[tuple[int, Reading], Shape | Unreadable] = {}

    def decision(self) -> Decision:
        same = any(self._same(self._given, self._gold, reading) for reading in self._readings()) or any(
            self._same(given, gold, READINGS[0]) for given, gold in self._other_numbers()
        )
        return Decision(same, self._values.method, "equal values" if same else self._why_not())

    def _why_not(self) -> str:
        given, gold = self._read(self._given, READINGS[0]), self._read(self._gold, READINGS[0])
        if isinstance(given, Unreadable) or isinstance(gold, Unreadable):
            return f"the answer cannot be read: {given}"
        return why_not(given, gold)

    def _readings(self) -> list[Reading]:
        """The readings that can differ for these texts."""
        marks = {token.text for token in (*self._given, *self._gold)}
        return [
            reading
            for reading in READINGS
            if (reading.tight or "/" in marks) and (not reading.decadic or "log" in marks)
        ]

    def _same(self, given: list[Token], gold: list[Token], reading: Reading) -> bool:
        wanted = self._read(gold, reading)
        if isinstance(wanted, Unreadable):
            raise UnreadableReference(f"cannot be read: {wanted}") from wanted
        shape = self._read(given, reading)
        return not isinstance(shape, Unreadable) and Comparison(self._values).answers(shape, wanted)

    def _read(self, tokens: list[Token], reading: Reading) -> Shape | Unreadable:
        """The shape of one side, read once."""
        key = (id(tokens), reading)
        if key not in self._shapes:
            try:
                self._shapes[key] = Reader(reading).read(tokens)
            except Unreadable as problem:
                self._shapes[key] = problem
        return self._shapes[key]

    def _other_numbers(self) -> list[tuple[list[Token], list[Token]]]:
        """Read otherwise: 1000,99 beside a decimal, 100,200 beside a list, C(10, 3), a unit in letters."""
        pairs: list[tuple[list[Token], list[Token]]] = []
        if self._is_decimal(self._gold) and "," in self._answer:
            pairs.append((tokens_of(with_decimal_point(self._answer), decimal_comma=True), self._gold))
        if self._is_decimal(self._given) and "," in self._reference:
            pairs.append((self._given, tokens_of(with_decimal_point(self._reference), decimal_comma=True)))
        if any(token.grouped for token in self._gold) and "," in self._answer:
            pairs.append((self._given, tokens_of(self._reference, thousands=False)))
        if any(token.grouped for token in self._given) and "," in self._reference:
            pairs.append((tokens_of(self._answer, thousands=False), self._gold))
        answer, reference = as_one_number(self._answer), as_one_number(self._reference)
        if answer:
            pairs.append((tokens_of(answer), self._gold))
        if reference:
            pairs.append((self._given, tokens_of(reference)))
        unit, wanted_unit = _units_of(self._given), _units_of(self._gold)
        if wanted_unit and not unit:
            pairs.append((_without_unit(self._given, wanted_unit), self._gold))
        if unit and not wanted_unit:
            pairs.append((self._given, _without_unit(self._gold, unit)))
        return pairs

    def _is_decimal(self, tokens: list[Token]) -> bool:
        shape = self._read(tokens, READINGS[0])
        number = literal(shape.node) if isinstance(shape, Quantity) else None
        return number is not None and bool(number.places)


def _units_of(tokens: list[Token]) -> str:
    """The letters of the unit that the tokens end with."""
    return _unit_key(split_unit(tokens)[1])


def _unit_key(tokens: list[Token]) -> str:
    """What m/s^2, m s^{-2} and \\frac{m}{s^2} share, and m s^2 has not."""
    text = canonical(tokens).replace(r"\text", "")
    text = re.sub(r"\\frac\s*(\{.*\}+)\s*(?=\{)", r"\1/", text)
    text = re.sub(r"([a-zA-Z]+)\}?\^\{?-(\d)\}?", r"/\1\2", text)
    return re.sub(r"(?<=[a-zA-Z])1(?!\d)|[\s{}^*-]", "", text)


def _without_unit(tokens: list[Token], unit: str) -> list[Token]:
    """The tokens without a unit in letters that could also be variables: 60 km/h beside 60 \\text{km/h}."""
    for cut in range(max(1, len(tokens) - _LONGEST_UNIT), len(tokens)):
        if _unit_key(tokens[cut:]) == unit:
            return tokens[:cut]
    return tokens
