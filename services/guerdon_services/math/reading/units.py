"""Units of measurement: which words are one, and how many of a base unit each is."""

import re
from fractions import Fraction

from guerdon_services.math.notation.denials import is_denial
from guerdon_services.math.notation.lexer import Token

_F = Fraction
#: (dimension, how many of the dimension's base unit) by name.
_TABLE: dict[str, tuple[str, Fraction]] = {}
for _dimension, _names in {
    "length": {
        "m meter metre": _F(1), "cm centimeter centimetre": _F(1, 100), "mm millimeter millimetre": _F(1, 1000),
        "km kilometer kilometre": _F(1000), "dm decimeter decimetre": _F(1, 10), "in inch inches": _F(254, 10000),
        "ft foot feet": _F(3048, 10000), "yd yard": _F(9144, 10000), "mi mile": _F(1609344, 1000),
    },
    "mass": {
        "g gram": _F(1), "kg kilogram": _F(1000), "mg milligram": _F(1, 1000), "t ton tonne": _F(1000000),
        "lb lbs pound": _F(45359237, 100000), "oz ounce": _F(28349523125, 1000000000),
    },
    "time": {
        "s sec second": _F(1), "ms millisecond": _F(1, 1000), "min minute": _F(60), "h hr hour": _F(3600),
        "day": _F(86400), "week": _F(604800),
    },
    "months": {"month": _F(1), "year yr": _F(12)},
    "force": {"n newton": _F(1)}, "energy": {"j joule": _F(1), "kj kilojoule": _F(1000)},
    "power": {"w watt": _F(1), "kw kilowatt": _F(1000)}, "voltage": {"v volt": _F(1)}, "kelvin": {"k kelvin": _F(1)},
    "celsius": {"c": _F(1)}, "fahrenheit": {"f": _F(1)},
    "volume": {"l liter litre": _F(1), "ml milliliter millilitre": _F(1, 1000)},
    "dollars": {"dollar usd": _F(1), "cent": _F(1, 100)}, "euros": {"euro eur": _F(1)},
    "rupees": {"rupee inr rs": _F(1), "paise paisa": _F(1, 100)}, "sterling": {"gbp": _F(1)},
    "yuan": {"yuan rmb cny": _F(1)},
}.items():  # fmt: skip
    for _spellings, _factor in _names.items():
        for _name in _spellings.split():
            _TABLE[_name] = (_dimension, _factor)

#: Currencies by their codes, which stand before a value as well.
CURRENCY_CODES = frozenset({"rs", "usd", "eur", "gbp", "inr", "cny", "rmb"})
#: Units of two letters, which could as well be a product of variables.
_SHORT = frozenset(
    {
        "cm", "mm", "km", "dm", "in", "ft", "yd", "mi", "kg", "mg", "lb", "oz", "ms", "hr", "ml", "mL",
        "kW", "Hz", "kJ", "Pa", "eV", "mol", "rad", "deg", "pm", "am", "US", "st", "nd", "rd", "th", "sq", "cu",
    }
)  # fmt: skip
_RAISING = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_SPELLED = {"mph": "mi/h", "kph": "km/h", "kmh": "km/h", "kmph": "km/h"}
_MULTIPLES = {
    "hundred": 10**2,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "dozen": 12,
}
_TURNING = frozenset(
    {
        "increase", "decrease", "gain", "loss", "profit", "above", "bc", "ad", "bce", "ce", "north", "south", "east",
        "west", "more", "less", "up", "down", "left", "right", "before", "after", "clockwise", "counterclockwise",
        "early", "late", "fewer", "am", "pm",
    }
)  # fmt: skip
_PART = re.compile(r"([/*]?)\s*([a-z]+)\s*\^?\s*(-?\d+)?")
_MAX_POWER = 9
#: Words that join, condition or compute.
_NO_UNIT = frozenset(
    {
        "and", "or", "if", "for", "when", "where", "is", "are", "was", "either", "maybe", "perhaps", "unless", "plus",
        "minus", "times", "i", "e", "squared", "cubed", "factorial", "mod", "modulo", "choose", "wait", "actually",
        "alternatively", "rather", "instead", "otherwise", "below", "halves", "thirds", "quarters", "base", "sqrt",
        "root", "point",
    }
)  # fmt: skip
#: What only a value has; m/s^2 is none.
_OF_VALUE = re.compile(r"(?<![a-zA-Z^{])\d|[=<>]")


