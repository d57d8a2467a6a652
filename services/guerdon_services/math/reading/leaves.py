"""Tokens without outer structure to one value: a quantity with its unit, digits in a base, a time, a ratio, words."""

import re
from fractions import Fraction

from guerdon_services.math.notation.brackets import levels
from guerdon_services.math.notation.expression import Reading, parse
from guerdon_services.math.notation.lexer import Token, Unreadable
from guerdon_services.math.notation.spelling import CURRENCIES
from guerdon_services.math.notation.tree import Apply, Call, Mul, Node, Number
from guerdon_services.math.reading.named import ALL_REALS, EMPTY, NUMBER_SETS
from guerdon_services.math.reading.shapes import (
    REALS,
    Based,
    Clock,
    Many,
    Quantity,
    Ratio,
    Shape,
    Words,
    canonical,
    literal,
)
from guerdon_services.math.reading.units import CURRENCY_CODES, multiple, split_unit

#: Signs at a value that name its unit.
_SIGNS = {**CURRENCIES, "C": "c", "F": "f"}
#: What may stand before a value: adverbs, currencies.
_BEFORE = CURRENCY_CODES | {
    "about", "approximately", "approx", "around", "exactly", "only", "just", "roughly",
}  # fmt: skip
_MARKS = frozenset(",.'-!?:;")
_PUNCTUATION = _MARKS | {'"', "and", "or"}
_WORD = re.compile(r"[^\W\d_]{3,}")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_SENTENCE_MARK = re.compile(r"[.,!?;:\"]")
#: Letters of a word that could still be a product of variables.
_MAX_LETTERS = 4
#: Of these one must be there for a value to be more than an expression with a unit.
_SPECIAL = frozenset({":", "_", "to", "real", "reals", "mod", r"\pm", r"\mp", r"\pmod"})
_BEGINNING = frozenset({"-", "(", "{", r"\frac", r"\sqrt"})
_MAX_BASE = 36
_BASES = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "eleven": 11,
    "twelve": 12, "sixteen": 16,
}  # fmt: skip
_TIME = re.compile(r"(\d{1,2}):([0-5]\d)(?::([0-5]\d))?(?:([ap])\.?m\.?)?")


def leaf(tokens: list[Token], reading: Reading) -> Shape:
    """One value; `Words` when the tokens are no mathematics."""
    if len(tokens) > 1 and len(tokens[0].text) > 1 and is_words(tokens):
        return words(tokens)
    marks = {token.text for token in tokens}
    if not marks.isdisjoint(_SPECIAL):
        special = _special(tokens, marks, reading)
        if special:
            return special
    try:
        return _quantity(tokens, reading)
    except Unreadable:
        return words(tokens)


def _special(tokens: list[Token], marks: set[str], reading: Reading) -> Shape | None:
    """A value that is more than an expression with a unit, if it is one."""
    if "real" in marks or "reals" in marks:
        named = " ".join(token.text for token in tokens).lower().removeprefix("the set of ")
        return REALS if named in ALL_REALS else None
    if r"\pm" in marks or r"\mp" in marks:
        return Many("list", tuple(leaf(each, reading) for each in both_signs(tokens)))
    try:
        return _clock(tokens) or _based(tokens) or _ratio(tokens, reading) or _congruence(tokens, reading)
    except Unreadable:
        return words(tokens)


def words(tokens: list[Token]) -> Words:
    """The tokens as words, in small letters when they are prose."""
    if all(token.kind in ("word", "text", "function") or token.text in _MARKS for token in tokens):
        return Words(said(tokens))
    text = canonical(tokens)
    if any(token.kind in ("word", "text") and len(token.text) > _MAX_LETTERS for token in tokens):
        return Words(
            said(tokens), unread=not all(token.kind in ("word", "text", "number") for token in tokens)
        )
    return Words(text, unread=text not in NUMBER_SETS and text not in EMPTY)


