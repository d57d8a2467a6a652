"""One spelling for each way of writing the same LaTeX: linear passes over the text, no parsing."""

# The table below is about characters that look alike.
# ruff: noqa: RUF001

import re
import unicodedata

_UNICODE = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "﹣": "-", "×": r"\times ", "÷": "/", "·": r"\cdot ", "⋅": r"\cdot ",
    "∙": r"\cdot ", "∗": "*", "π": r"\pi ", "∞": r"\infty ", "≤": r"\leq ", "≦": r"\leq ", "⩽": r"\leq ",
    "≥": r"\geq ", "≧": r"\geq ", "⩾": r"\geq ", "≠": r"\neq ", "≈": r"\approx ", "∈": r"\in ", "∪": r"\cup ",
    "∩": r"\cap ", "±": r"\pm ", "∓": r"\mp ", "∅": r"\emptyset ", "°": r"^{\circ}", "√": r"\sqrt ", "θ": r"\theta ",
    "α": r"\alpha ", "β": r"\beta ", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "“": '"', "”": '"', "’": "'", "‘": "'",
    "′": "'", "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}", "⅕": r"\frac{1}{5}", "⅖": r"\frac{2}{5}", "⅗": r"\frac{3}{5}", "⅘": r"\frac{4}{5}",
    "⅙": r"\frac{1}{6}", "⅚": r"\frac{5}{6}", "⅛": r"\frac{1}{8}", "⅜": r"\frac{3}{8}", "⅝": r"\frac{5}{8}",
    "⅞": r"\frac{7}{8}", "⁄": "/", "∕": "/", "，": ",", "；": ";", "：": ":", "（": "(", "）": ")", "．": ".",
}  # fmt: skip
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_SUPERSCRIPT_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")

_PASSES: list[tuple[re.Pattern[str], str]] = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r",\s*\\!\s*|\{,\}", ","),  # thousands as TeX typesets them
        (r"\\(?:boxed|fbox)\b", ""),
        (r"(?<!\\)\\[()\[\]]", ""),
        (r"\\\$|\$", ""),
        (r"\\(?:left|right)\s*\.", ""),
        (
            r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|scriptstyle|limits|nolimits)(?![a-zA-Z])",
            "",
        ),
        (r"(?<!\\)\\[,;:! ]|~|\\q?quad(?![a-zA-Z])", " "),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\[dt]binom(?![a-zA-Z])", r"\\binom"),
        (r"\\(?:leqslant|leqq|le)(?![a-zA-Z])|<=", r"\\leq "),
        (r"\\(?:geqslant|geqq|ge)(?![a-zA-Z])|>=", r"\\geq "),
        (r"\\lt(?![a-zA-Z])", "<"),
        (r"\\gt(?![a-zA-Z])", ">"),
        (r"\\ne(?![a-zA-Z])|!=", r"\\neq "),
        (r"\\(?:cupdot|bigcup|sqcup)(?![a-zA-Z])", r"\\cup"),
        (r"\\(?:varnothing|empty)(?![a-zA-Z])", r"\\emptyset"),
        (r"\\l[bB]race(?![a-zA-Z])", r"\\{"),
        (r"\\r[bB]race(?![a-zA-Z])", r"\\}"),
        (r"\\\{\s*\\\}", r"\\emptyset "),
        (r"\\[lr]vert(?![a-zA-Z])|\\vert(?![a-zA-Z])", "|"),
        (r"\\mid(?![a-zA-Z])", "|"),
        (
            r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z])|\{\s*\\degree\s*\})|\\degree(?![a-zA-Z])",
            r"^{\\circ}",
        ),
        (r"\\(?:textbf|textit|textrm|textsf|texttt|textnormal|textup|mbox|emph|hbox)(?![a-zA-Z])", r"\\text"),
        (
            r"\\(?:mathbf|mathit|mathsf|mathtt|boldsymbol|bm|operatorname|mathcal|mathord)\*?\s*\{([^{}]*)\}",
            r"\1",
        ),
        (r"\\(?:mathrm|rm)\s*\{\s*([eidCP]|exp|log|ln|sin|cos|tan)\s*\}", r"\1 "),
        (r"\\mathrm(?![a-zA-Z])", r"\\text"),
        (r"\\frac\s*([0-9a-zA-Z])\s*([0-9a-zA-Z])", r"\\frac{\1}{\2}"),
        (r"\\frac\s*([0-9a-zA-Z])\s*\{", r"\\frac{\1}{"),
        (r"\\frac\s*(\{[^{}]*\})\s*([0-9a-zA-Z])", r"\\frac\1{\2}"),
        (r"\\frac\s+\{", r"\\frac{"),
        (r"\\sqrt\s*([0-9a-zA-Z])", r"\\sqrt{\1}"),
        (r"\\sqrt\s+([\[{])", r"\\sqrt\1"),
        (r"\\%", "%"),
        (r"\*\*", "^"),
        (r"(?<![\\a-zA-Z])pi(?![a-zA-Z])", r"\\pi "),
        (r"(?<![\\a-zA-Z])(?:infinity|inf|oo)(?![a-zA-Z])", r"\\infty "),
        (r"\+\s*\\infty", r"\\infty"),
        (r"(?<![\\a-zA-Z])((?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|log|ln|exp)\s*(?=\()", r"\\\1"),
        (r"\\text\{\s*(and|or)\s*\}", r" \1 "),
    )
]
#: Marks, braces and commands around an answer that are taken off.
_MAX_WRAPPERS = 20
_SPACES = re.compile(r"\s+")
_WHOLE_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_DOUBLE_BACKSLASH = re.compile(r"\\\\(?=[a-zA-Z()\[\]{}])")
_ANSWER_WORD = re.compile(r"^(?:the )?(?:final )?answer(?: is)?\b\s*:?\s*(?=\S)", re.IGNORECASE)
_ONE_CHARACTER = re.compile(r"\{([0-9a-zA-Z])\}")
_INTRODUCTION = re.compile(
    r"^\\text\s*\{(?![^{}]*\bnot\b)[^{}]*(?:\bis|\bare|:|=)\s*\}\s*(?=\S)", re.IGNORECASE
)
_BETWEEN_DIGITS = re.compile(r"(?<=\d) (?=\d)")
#: A decimal whose last digits repeat for ever; longer ones stay as they are.
_REPEATING = re.compile(r"(?<!\d)(\d{0,50})\.(\d{0,50})\\overline\s*\{\s*(\d{1,50})\s*\}")
_SQRT_OF_NUMBER = re.compile(r"√\s*(\d+(?:\.\d+)?)")
_SQRT_CALL = re.compile(r"(?<![\\a-zA-Z])sqrt\s*\(")


