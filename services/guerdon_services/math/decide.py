"""From two texts to a decision: the same text, a choice, words, or shapes whose values agree."""

import re

from guerdon_services.math.compare import Comparison, same_words
from guerdon_services.math.dates import parse_date, same_date
from guerdon_services.math.decision import Decision, UnreadableReference
from guerdon_services.math.expression import READINGS, Reading
from guerdon_services.math.leaves import said, words
from guerdon_services.math.lexer import Token, Unreadable, lex
from guerdon_services.math.reader import Reader, split_list, unwrapped
from guerdon_services.math.shapes import Quantity, Shape, canonical, literal
from guerdon_services.math.units import split_unit
from guerdon_services.math.values import Values

#: Words in a reference beyond which it is prose that only a reader could judge.
_MAX_WORDS = 4
_NO_VALUE = frozenset({"", "nan", "none", "null", "n/a"})
_INTEGER = re.compile(r"\s*([-+]?)\s*([1-9]\d{0,2}(?:,\d{3})+|\d+)\s*", re.ASCII)
_CHOICE = re.compile(r"[A-J]")
_CHOSEN = re.compile(
    r"(?:option|choice|answer)?:?\s*[(\[]?\s*([A-J])\s*[)\]]?(?:$|[.:)]\s*(?P<value>.*))", re.IGNORECASE
)
_LETTERS = re.compile(r"[A-J]{1,10}")
_WITH_VALUE = re.compile(r"(?:\(([A-J])\)|([A-J])[.)])\s*(?![-+*/^=<>)|,])(?P<value>\S.*)")
_PUNCTUATION = frozenset({*",.'-!?:;\"", "and", "or"})
_WORD = re.compile(r"[^\W\d_]{3,}")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")


def decide(answer: str, reference: str, values: Values) -> Decision:
    """Whether an answer equals a reference.

    Raises:
        UnreadableReference: the reference is empty, no value, or nothing that can be judged.
        NeedsBalls: only ball arithmetic could tell, and `values` has none.
    """
    digits, gold_digits = integer_digits(answer), integer_digits(reference)
    if digits is not None and gold_digits is not None:
        return Decision(digits == gold_digits, "rational", "integers")
    try:
        gold = tokens_of(reference)
    except Unreadable as problem:
        raise UnreadableReference(f"cannot be read: {problem}") from problem
    text = canonical(gold)
    if text.lower() in _NO_VALUE:
        raise UnreadableReference("is empty" if not text else f"is {text!r}, which is no value")
    try:
        given = tokens_of(answer)
    except Unreadable as problem:
        return Decision(False, "none", f"the answer cannot be read: {problem}")
    if not given:
        return Decision(False, "none", "the answer is empty")
    if _key(given) == _key(gold):
        return Decision(True, "string", "the same text")
    return (
        _date(answer, reference)
        or _choice(given, gold)
        or _several_choices(given, gold)
        or _letter_and_value(given, gold, answer, reference, values)
        or _words(given, gold)
        or _Reading(answer, reference, given, gold, values).decision()
    )


def is_list(reference: str) -> bool:
    """Whether a reference holds several values."""
    try:
        return len(split_list(tokens_of(reference))) > 1
    except Unreadable:
        return True


def decide_long(answer: str, reference: str) -> Decision:
    """The decision for an answer too long to be read: the same text, the same digits, or wrong."""
    if answer.strip() == reference.strip():
        return Decision(True, "string", "the same text")
    digits = integer_digits(answer)
    if digits is not None and digits == integer_digits(reference):
        return Decision(True, "rational", "integers")
    return Decision(False, "none", f"an answer of {len(answer)} characters is too long to be read")


def integer_digits(text: str) -> str | None:
    """Sign and digits of an integer of any length, without separators and leading zeros; None for the rest."""
    match = _INTEGER.fullmatch(text)
    if not match:
        return None
    digits = match.group(2).replace(",", "").lstrip("0") or "0"
    return digits if match.group(1) != "-" or digits == "0" else f"-{digits}"


def normalised(text: str) -> str:
    """The one spelling that all ways of writing an answer share; the text itself when it cannot be read."""
    try:
        return canonical(tokens_of(text))
    except Unreadable:
        return text


def tokens_of(text: str, *, decimal_comma: bool = False, thousands: bool = True) -> list[Token]:
    """The tokens of an answer without what surrounds it; what is all in a text command is read like any other.

    Raises:
        Unreadable: there are too many.
    """
    tokens = unwrapped(lex(text, decimal_comma=decimal_comma, thousands=thousands))
    if len(tokens) == 1 and tokens[0].kind == "text":
        tokens = unwrapped(lex(tokens[0].text, decimal_comma=decimal_comma, thousands=thousands)) or tokens
    return tokens


def _key(tokens: list[Token]) -> str:
    """What two texts must share to be the same: spaces, single braces and the case of words do not count."""
    if is_words(tokens):
        return said(tokens).replace(" ", "")
    return re.sub(r"\{(\w)\}", r"\1", canonical(tokens))


def is_words(tokens: list[Token]) -> bool:
    """Whether the tokens are prose or a name and no formula: words of which one has three letters or more."""
    if not all(token.kind in ("word", "text") or token.text in _PUNCTUATION for token in tokens):
        return False
    words = said(tokens)
    return not re.search(r"\d", words) and bool(_WORD.search(words) or words == "no")


def _plain(tokens: list[Token]) -> str:
    return _TEXT.sub(r"\1", canonical(tokens)).strip()