def is_unit(token: Token) -> bool:
    """Whether a token after a value can only be its unit, or another remark that does not change it."""
    if token.kind == "text":
        words = set(re.findall(r"[^\W\d_]+", token.text.lower()))
        return (
            bool(words)
            and not _OF_VALUE.search(token.text)
            and not words & _NO_UNIT
            and not is_denial(token.text)
            and "," not in token.text
        )
    if token.kind == "function":
        return token.text in ("min", "sec")
    if token.kind != "word" or token.text.lower() in _NO_UNIT or is_denial(token.text):
        return False
    return token.text in _SHORT or (len(token.text) >= 3 and not _is_run(token.text))


def _is_run(word: str) -> bool:
    """abc, xyz: variables, no word."""
    return len(word) <= 4 and word.lower() in "abcdefghijklmnopqrstuvwxyz"


def split_unit(tokens: list[Token]) -> tuple[list[Token], list[Token]]:
    """The tokens of the value and those of the unit after it."""
    end = len(tokens)
    if any(token.text == r"\int" for token in tokens):  # dx is no unit
        return tokens, []
    while end > 1:
        step = _unit_before(tokens, end)
        if not step:
            break
        end -= step
    return tokens[:end], tokens[end:]


def _unit_before(tokens: list[Token], end: int) -> int:
    """How many tokens before `end` belong to the unit: a word, an exponent on one, a sign between two."""
    last = tokens[end - 1]
    if is_unit(last):
        return 1
    if last.kind == "number" and end > 3 and tokens[end - 2].text == "^" and is_unit(tokens[end - 3]):
        return 3
    if last.text == "}" and end > 5 and [token.text for token in tokens[end - 4 : end - 2]] == ["^", "{"]:
        return 5 if is_unit(tokens[end - 5]) else 0
    if (
        last.text == "}"
        and end > 6
        and [token.text for token in tokens[end - 5 : end - 2]] == ["^", "{", "-"]
    ):
        return 6 if is_unit(tokens[end - 6]) else 0
    if last.text == "}":
        return _fraction_before(tokens, end)
    if last.text in ("/", "*", ".", "-") and end < len(tokens) and end > 2 and is_unit(tokens[end - 2]):
        return 2
    return 0


def _fraction_before(tokens: list[Token], end: int) -> int:
    """How many tokens a fraction of units such as `\\frac{\\text{km}}{\\text{h}}` has."""
    for start in range(end - 1, max(end - 14, 0), -1):
        if tokens[start].text == r"\frac":
            inside = [
                token
                for token in tokens[start + 1 : end]
                if token.text not in ("{", "}", "^") and token.kind != "number"
            ]
            return (
                end - start
                if inside and all(token.kind == "text" and is_unit(token) for token in inside)
                else 0
            )
    return 0


def factor(unit: str) -> tuple[str, Fraction] | None:
    """The dimension of a unit and its size in base units: km/h is (length^1 time^-1, 5/18); None for unknown ones."""
    powers: dict[str, int] = {}
    size = _F(1)
    sign, pending = 1, 1
    for sign_text, word, power in _PART.findall(_spelled_out(unit)):
        sign = -1 if sign_text == "/" else sign
        if word in _RAISING:
            pending = _RAISING[word]
            continue
        known = _TABLE.get(word) or _TABLE.get(word.removesuffix("s"))
        if known is None:
            return None
        exponent = sign * (int(power) if power else pending)
        pending = 1
        if abs(exponent) > _MAX_POWER:
            return None
        powers[known[0]] = powers.get(known[0], 0) + exponent
        size *= known[1] ** exponent
    named = " ".join(f"{dimension}^{power}" for dimension, power in sorted(powers.items()) if power)
    return (named, size) if named else None


def _spelled_out(unit: str) -> str:
    text = re.sub(r"\\text|[{}\s]+", " ", unit).lower()
    text = re.sub(r"\bper\b", "/", text)
    text = re.sub(r"\bus (?=dollar)", "", text)
    return " ".join(_SPELLED.get(word, word) for word in text.split())


def contradict(one: str, other: str) -> bool:
    """Whether of two remarks after a value one has a word that turns it and the other has not: gain, loss."""
    turning = [set(re.findall(r"[a-z]+", remark.lower())) & _TURNING for remark in (one, other)]
    return turning[0] != turning[1]


def multiple(word: str) -> int:
    """What a word of number before a unit multiplies by; 0 for other words."""
    return _MULTIPLES.get(word.lower(), 0)
