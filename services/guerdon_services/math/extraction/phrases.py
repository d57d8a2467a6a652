"""Reads the phrase that names an answer: the formulas and numbers in prose, and what a sentence leads with.

Repetitions in the patterns are possessive or bounded: no text takes more than time linear in its length.
"""

# The patterns read many alphabets.
# ruff: noqa: RUF001

import re
from itertools import pairwise
from typing import NamedTuple

from guerdon_services.math.notation.spelling import CURRENCIES

_DELIMITER = re.compile(r"\$\$?|\\[()\[\]]|\\.", re.DOTALL)
_CLOSED_BY = {"\\(": "\\)", "\\[": "\\]", "$": "$", "$$": "$$"}
_ROWS = re.compile(
    r"\s*\\begin\{(align(?:ed)?|gather(?:ed)?|split|eqnarray|equation)(\*?)\}(.*)\\end\{\1\2\}\s*", re.DOTALL
)
#: A name rather than a value: a letter, points of a figure.
_NAME = re.compile(r"\s*(?:\\(?:triangle|angle|overline)\s*)?\{?[A-Za-z]{1,4}(?:_\{?\w+\}?)?\}?\s*")

#: What stands between the values of a list.
_JOIN = r"\s*+(?:[,;，；、]\s*+)?+(?:(?:and|or|et|ou|und|oder|y|e|o|и|или)\b|&|和|与|或者?|と|または|와|또는)?+\s*+"
_SEPARATOR = re.compile(_JOIN, re.IGNORECASE)
_EITHER = re.compile(r"\b(?:or|ou|oder|o|или)\b|或|または|또는", re.IGNORECASE)

#: A number as prose has it: 1,234.5 or 1.234,5 or 3/4 or 7 1/2 or 3:2 or 6.02 x 10^23, with sign, currency, percent.
_DIGITS = (
    r"(?:\d{1,3}(?:,\d{3})++(?:\.\d++)?+|\d{1,3}(?:\.\d{3})++,\d++|\d{1,3}(?:\.\d{3}){2,}+|\d++[ \u00a0]\d{1,3}/\d++"
    r"|\d++[/:]\d++|\d++[.,]\d++|\d++|\.\d++)"
    r"(?:[eE][-+]?\d{1,4}|\s?(?:[x×*]|\\times)\s?10\s?\^\s?(?:\{[-−]?\d{1,4}\}|[-−]?\d{1,4})|\^\d{1,4})?+"
)
_CURRENCY = "".join(CURRENCIES).replace("\\", "")
_SIGNED = rf"(?:[-+−]?\s?[{_CURRENCY}]\s?|\\\$)?+[-+−]?{_DIGITS}(?:\s?\\?[%％])?+(?![\d/}}]|[.,:]\d)"
_NUMBER = re.compile(rf"(?<![0-9A-Za-z_.,:^{{\\]){_SIGNED}")
_PERCENT = re.compile(r"(?<=[\d$)}\]])\s{0,3}(?:\\%|[%％]|per\s?cent\b|pct\b)", re.IGNORECASE)

_SENTENCE_END = re.compile(
    r"(?<!\A[A-J])(?<!approx)(?<!e\.g)(?<!i\.e)(?<!\.\.)\.(?=\s|$)|\n|[。！？；．]|[!?](?=\s*(?:\n|$)|\s+[A-Z])"
)
#: What follows these words explains the answer.
_EXPLANATION = re.compile(
    r"[\s,(，（](?:because|since|where|when|which(?!\s(?:is|equals)\s[^a-z])|as|so|if|after|given|assuming"
    r"|for (?:all|every|any|some)|see|not|rather|instead|but|from|by|obtained|with|parce|weil|da|porque"
    r"|так|потому)\b|[,，、]?(?:因为|其中|所以|即)",
    re.IGNORECASE,
)
_VERDICT = re.compile(r"(?:yes|no|true|false|是的?|否|不是)(?=\s*[,，.:;。])", re.IGNORECASE)
_FOREIGN_AND = re.compile(r"\s?(?:和|与|と|와|\bи\b|\bet\b|\bund\b)\s?(?=[-\d$\\(])")
_FOREIGN_OR = re.compile(r"\s?(?:或者?|または|또는|\bили\b|\bou\b|\boder\b)\s?(?=[-\d$\\(])")
#: Verb endings that close a sentence after its answer.
_CLOSING_VERB = re.compile(r"\s*(?:です|でした|である|となります|になります|だ|입니다|이다|이에요|예요)\s*$")
_CHOICE = re.compile(r"\(?([A-J])(?:\)|[.:、．]|(?=\s*(?:$|[,;，；]|[\u4e00-\u9fff])))")
#: A unit that is no product of symbols.
_UNIT = re.compile(r"(?<=\d)\s?(?:mm|cm|dm|km|m|ft|in|yd)[²³]\Z")
_EDGE = " \t\r\n,;:*_\"'`“”‘’。，；：、．"