def is_words(tokens: list[Token]) -> bool:
    """Whether the tokens are prose or a name and no formula: words of which one has three letters or more."""
    if not all(token.kind in ("word", "text") or token.text in _PUNCTUATION for token in tokens):
        return False
    text = said(tokens)
    return not re.search(r"\d", text) and bool(_WORD.search(text) or text == "no")


def said(tokens: list[Token]) -> str:
    """Words in small letters without sentence marks."""
    return " ".join(_SENTENCE_MARK.sub(" ", " ".join(token.text for token in tokens).lower()).split())


def _quantity(tokens: list[Token], reading: Reading) -> Quantity:
    if _is_bare(tokens):
        return Quantity(parse(tokens, reading))
    # In sin 30° the degrees belong to the angle, not to the value.
    angle = any(token.kind == "function" for token in tokens)
    value, marks = _stripped(tokens, angle)
    if not value:
        raise Unreadable("no value")
    bare, unit = split_unit(value)
    if unit:
        bare, inner = _stripped(bare, angle)
        marks |= inner
        if bare and bare[-1].text == "^":
            raise Unreadable("an exponent that is a word")
    node = parse(bare, reading)
    if unit and multiple(unit[0].text.split()[0]):
        node, unit = _multiplied(node, unit)
    name = "" if not unit or "ordinal" in marks else _TEXT.sub(r" \1", canonical(unit)).strip()
    signs = [_SIGNS[mark] for mark in marks if mark in _SIGNS]
    return Quantity(node, name or "".join(signs), percent="%" in marks, degrees="°" in marks)


def _multiplied(node: Node, unit: list[Token]) -> tuple[Node, list[Token]]:
    """`5 million dollars` as 5,000,000 dollars."""
    word, _, rest = unit[0].text.partition(" ")
    shown = literal(node)
    scale = Fraction(multiple(word))
    node = Mul((Number(scale), node)) if shown is None else Number(shown.value * scale)
    return node, [unit[0]._replace(text=rest), *unit[1:]] if rest else unit[1:]


def _is_bare(tokens: list[Token]) -> bool:
    """Whether nothing around the expression can be a unit or a sign."""
    last, first = tokens[-1], tokens[0]
    ends = last.kind == "number" and (len(tokens) < 2 or tokens[-2].text != "^")
    return ends and (first.kind == "number" or first.text in _BEGINNING)


def _stripped(tokens: list[Token], angle: bool) -> tuple[list[Token], set[str]]:
    """The tokens without currency, degree and percent signs, ordinal suffixes and adverbs around them."""
    marks = {token.text for token in tokens if token.text in CURRENCIES}
    tokens = [token for token in tokens if token.text not in CURRENCIES] if marks else tokens
    start, end = 0, len(tokens)
    while start < end and tokens[start].text.lower().rstrip(".") in _BEFORE:
        start += 1
    while end > start:
        width, mark = _mark_before(tokens, end)
        if not width or (angle and mark == "°"):
            break
        marks.add(mark)
        end -= width
    return tokens[start:end], marks


def _mark_before(tokens: list[Token], end: int) -> tuple[int, str]:
    """How many tokens before `end` are a sign that follows a value, and which."""
    last = tokens[end - 1]
    if last.text == "%":
        return 1, "%"
    if last.text in ("°", r"\circ"):
        return (2 if end > 1 and tokens[end - 2].text == "^" else 1), "°"
    if last.text in ("C", "F") and end > 1 and tokens[end - 2].text in ("°", r"\circ"):
        return 1, last.text
    if last.text == "^":  # 90^
        return 1, "°"
    texts = [token.text for token in tokens[max(0, end - 4) : end]]
    if texts[-1:] == ["}"] and len(texts) == 4 and texts[:2] == ["^", "{"]:
        if texts[2] in (r"\circ", "°"):
            return 4, "°"
        if texts[2] in ("C", "F"):
            return 0, ""
        if texts[2] in ("st", "nd", "rd", "th"):
            return 4, "ordinal"
    if last.text in ("st", "nd", "rd", "th") and end > 1 and tokens[end - 2].kind in ("number", "mark"):
        return (2 if tokens[end - 2].text == "^" else 1), "ordinal"
    return 0, ""