def _choice(given: list[Token], gold: list[Token]) -> Decision | None:
    """A reference that is a letter."""
    letter = _plain(gold)
    if not _CHOICE.fullmatch(letter):
        return None
    chosen = _CHOSEN.fullmatch(_plain(given))
    if chosen:
        return Decision(chosen.group(1).upper() == letter, "string", "choice letter")
    return Decision(False, "string", f"not the choice {letter}") if is_words(given) else None


def _several_choices(given: list[Token], gold: list[Token]) -> Decision | None:
    """A reference of several choice letters: AC, "A, C"."""
    wanted, chosen = _letters(gold), _letters(given)
    if len(wanted) < 2 or not chosen:
        return None
    return Decision(wanted == chosen, "string", "choice letters")


def _letters(tokens: list[Token]) -> list[str]:
    """The letters that are chosen, in order; none when the tokens are anything else."""
    plain = re.sub(r"[\s,()]|\band\b|\\&", "", _plain(tokens).replace("and", ","))
    return sorted(plain) if _LETTERS.fullmatch(plain) and len(set(plain)) == len(plain) else []


def _date(answer: str, reference: str) -> Decision | None:
    wanted = parse_date(reference)
    given = parse_date(answer) if wanted else None
    return Decision(same_date(given, wanted), "string", "dates") if given and wanted else None


def _letter_and_value(
    given: list[Token], gold: list[Token], answer: str, reference: str, values: Values
) -> Decision | None:
    """A reference that is a letter with its value: either will do, a letter that contradicts will not."""
    wanted = _WITH_VALUE.fullmatch(_plain(gold))
    if not wanted:
        offered = _WITH_VALUE.fullmatch(_plain(given))
        return decide(offered.group("value"), reference, values) if offered else None
    letter, value = wanted.group(1) or wanted.group(2), wanted.group("value")
    said = _plain(given)
    if re.fullmatch(r"[(\[]?\s*[A-J]\s*[)\].]?", said):
        return Decision(letter in said, "string", "choice letter")
    chosen = _WITH_VALUE.fullmatch(said)
    if chosen:
        if (chosen.group(1) or chosen.group(2)) != letter:
            return Decision(False, "string", "another choice letter")
        said = chosen.group("value")
    return decide(said, value, values)


def _words(given: list[Token], gold: list[Token]) -> Decision | None:
    if not is_words(gold):
        number = len(gold) == 1 and gold[0].kind == "number"
        return (
            Decision(False, "string", "words where a number is expected")
            if number and is_words(given)
            else None
        )
    count = len(_plain(gold).split())
    if count > _MAX_WORDS:
        raise UnreadableReference(f"is prose of {count} words, which no verifier can judge")
    return None if len(split_list(gold)) > 1 else Decision(*_same_words(given, gold))


def _same_words(given: list[Token], gold: list[Token]) -> tuple[bool, str, str]:
    same = same_words(words(given), words(gold))
    return same, "string", "the same words" if same else "another text"


class _Reading:
    """One answer and one reference under all the ways in which they may be read."""

    def __init__(
        self, answer: str, reference: str, given: list[Token], gold: list[Token], values: Values
    ) -> None:
        self._answer = answer
        self._reference = reference
        self._given = given
        self._gold = gold
        self._values = values

    def decision(self) -> Decision:
        same = any(self._same(self._given, self._gold, reading) for reading in self._readings())
        if not same:
            same = any(self._same(given, gold, READINGS[0]) for given, gold in self._other_numbers())
        return Decision(same, self._values.method, "equal values" if same else "other values")

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

    @staticmethod
    def _read(tokens: list[Token], reading: Reading) -> Shape | Unreadable:
        try:
            return Reader(reading).read(tokens)
        except Unreadable as problem:
            return problem

    def _other_numbers(self) -> list[tuple[list[Token], list[Token]]]:
        """Commas read otherwise: 1000,99 beside a decimal, 100,200 beside a list."""
        pairs: list[tuple[list[Token], list[Token]]] = []
        if self._is_decimal(self._gold) and "," in self._answer:
            pairs.append((tokens_of(self._answer, decimal_comma=True), self._gold))
        if self._is_decimal(self._given) and "," in self._reference:
            pairs.append((self._given, tokens_of(self._reference, decimal_comma=True)))
        if any(token.grouped for token in self._gold) and "," in self._answer:
            pairs.append((self._given, tokens_of(self._reference, thousands=False)))
        if any(token.grouped for token in self._given) and "," in self._reference:
            pairs.append((tokens_of(self._answer, thousands=False), self._gold))
        if _units_of(self._gold) and not _units_of(self._given):
            pairs.append((_without_unit(self._given, _units_of(self._gold)), self._gold))
        if _units_of(self._given) and not _units_of(self._gold):
            pairs.append((self._given, _without_unit(self._gold, _units_of(self._given))))
        return pairs

    def _is_decimal(self, tokens: list[Token]) -> bool:
        shape = self._read(tokens, READINGS[0])
        number = literal(shape.node) if isinstance(shape, Quantity) else None
        return number is not None and bool(number.places)


def _units_of(tokens: list[Token]) -> str:
    """The letters of the unit that the tokens end with."""
    return _unit_key(split_unit(tokens)[1])


def _unit_key(tokens: list[Token]) -> str:
    return re.sub(r"\\text|\\frac|[\s{}^/]", "", canonical(tokens))


def _without_unit(tokens: list[Token], unit: str) -> list[Token]:
    """The tokens without a unit in letters that could also be variables: 60 km/h beside 60 \\text{km/h}."""
    for cut in range(1, len(tokens)):
        if _unit_key(tokens[cut:]) == unit:
            return tokens[:cut]
    return tokens