#: What is a word in a phrase, and what only looks like one.
_WORD = re.compile(
    r"\\(?:text\w{0,10}|mathrm|mbox|operatorname)\s?\{[^{}]*\}|\\[a-zA-Z]++|(?P<latin>[A-Za-z]{2,}+)"
    "|(?P<other>[\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0400-\u1fff\u3040-\u30ff\u3130-\u9fff\uac00-\ud7af]+)"
)
_TRAILING_JOIN = re.compile(r"(?:\b(?:and|or)|&)\s*$", re.IGNORECASE)
_NOT_WORDS = re.compile(
    r"(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|log|ln|exp|sqrt|cbrt|abs|max|min|gcd|lcm|mod|and|or|pi|alpha|beta|gamma|theta"
    r"|lambda|phi|inf|infty|infinity|oo|deg|choose|floor|ceil",
    re.IGNORECASE,
)
_SHORT_WORDS = re.compile(
    r"is|it|to|of|at|in|on|as|by|we|he|an|if|so|do|be|my|no|up|us|am|la|le|es", re.IGNORECASE
)
#: Stands for a formula while prose is split.
_MASK = "\ue000"


class Formula(NamedTuple):
    """A formula between delimiters: `text[start:end]` with them, `content` without."""

    start: int
    end: int
    content: str


def formulas(text: str) -> list[Formula]:
    r"""Formulas in `$…$`, `$$…$$`, `\(…\)` or `\[…\]`, in order."""
    found: list[Formula] = []
    opened: tuple[str, int, int] | None = None
    for match in _DELIMITER.finditer(text):
        token, start, end = match.group(), match.start(), match.end()
        if opened and token == "$$" and opened[0] == "$" and _is_formula(text, opened[2], start):
            # $a$$b$: one closes, the next opens.
            found.append(Formula(opened[1], start + 1, text[opened[2] : start]))
            opened = ("$", start + 1, end)
        elif opened and token == _CLOSED_BY[opened[0]]:
            if token not in ("$", "$$") or _is_formula(text, opened[2], start):
                found.append(Formula(opened[1], end, text[opened[2] : start]))
                opened = None
            else:
                opened = (token, start, end)
        elif token in ("\\(", "\\[") or (opened is None and token in _CLOSED_BY):
            opened = (token, start, end)
    return [formula for formula in found if formula.content.strip()]


def _is_formula(text: str, start: int, end: int) -> bool:
    """Whether what two dollar signs enclose is a formula, not the prose between two prices."""
    if start == end:
        return False
    if text.startswith("$$", start - 2):
        return True
    if "\n" in text[start:end]:
        return False
    price = text[start].isdigit() and (text[end - 1].isspace() or text[end + 1 : end + 2].isdigit())
    return not price


def value(formula: Formula) -> str:
    """The content of a formula; of an aligned display the last row."""
    rows = _ROWS.fullmatch(formula.content)
    if not rows:
        return formula.content
    last = [row for row in rows.group(3).split("\\\\") if row.strip()][-1:]
    return "".join(last).replace("&", " ").strip().lstrip("= ") if last else formula.content


def last_formulas(text: str, found: list[Formula]) -> tuple[str, int] | None:
    """The last formula, or the last several that "and", "or" or a comma join, with the end of them.

    One that is only a name is passed over where another has more to say.
    """
    last = next(
        (i for i in reversed(range(len(found))) if not _NAME.fullmatch(found[i].content)), len(found) - 1
    )
    if last < 0:
        return None
    first = last
    while first > 0 and _join(text, found[first - 1], found[first]):
        first -= 1
    return _joined(text, found[first : last + 1]), found[last].end


def _join(text: str, left: Formula, right: Formula) -> str:
    """How two formulas are joined: ", ", " or ", or "" where they are not."""
    between = text[left.end : right.start]
    if len(between) > 40 or not between.strip() or not _SEPARATOR.fullmatch(between):
        return ""
    return " or " if _EITHER.search(between) else ", "


def _joined(text: str, group: list[Formula]) -> str:
    parts = [value(group[0])]
    for left, right in pairwise(group):
        parts += [_join(text, left, right), value(right)]
    percent = _PERCENT.match(text, group[-1].end)
    return "".join(parts) + ("%" if percent else "")


def sentence(text: str, *, explained: bool = False) -> str:
    """The text up to where its first sentence ends; unless `explained`, up to where it begins to explain.

    Formulas are not cut.
    """
    found = formulas(text)
    for pattern in (_SENTENCE_END,) if explained else (_SENTENCE_END, _EXPLANATION):
        for match in pattern.finditer(text, 1):
            if not any(formula.start < match.start() < formula.end for formula in found):
                text = text[: match.start()]
                break
    return text