def _based(tokens: list[Token]) -> Based | None:
    """`101_2`, `1A_{16}`."""
    cut = next((index for index, token in enumerate(tokens) if token.text == "_"), 0)
    if not cut or any(token.grouped for token in tokens):
        return None
    lettered = not any(token.kind in ("number", "text") for token in tokens[:cut])
    base = [token.text for token in tokens[cut + 1 :] if token.text not in "{}()"]
    digits = "".join(token.text for token in tokens[:cut] if token.text not in "{}()").upper()
    base = [str(_BASES.get(text.lower(), text)) for text in base]
    if (
        len(base) != 1
        or not re.fullmatch(r"\d{1,2}", base[0])
        or not re.fullmatch(r"[0-9A-Z]{1,400}", digits)
    ):
        return None
    number = int(base[0])
    if not 2 <= number <= _MAX_BASE or any(int(digit, _MAX_BASE) >= number for digit in digits):
        return None
    if lettered and (len(digits) < 2 or "".join(token.text for token in tokens[:cut]) != digits):
        return None  # a variable with an index
    return Based(digits.lstrip("0") or "0", number)


def _clock(tokens: list[Token]) -> Clock | None:
    """`12:00`, `3:30 PM`, `20:34:00`."""
    text = "".join(token.text for token in tokens[:12])
    found = _TIME.fullmatch(text.lower()) if len(tokens) < 12 else None
    if not found or int(found.group(1)) > 24:
        return None
    hours, half = int(found.group(1)), found.group(4) or ""
    if half:
        hours = hours % 12 + (12 if half == "p" else 0)
    seconds = 3600 * hours + 60 * int(found.group(2)) + int(found.group(3) or 0)
    parts = tuple(Number(Fraction(part)) for part in found.groups()[:3] if part)
    return Clock(seconds, parts, half and f"{half}m")


def _ratio(tokens: list[Token], reading: Reading) -> Ratio | None:
    """`a : b`."""
    parts: list[list[Token]] = [[]]
    for token, depth in levels(tokens):
        if depth == 0 and (token.text == ":" or (token.text == "to" and token.kind in ("text", "word"))):
            parts.append([])
        else:
            parts[-1].append(token)
    if not 2 <= len(parts) <= 20 or not all(parts):
        return None
    return Ratio(tuple(parse(part, reading) for part in parts))


def _congruence(tokens: list[Token], reading: Reading) -> Quantity | None:
    """`3 \\pmod 7`: a class of residues."""
    cut = next((index for index, token in enumerate(tokens) if token.text in (r"\pmod", "mod")), 0)
    if not cut:
        return None
    before, after = tokens[:cut], tokens[cut + 1 :]
    if before and before[-1].text == "(" and after and after[-1].text == ")":
        before, after = before[:-1], after[:-1]
    value, modulus = parse(before, reading), parse(after, reading)
    if isinstance(value, Number) and isinstance(modulus, Number) and modulus.value > 0:
        value = Call("mod", (value, modulus))
    return Quantity(Apply("residue class", (value, modulus)))


def both_signs(tokens: list[Token]) -> tuple[list[Token], list[Token]]:
    """What holds `\\pm` or `\\mp` with the upper signs, and with the lower ones."""
    upper = [_signed(token, "+", "-") for token in tokens]
    return upper, [_signed(token, "-", "+") for token in tokens]


def _signed(token: Token, plus: str, minus: str) -> Token:
    if token.text == r"\pm":
        return token._replace(text=plus)
    return token._replace(text=minus) if token.text == r"\mp" else token
