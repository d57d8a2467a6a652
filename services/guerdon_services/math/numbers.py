"""Plain numbers: integers of any size, decimals, fractions, percentages, exact in rational arithmetic."""

import re
from dataclasses import dataclass
from fractions import Fraction

#: Digits of a number that is turned into a Fraction; longer integers are compared as digit strings.
_MAX_DIGITS = 4000
_MAX_EXPONENT = 1000
#: Significant digits with which a decimal may stand for a number that has no finite decimal form.
_CLOSE_DIGITS = 6
#: Significant digits that a decimal reference must have before answers are rounded to it.
_ROUNDED_DIGITS = 3
#: Largest relative difference that this rounding may hide.
_ROUNDED_RELATIVE = Fraction(2, 1000)

_SIGN = r"(?P<sign>[-+]?)\s*"
_DIGITS = r"[1-9]\d{0,2}(?:,\d{3})+|[1-9]\d{0,2}(?: \d{3})+|\d+"
_DECIMAL = re.compile(rf"{_SIGN}(?P<whole>{_DIGITS})?(?:\.(?P<places>\d*))?")
_FRACTION = re.compile(
    rf"{_SIGN}(?:(?P<whole>\d+)\s*)?(?:\\frac\s*\{{\s*(?P<n>[-+]?\d+)\s*\}}\s*\{{\s*(?P<d>[-+]?\d+)\s*\}})"
)
_SLASH = re.compile(rf"{_SIGN}(?:(?P<whole>\d+)\s+)?(?P<n>\d+)\s*/\s*(?P<d>[-+]?\d+)")
_SCIENTIFIC = re.compile(
    rf"{_SIGN}(?P<m>\d*\.?\d+)\s*(?:[eE]\s*(?P<e>[-+]?\d+)|(?:\\times|\\cdot|\*)\s*10\s*\^\s*\{{?\s*(?P<p>[-+]?\d+)\s*\}}?)"
)
_PERCENT = re.compile(r"\s*(?:%|(?:\\text\s*\{\s*)?(?:percent(?:age)?|pct)\s*\}?)$", re.IGNORECASE)
_TEXT_UNIT = re.compile(r"\\text\s*\{([^{}]*)\}\s*(?:\^\s*\{?\d\}?)?$")
_WORD_UNIT = re.compile(
    r"(?:(?<=[\d})])\s*(?=(?:[mck]m|k?g|m[gl]|ft|in|hr|hrs|min|sec|kph|mph|mm)\b)|(?<=[\d})])\s+)"
    r"([A-Za-z]{2,}\.?(?: [A-Za-z]{2,}\.?){0,3})(?:\^\s*\{?\d\}?)?$"
)
_CURRENCY = re.compile(r"^([-+]?)\s*[€£¥]\s*|\s*[€£¥]$")
_NO_UNIT = re.compile(r"\b(?:and|or|not|if|for|when|where)\b|[\d=<>]", re.IGNORECASE)
_ORDINAL = re.compile(r"\s*\^\s*\{?\s*(?:\\text\s*\{\s*)?(?:st|nd|rd|th)\s*\}?\s*\}?$")


@dataclass(frozen=True)
class Number:
    """A plain number as it was written; `places` counts decimal places and is None for exact notation."""

    value: Fraction
    places: int | None
    digits: int
    percent: bool


def strip_units(text: str) -> str:
    """The text without what may follow a quantity: units in words, degrees, an ordinal's suffix, currency."""
    while True:
        bare = _CURRENCY.sub(r"\1", text).strip()
        bare = _ORDINAL.sub("", bare).strip()
        bare = re.sub(r"\^\s*(?:\{\s*\\circ\s*\}|\{?\s*$)$", "", bare).strip()
        unit = _TEXT_UNIT.search(bare) or _WORD_UNIT.search(bare)
        if unit and unit.start() > 0 and not _NO_UNIT.search(unit.group(1)) and not _PERCENT.search(bare):
            bare = bare[: unit.start()].strip()
        if bare == text:
            return text
        text = bare


def parse_number(text: str) -> Number | None:
    """The number that a normalised text spells, units aside; None when it is anything else."""
    if len(text) > 2 * _MAX_DIGITS:
        return None
    percent = _PERCENT.search(text)
    bare = strip_units(text[: percent.start()] if percent else text)
    number = _fraction(bare) or _scientific(bare) or _decimal(bare)
    if number is None or not percent:
        return number
    return Number(
        number.value / 100, None if number.places is None else number.places + 2, number.digits, True
    )


