r"""Spellings that few use, in the one that all others share: C_{10}^{3}, 6.02 x 10^23, 1'000'000, ^3/_4, 60^o."""

import re

#: One of these is in each of the spellings below; a text without them is left alone.
_MARKS = re.compile(
    r"[xXCAP'._+^R/U](?:(?<=[xX]) ?10|(?<=[CAP])\}? ?[_^]|(?<=['._])\d{3}(?!\d)|(?<=\+)/-|(?<=\^)\{?o|(?<=R)s|(?<=/)_"
    r"|(?<=U)S ?\\?\$)"
)
#: With a numeral for exponent: in 3x 10^x the first x is no sign.
_BY_TEN = re.compile(r"(?<=\d)\s*[xX]\s*(?=10\s*(?:\^|\*\*)\s*[{(]?\s*[-+]?\s*\d)")
_LETTER = r"(?:\\(?:mathrm|text)\s*\{\s*(?P<upright>[CAP])\s*\}|(?P<letter>[CAP]))"
_UPRIGHT = rf"(?<![a-zA-Z\\]){_LETTER}"
_N, _K = r"\s*(?:\{\s*(?P<n>\d{1,4})\s*\}|(?P<n1>\d))", r"\s*(?:\{\s*(?P<k>\d{1,4})\s*\}|(?P<k1>\d))"
#: C_{10}^{3}, C^{3}_{10}, {}_{10}C_{3}: only of numerals, since C_n^2 may be the square of a constant.
_CHOICES = (
    re.compile(rf"{_UPRIGHT}\s*_{_N}\s*\^{_K}(?![\d!^])"),
    re.compile(rf"{_UPRIGHT}\s*\^{_K}\s*_{_N}(?![\d!^])"),
    re.compile(rf"(?:\{{\}}\s*|(?<![\w}})\]]))[_^]{_N}\s*{_LETTER}\s*_{_K}(?![\d!^])"),
)
_SLANTED = re.compile(r"\^\s*\{?(\d{1,4})\}?\s*/\s*_\s*\{?(\d{1,4})\}?")
#: Thousands by points, apostrophes or underscores, where a single group could be something else.
_GROUPS = re.compile(
    r"(?<![\w.,'])[1-9]\d{0,2}(?:(?:'\d{3})+|(?:_\d{3}){2,}|(?:\.\d{3}){2,}(?:,\d+)?)(?![\w'])(?!\.\d)(?!,\d)"
    r"|(?<![\w.,'])[1-9]\d{0,2}(?:'\d{3})+\.\d+(?![\w'])"
)
_DEGREES = re.compile(r"(?<=\d)\^\s*(?:\{\s*o\s*\}|o(?![a-zA-Z]))")
_RUPEES = re.compile(r"(?<![a-zA-Z])Rs\.?\s*(?=\d)")
#: With a decimal comma: 1.234,56 and 1 234,56.
_CONTINENTAL = re.compile(r"(?<![\d.,])([1-9]\d{0,2}(?:[. ]\d{3})+),(\d+)(?![\d.,])")
#: Lakhs and crores: 12,34,567.
_LAKHS = re.compile(r"(?<![\d.,])[1-9]\d?(?:,\d{2})+,\d{3}(?![\d,])")
#: 12,34,567 in these is a tuple or a set.
_BRACKETED = re.compile(r"[(\[]|\\\{|\\[lb]?brace")
_CALLED = re.compile(r"\s*\$*\s*([CPA])\s*\(\s*(\d{1,4})\s*,\s*(\d{1,4})\s*\)\s*\$*\s*")


def common(text: str) -> str:
    """A text in ASCII with its rare spellings replaced."""
    if not _MARKS.search(text) and not text.startswith("^"):
        return text
    text = _BY_TEN.sub("*", text)
    for pattern in _CHOICES:
        text = pattern.sub(_chosen, text)
    text = _GROUPS.sub(_ungrouped, text)
    text = _SLANTED.sub(r"\\frac{\1}{\2}", text)
    text = _DEGREES.sub(r"^{\\circ}", text)
    text = text.replace("US$", "$").replace(r"US\$", r"\$")
    return _RUPEES.sub("₹", text).replace("+/-", r"\pm ")


def with_decimal_point(text: str) -> str:
    """`1.234,56` as 1234.56."""
    return _CONTINENTAL.sub(lambda found: re.sub(r"[. ]", "", found.group(1)) + "." + found.group(2), text)


def as_one_number(text: str) -> str | None:
    """A number that could also be a list or a point: 12,34,567 as 1234567, C(10, 3) as 120; None for all else."""
    called = _CALLED.fullmatch(text) if "(" in text else None
    if called:
        letter, n, k = called.groups()
        # P(3, 1) or C(3, 2) as a number would be met by one coordinate of the point.
        return _counted(letter, n, k) if 2 <= int(k) <= int(n) - 2 else None
    found = _LAKHS.search(text) if text.count(",") > 1 and not _BRACKETED.search(text) else None
    return text.replace(found.group(), found.group().replace(",", "")) if found else None


def _ungrouped(found: re.Match[str]) -> str:
    whole, comma, places = found.group().partition(",")
    if "'" in whole:
        return whole.replace("'", "")
    return re.sub(r"[._]", "", whole) + ("." if comma else "") + places


def _chosen(found: re.Match[str]) -> str:
    count = _counted(
        found["letter"] or found["upright"], found["n"] or found["n1"], found["k"] or found["k1"]
    )
    return found.group() if count is None else count


def _counted(letter: str, n: str, k: str) -> str | None:
    """Combinations (C) or arrangements (A, P) of k among n; None where k is more than n."""
    if int(k) > int(n):
        return None
    if letter == "C":
        return rf"\binom{{{n}}}{{{k}}}"
    return rf"\frac{{{n}!}}{{{int(n) - int(k)}!}}"
