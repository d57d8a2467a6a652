"""Decides without algebra, in microseconds: the same string, plain numbers, names, choice letters.

Returns None for whatever it cannot be sure of.
"""

import re

from guerdon_services.math.decision import Decision, UnreadableReference
from guerdon_services.math.forms import TooComplex, split_list
from guerdon_services.math.normalise import is_words, key, normalise
from guerdon_services.math.numbers import decimal_comma, equal_numbers, integer_digits, parse_number

#: Words in a reference beyond which it is prose that only a reader could judge.
_MAX_WORDS = 4
_NO_VALUE = frozenset({"", "nan", "none", "null", "n/a", "undefined"})
_CHOICE = re.compile(r"[A-J]")
_CHOSEN = re.compile(
    r"(?:option|choice|answer)?:?\s*(?:\\text\s*\{\s*)?[(\[]?\s*([A-Ja-j])\s*[)\]]?(?:\s*\})?(?:$|[.:)]\s*.*)",
    re.IGNORECASE,
)
_BASED = re.compile(r"[0-9A-F]+_\{?\d+\}?")


def decide(answer: str, reference: str) -> Decision | None:
    """The decision where none of the rules of algebra is needed, else None.

    Raises:
        UnreadableReference: the reference is empty, no value, or prose that the answer does not repeat.
    """
    gold = normalise(reference)
    if gold.lower() in _NO_VALUE:
        raise UnreadableReference("is empty" if not gold else f"is {gold!r}, which is no value")
    given = normalise(answer)
    if not given:
        return Decision(False, "none", "the answer is empty")
    if key(given) == key(gold):
        return Decision(True, "string", "the same text")
    return _choice(given, gold) or _numbers(given, gold) or _words(given, gold)


def is_list(reference: str) -> bool:
    """Whether a reference holds several values."""
    try:
        return len(split_list(normalise(reference))) > 1
    except TooComplex:
        return True


def decide_long(answer: str, reference: str) -> Decision:
    """The decision for an answer too long to be read: the same text, the same digits, or wrong."""
    if answer.strip() == reference.strip():
        return Decision(True, "string", "the same text")
    digits = integer_digits(answer.strip())
    if digits is not None and digits == integer_digits(reference.strip()):
        return Decision(True, "rational", "integers")
    return Decision(False, "none", f"an answer of {len(answer)} characters is too long to be read")


def _choice(given: str, gold: str) -> Decision | None:
    if not _CHOICE.fullmatch(gold):
        return None
    chosen = _CHOSEN.fullmatch(given)
    if chosen:
        return Decision(chosen.group(1).upper() == gold, "string", "choice letter")
    return Decision(False, "string", f"not the choice {gold}") if is_words(given) else None


def _numbers(given: str, gold: str) -> Decision | None:
    digits, gold_digits = integer_digits(given), integer_digits(gold)
    if digits is not None and gold_digits is not None:
        return Decision(digits == gold_digits, "rational", "integers")
    if _BASED.fullmatch(given) or _BASED.fullmatch(gold):
        return Decision(False, "string", "another base or other digits")
    number, gold_number = parse_number(given), parse_number(gold)
    if gold_number is not None and number is None:
        spelled = decimal_comma(given)
        number = parse_number(spelled) if spelled and gold_number.places else None
    elif number is not None and gold_number is None:
        spelled = decimal_comma(gold)
        gold_number = parse_number(spelled) if spelled and number.places else None
    if number is None or gold_number is None:
        return None
    return Decision(equal_numbers(number, gold_number), "rational", "plain numbers")


def _words(given: str, gold: str) -> Decision | None:
    if not is_words(gold):
        words_for_number = is_words(given) and parse_number(gold) is not None
        return Decision(False, "string", "words where a number is expected") if words_for_number else None
    if len(gold.split()) > _MAX_WORDS:
        raise UnreadableReference(f"is prose of {len(gold.split())} words, which no verifier can judge")
    if len(split_list(gold)) > 1:
        return None
    return Decision(False, "string", "another text")