def integer_digits(text: str) -> str | None:
    """Sign and digits of an integer of any length, without separators and leading zeros; None for the rest."""
    match = re.fullmatch(r"([-+]?)\s*([1-9]\d{0,2}(?:,\d{3})+|\d+)", text)
    if not match:
        return None
    digits = match.group(2).replace(",", "").lstrip("0") or "0"
    return digits if match.group(1) != "-" or digits == "0" else f"-{digits}"


def decimal_comma(text: str) -> str | None:
    """`1000,99` as `1000.99`; None when the comma cannot be a decimal one."""
    match = re.fullmatch(r"([-+]?\d+),(\d+)", text)
    return f"{match.group(1)}.{match.group(2)}" if match else None


def equal_numbers(answer: Number, gold: Number) -> bool:
    """Exact where both are exact; where one is a decimal, equal to the digits that it shows.

    A percent sign on one side only may also be a unit that the other left out: 10 and 10% agree, but never 0.1
    and 10 or 50 and 0.5.
    """
    if answer.percent != gold.percent:
        if answer.percent:
            bare = Number(answer.value * 100, _less(answer.places), answer.digits, False)
            return _close(answer, gold) or _close(bare, gold)
        bare = Number(gold.value * 100, _less(gold.places), gold.digits, False)
        return _close(answer, gold) or _close(answer, bare)
    return _close(answer, gold)


def _close(answer: Number, gold: Number) -> bool:
    if answer.value == gold.value:
        return True
    if gold.places is not None and (answer.places is None or answer.places > gold.places):
        return gold.digits >= _ROUNDED_DIGITS and gold.places > 0 and _rounds_to(answer.value, gold)
    if gold.places is None and answer.places is not None and not _terminates(gold.value):
        return answer.digits >= _CLOSE_DIGITS and _shows(gold.value, answer)
    return False


def shows(value: Fraction, shown: Number) -> bool:
    """Whether `shown` is the irrational or endless `value`, cut or rounded to at least six digits."""
    return shown.places is not None and shown.digits >= _CLOSE_DIGITS and _shows(value, shown)


def rounds_to(value: Fraction, gold: Number) -> bool:
    """Whether `value` gives the decimal `gold` when it is rounded to the places that gold has."""
    return bool(gold.places) and gold.digits >= _ROUNDED_DIGITS and _rounds_to(value, gold)


def _rounds_to(value: Fraction, gold: Number) -> bool:
    difference = abs(value - gold.value)
    half = Fraction(1, 2 * 10 ** (gold.places or 0))
    return difference <= half and difference <= _ROUNDED_RELATIVE * abs(gold.value)


def _shows(value: Fraction, shown: Number) -> bool:
    return abs(value - shown.value) < Fraction(1, 10 ** (shown.places or 0))


def _less(places: int | None) -> int | None:
    return None if places is None else max(places - 2, 0)


def _terminates(value: Fraction) -> bool:
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1


def _fraction(text: str) -> Number | None:
    match = _FRACTION.fullmatch(text) or _SLASH.fullmatch(text)
    if not match:
        return None
    whole, numerator, denominator = match.group("whole"), match.group("n"), match.group("d")
    if len(match.group()) > _MAX_DIGITS or int(denominator) == 0:
        return None
    value = Fraction(int(numerator), int(denominator)) + int(whole or 0)
    return Number(-value if match.group("sign") == "-" else value, None, len(numerator), False)


def _decimal(text: str) -> Number | None:
    match = _DECIMAL.fullmatch(text)
    if not match:
        return None
    whole, places = match.group("whole") or "", match.group("places")
    digits = whole.replace(",", "").replace(" ", "") + (places or "")
    if not digits or len(digits) > _MAX_DIGITS:
        return None
    value = Fraction(int(digits), 10 ** len(places or ""))
    significant = len(digits.lstrip("0"))
    return Number(
        -value if match.group("sign") == "-" else value, len(places) if places else None, significant, False
    )


def _scientific(text: str) -> Number | None:
    match = _SCIENTIFIC.fullmatch(text)
    if not match:
        return None
    mantissa, exponent = match.group("m"), int((match.group("e") or match.group("p"))[:8])
    if abs(exponent) > _MAX_EXPONENT or len(mantissa) > _MAX_DIGITS:
        return None
    value = Fraction(mantissa) * Fraction(10) ** exponent
    places = len(mantissa.partition(".")[2]) - exponent
    digits = len(mantissa.replace(".", "").lstrip("0"))
    signed = -value if match.group("sign") == "-" else value
    return Number(signed, places if places > 0 else None, digits, False)
