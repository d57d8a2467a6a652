"""From two texts to a decision: the same text, a choice, words, or shapes whose values agree."""

import re
from dataclasses import replace

from guerdon_services.math.arithmetic.values import Values
from guerdon_services.math.choices import chosen
from guerdon_services.math.comparison.singles import same_words
from guerdon_services.math.dates import parse_date, same_date
from guerdon_services.math.decision import Decision, UnreadableReference
from guerdon_services.math.meaning import Side, decide_meaning, tokens_of
from guerdon_services.math.notation.lexer import Unreadable
from guerdon_services.math.reading.leaves import is_words, said, words
from guerdon_services.math.reading.reader import split_list
from guerdon_services.math.reading.shapes import canonical

#: Characters of a normalised text that a decision repeats.
_SHOWN = 2000
#: Words in a reference beyond which it is prose that only a reader could judge.
_MAX_WORDS = 4
_NO_VALUE = frozenset({"", "nan", "none", "null", "n/a"})
_INTEGER = re.compile(r"([-+]?)\s*([1-9]\d{0,2}(?:,\d{3})+|\d+)", re.ASCII)
#: Braces around an exponent or index of one character, with nothing after it that could belong to it.
_ONE_CHARACTER = re.compile(r"(?<=[\^_])\{(\w)\}(?=$|[-+*/=<>,;:)\]}\\&!])")


def decide(answer: str, reference: str, values: Values, *, choices: bool = True) -> Decision:
    """Whether an answer equals a reference; without `choices`, letters are no choices.

    Raises:
        UnreadableReference: the reference is empty, no value, or nothing that can be judged.
        NeedsBalls: only ball arithmetic could tell, and `values` has none.
    """
    digits, gold_digits = integer_digits(answer), integer_digits(reference)
    if digits is not None and gold_digits is not None:
        same = digits == gold_digits
        return Decision(same, "rational", "integers", digits[:_SHOWN], gold_digits[:_SHOWN])
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
        return Decision(False, "none", f"the answer cannot be read: {problem}", "", text[:_SHOWN])
    spelled = canonical(given)
    if not spelled:
        return Decision(False, "none", "the answer is empty", "", text[:_SHOWN])
    sides = Side(answer, given, spelled, is_words(given)), Side(reference, gold, text, is_words(gold))
    decision = _decided(*sides, values, choices)
    return replace(decision, answer=spelled[:_SHOWN], reference=text[:_SHOWN])


def _decided(given: Side, gold: Side, values: Values, choices: bool) -> Decision:
    """The first rule that applies: same text, same items, dates, choices, words, and then what the two mean."""
    if _key(given) == _key(gold):
        return Decision(True, "string", "the same text")
    if _same_list(given, gold):
        return Decision(True, "string", "the same values in another order")
    decision = _date(given.text, gold.text)
    if choices and not decision:
        # The values beside letters are compared without a second look for letters.
        decision = chosen(
            given.spelled,
            gold.spelled,
            in_words=given.in_words,
            decide=lambda one, other: decide(one, other, values, choices=False),
        )
    return decision or _words(given, gold) or decide_meaning(given, gold, values)


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
    match = _INTEGER.fullmatch(text.strip())
    if not match:
        return None
    digits = match.group(2).replace(",", "").lstrip("0") or "0"
    return digits if match.group(1) != "-" or digits == "0" else f"-{digits}"


def _same_list(given: Side, gold: Side) -> bool:
    """Whether two lists without brackets have the same items, each written the same way."""
    if "," not in given.spelled or len(given.spelled) != len(gold.spelled):
        return False
    one, other = split_list(given.tokens), split_list(gold.tokens)
    return len(one) == len(other) > 1 and sorted(map(canonical, one)) == sorted(map(canonical, other))


def _date(answer: str, reference: str) -> Decision | None:
    wanted = parse_date(reference)
    given = parse_date(answer) if wanted else None
    return Decision(same_date(given, wanted), "string", "dates") if given and wanted else None


def _key(side: Side) -> str:
    """What two texts must share to be the same: spaces, single braces and the case of words do not count."""
    return said(side.tokens).replace(" ", "") if side.in_words else _ONE_CHARACTER.sub(r"\1", side.spelled)


def _words(given: Side, gold: Side) -> Decision | None:
    """A reference that is a word or a few; one that is prose cannot be judged."""
    if not gold.in_words:
        number = len(gold.tokens) == 1 and gold.tokens[0].kind == "number"
        wrong = number and given.in_words
        return Decision(False, "string", "words where a number is expected") if wrong else None
    count = len(said(gold.tokens).split())
    if count > _MAX_WORDS:
        raise UnreadableReference(f"is prose of {count} words, which no verifier can judge")
    if len(split_list(gold.tokens)) > 1:
        return None
    same = same_words(words(given.tokens), words(gold.tokens))
    return Decision(same, "string", "the same words" if same else "another text")