def chunks(phrase: str) -> list[str]:
    """The pieces of mathematics between the words of a phrase; the first and the last may be empty.

    "the interval [1, 2] of length 1" has "", "[1, 2]" and "1". Notation alone, such as "2x + 3 or 4", is one piece.
    """
    found = formulas(phrase)
    masked: list[str] = []
    position = 0
    for formula in found:
        masked += [phrase[position : formula.start].replace(_MASK, " "), _MASK]
        position = formula.end
    masked.append(phrase[position:].replace(_MASK, " "))
    values = iter([value(formula) for formula in found])
    return [
        _trimmed("".join(next(values) if char == _MASK else char for char in piece))
        for piece in _between_words("".join(masked))
    ]


def _between_words(text: str) -> list[str]:
    pieces: list[str] = []
    position = 0
    for match in _WORD.finditer(text):
        if match["other"] or (match["latin"] and _is_word(match["latin"])):
            pieces.append(text[position : match.start()])
            position = match.end()
    return [*pieces, text[position:]]


def _is_word(letters: str) -> bool:
    """Whether letters are a word, not a product of symbols, a function or the points of a figure."""
    if _NOT_WORDS.fullmatch(letters):
        return False
    return bool(_SHORT_WORDS.fullmatch(letters)) if len(letters) == 2 else not letters.isupper()


def _trimmed(piece: str) -> str:
    """A piece of notation without punctuation, quotes and lone brackets or dollar signs at its ends."""
    piece = _unpointed(piece)
    if piece[:1] not in ("[", "]"):  # ]0, 1[ is an interval
        piece = piece.rstrip("[")
    piece = piece.rstrip("({（").lstrip(")}）")
    while piece.endswith(("}", "）")) and piece.count("}") + piece.count("）") > piece.count(
        "{"
    ) + piece.count("（"):
        piece = piece[:-1].rstrip(_EDGE)
    if piece.endswith("$") or (piece.startswith("$") and not re.match(r"\$\s?[\d.]", piece)):
        piece = piece.strip("$")
    return _UNIT.sub("", _unpointed(piece))


def _unpointed(piece: str) -> str:
    """The piece without punctuation at its ends; the point of ".5" and the points of "0.33..." stay."""
    piece = piece.strip(_EDGE)
    if piece.startswith(".") and not piece[1:2].isdigit():
        piece = piece.lstrip(_EDGE + ".")
    if piece.endswith(".") and not piece.endswith("..."):
        piece = piece.rstrip(_EDGE + ".")
    return piece


def plain(phrase: str) -> str:
    """A phrase with formulas as their values, without punctuation at its ends."""
    parts: list[str] = []
    position = 0
    for formula in formulas(phrase):
        parts += [phrase[position : formula.start], value(formula)]
        position = formula.end
    return _trimmed("".join([*parts, phrase[position:]]))


def is_hedge(phrase: str) -> bool:
    """Whether a phrase offers one value or another amid its words, as in "57 or maybe 58"."""
    return bool(_EITHER.search(phrase)) and sum(has_value(piece) for piece in chunks(phrase)) > 1


def has_value(piece: str) -> bool:
    """Whether a piece of notation can be a value, rather than a letter that prose uses as a word."""
    return any(char.isdigit() or char == "\\" for char in piece) or len(re.findall(r"\w", piece)) > 1


def yes_or_no(text: str) -> str | None:
    """The word that settles a question, when a text begins with it."""
    match = _VERDICT.match(text)
    return match.group() if match else None


def lead(text: str) -> str | None:
    """The answer that a text begins with: notation, formulas, a choice, a number before its unit."""
    text = _FOREIGN_OR.sub(" or ", _FOREIGN_AND.sub(" and ", _PERCENT.sub("%", text[:2000])))
    phrase = _CLOSING_VERB.sub("", sentence(text))
    pieces = chunks(phrase)
    if len(pieces) == 1:
        return pieces[0] if re.search(r"\w", pieces[0]) else None
    choice = _CHOICE.match(phrase)
    if choice and not has_value(pieces[0]):
        return choice.group(1)
    # "57 or maybe 58" is no answer.
    if _TRAILING_JOIN.search(pieces[0]) or not has_value(pieces[0]):
        return None
    return pieces[0]


def last_number(text: str) -> str | None:
    """The last number in prose, a percent sign or word with it."""
    matches = list(_NUMBER.finditer(text))
    if not matches:
        return None
    number = matches[-1].group().strip()
    return number + "%" if number[-1].isdigit() and _PERCENT.match(text, matches[-1].end()) else number