def normalise(text: str) -> str:
    """The text in one spelling: ASCII operators and digits, one name per command, no delimiters or spacing."""
    if "\\begin" not in text:  # JSON-escaped twice; in a matrix two backslashes end a row
        text = _DOUBLE_BACKSLASH.sub(r"\\", text)
    text = _SQRT_OF_NUMBER.sub(r"\\sqrt{\1}", text)
    text = "".join(map(_ascii, text)) if not text.isascii() else text
    text = _SUPERSCRIPT_RUN.sub(lambda run: "^{" + run.group().translate(_SUPERSCRIPTS) + "}", text)
    for pattern, replacement in _PASSES:
        text = pattern.sub(replacement, text)
    text = _REPEATING.sub(_fraction, _plain_roots(text))
    text = _SPACES.sub(" ", text).strip()
    return _unwrap(_INTRODUCTION.sub("", _ANSWER_WORD.sub("", text)))


def key(normalised: str) -> str:
    """What two normalised texts must share to be the same string: spaces and the case of words do not count."""
    bare = _ONE_CHARACTER.sub(r"\1", _BETWEEN_DIGITS.sub("\0", normalised).replace(" ", ""))
    return bare.lower() if is_words(normalised) else bare


def is_words(normalised: str) -> bool:
    """Whether the text is prose or a name and no formula: letters only, with a word of three letters or more."""
    plain = _WHOLE_TEXT.sub(r"\1", normalised)
    return re.fullmatch(r"[A-Za-z][A-Za-z'’ .,;:!?-]*", plain) is not None and bool(
        re.search(r"[A-Za-z]{3,}", plain) or plain.lower() in ("no",)
    )


def _ascii(character: str) -> str:
    if character in _UNICODE:
        return _UNICODE[character]
    if character.isascii():
        return character
    category = unicodedata.category(character)
    if category == "Cf":  # zero-width marks
        return ""
    if category == "Nd":
        return str(unicodedata.decimal(character))
    if category == "Zs":
        return " "
    code = ord(character)
    return chr(code - 0xFEE0) if 0xFF01 <= code <= 0xFF5E else character


def _fraction(match: re.Match[str]) -> str:
    """`0.1\\overline{6}` as `\\frac{15}{90}`."""
    whole, places, cycle = match.groups()
    numerator = int(whole + places + cycle) - int(whole + places or "0")
    return f"\\frac{{{numerator}}}{{{(10 ** len(cycle) - 1) * 10 ** len(places)}}}"


def _plain_roots(text: str) -> str:
    """`sqrt(x)` as `\\sqrt{x}`, where the parenthesis closes."""
    match = _SQRT_CALL.search(text)
    for _ in range(20):
        if match is None:
            break
        end = _closing(text, match.end() - 1)
        if end < 0:
            break
        text = f"{text[: match.start()]}\\sqrt{{{text[match.end() : end]}}}{text[end + 1 :]}"
        match = _SQRT_CALL.search(text)
    return text


def _closing(text: str, start: int) -> int:
    """Index of the bracket that closes the one at `start`, or -1."""
    depth = 0
    for index in range(start, len(text)):
        if text[index] in "([{":
            depth += 1
        elif text[index] in ")]}":
            depth -= 1
            if depth == 0:
                return index
    return -1


def _unwrap(text: str) -> str:
    """Drops what surrounds the whole answer: sentence marks, redundant braces, a `\\text{}` around all of it."""
    for _ in range(_MAX_WRAPPERS):
        stripped = text.strip()
        stripped = stripped.rstrip("\\").rstrip()
        if stripped[-1:] in (".", ";", ",") and not stripped.endswith(".."):
            stripped = stripped[:-1].rstrip()
        whole = _WHOLE_TEXT.fullmatch(stripped)
        if whole:
            stripped = whole.group(1).strip()
        elif stripped.startswith("{") and _closing(stripped, 0) == len(stripped) - 1 and "," not in stripped:
            stripped = stripped[1:-1]
        if stripped == text:
            break
        text = stripped
    return text
