"""Tables of what looks or means the same: Unicode characters, LaTeX commands, words."""

# The tables are about characters that look alike.
# ruff: noqa: RUF001

import re
import unicodedata

from guerdon_services.math.notation.escapes import decoded, single_commands
from guerdon_services.math.notation.variants import common

_CHARACTERS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-", "⁻": "^{-}", "×": "*", "✕": "*", "÷": "/", "·": "*",
    "⋅": "*", "∙": "*", "•": "*", "∗": "*", "⋆": "*", "⁄": "/", "∕": "/", "π": r"\pi ", "𝜋": r"\pi ", "∞": r"\infty ",
    "≤": r"\leq ", "≦": r"\leq ", "⩽": r"\leq ", "≥": r"\geq ", "≧": r"\geq ", "⩾": r"\geq ", "≠": r"\neq ",
    "≈": r"\approx ", "≡": r"\equiv ", "∈": r"\in ", "∉": r"\notin ", "∪": r"\cup ", "∩": r"\cap ",
    "∖": r"\setminus ",
    "±": r"\pm ", "∓": r"\mp ", "∅": r"\emptyset ", "°": "°", "º": "°", "√": r"\sqrt ", "∛": r"\sqrt[3] ",
    "∜": r"\sqrt[4] ", "∑": r"\sum ", "∏": r"\prod ", "∫": r"\int ", "→": r"\to ", "⇒": ",", "∧": " and ",
    "∨": " or ",
    "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℚ": r"\mathbb{Q}", "ℕ": r"\mathbb{N}", "ℂ": r"\mathbb{C}",
    "“": '"', "”": '"', "’": "'", "‘": "'", "′": "'", "″": "''", "，": ",", "、": ",", "；": ";", "：": ":", "（": "(",
    "）": ")", "．": ".", "。": ".", "【": "[", "】": "]", "⟨": "(", "⟩": ")", "〈": "(", "〉": ")", "⌊": r"\lfloor ",
    "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "…": r"\dots ", "⋯": r"\cdots ", "€": "€", "£": "£", "¥": "¥",
    "¢": " cents", "∀": r"\forall ", "∃": r"\exists ", "∥": r"\parallel ", "⊥": r"\perp ", "∠": r"\angle ",
    "△": r"\triangle ", "「": '"', "」": '"', "『": '"', "』": '"',
    "∶": ":", "元": "¥", "円": "¥", "￥": "¥", "或": " or ", "和": " and ", "且": " and ",
    "α": r"\alpha ", "β": r"\beta ",
    "γ": r"\gamma ", "δ": r"\delta ",
    "ε": r"\epsilon ", "θ": r"\theta ", "λ": r"\lambda ", "μ": r"\mu ", "ρ": r"\rho ", "σ": r"\sigma ", "τ": r"\tau ",
    "φ": r"\phi ", "ϕ": r"\phi ", "ω": r"\omega ", "Δ": r"\Delta ", "Ω": r"\Omega ", "Σ": r"\Sigma ", "Φ": r"\Phi ",
    "ı": "i", "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
    "⅕": r"\frac{1}{5}", "⅖": r"\frac{2}{5}", "⅗": r"\frac{3}{5}", "⅘": r"\frac{4}{5}", "⅙": r"\frac{1}{6}",
    "⅚": r"\frac{5}{6}", "⅐": r"\frac{1}{7}", "⅛": r"\frac{1}{8}", "⅜": r"\frac{3}{8}", "⅝": r"\frac{5}{8}",
    "⅞": r"\frac{7}{8}", "⅑": r"\frac{1}{9}", "⅒": r"\frac{1}{10}",
}  # fmt: skip
_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ"
_SUBSCRIPTS = "₀₁₂₃₄₅₆₇₈₉₊₋ₙ"
_PLAIN = "0123456789+-n"
_RAISED = re.compile(f"[{_SUPERSCRIPTS}]+")
_LOWERED = re.compile(f"[{_SUBSCRIPTS}]+")
_SUPERSCRIPT = str.maketrans(_SUPERSCRIPTS, _PLAIN)
_SUBSCRIPT = str.maketrans(_SUBSCRIPTS, _PLAIN)
_CIRCLED = {chr(0x2460 + index): f" {index + 1}," for index in range(20)}
#: Bold, italics and code around the whole.
_MARKDOWN = re.compile(r"\s*([*_`]{1,3})([^*_`](?:.*[^*_`])?)\1\s*", re.DOTALL)
_WIDE_OFFSET = 0xFEE0

#: Commands spelled as other commands or marks.
COMMANDS = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "sfrac": "frac", "nicefrac": "frac", "flatfrac": "frac",
    "rac": "frac", "dbinom": "binom", "tbinom": "binom",
    "leqslant": "leq", "leqq": "leq", "le": "leq", "geqslant": "geq", "geqq": "geq", "ge": "geq", "ne": "neq",
    "lt": "<", "gt": ">", "times": "*", "cdot": "*", "ast": "*", "bullet": "*", "div": "/",
    "cupdot": "cup", "bigcup": "cup", "sqcup": "cup", "bigcap": "cap", "varnothing": "emptyset", "empty": "emptyset",
    "lbrack": "[", "rbrack": "]", "lBrace": "lbrace", "rBrace": "rbrace", "vert": "|", "lvert": "|", "rvert": "|",
    "Vert": "|", "lVert": "|", "rVert": "|", "mid": "|", "colon": ":", "langle": "(", "rangle": ")", "lparen": "(",
    "rparen": ")", "degree": "°", "textdegree": "°", "rightarrow": "to", "longrightarrow": "to", "mapsto": "to",
    "smallsetminus": "setminus", "backslash": "setminus", "ldots": "dots", "dotsc": "dots", "hdots": "dots",
    "dotsb": "cdots", "thickapprox": "approx", "simeq": "approx", "sim": "approx", "lnot": "neg", "infin": "infty",
    "varepsilon": "epsilon", "varphi": "phi", "vartheta": "theta", "varrho": "rho", "varsigma": "sigma",
    "land": "and", "wedge": "and", "lor": "or", "vee": "or", "iff": "Leftrightarrow", "implies": ",",
    "Rightarrow": ",", "ln": "ln", "lg": "lg", "arctg": "arctan", "tg": "tan", "ctg": "cot", "cosec": "csc",
    "sh": "sinh", "ch": "cosh", "th": "tanh", "permil": "‰", "textpercent": "%", "pounds": "£", "euro": "€",
    "yen": "¥",
    "textasciicircum": "^", "cr": "\\\\", "Bbb": "mathbb", "mod": "pmod", "bmod": "pmod", "newline": "quad",
    "dollar": "quad", "textdollar": "quad", "prime": "'",
}  # fmt: skip
#: Signs of currencies and the unit that each is; for other marks than dollar and euro the sign itself.
CURRENCIES = {r"\$": "dollar", "€": "euro", "£": "£", "¥": "¥", "₹": "rupee", "₽": "₽", "₩": "₩"}
#: Commands that say nothing about the value: sizes, spaces, boxes.
DROPPED = frozenset(
    {
        "left", "right", "middle", "big", "Big", "bigg", "Bigg", "bigl", "bigr", "bigm", "Bigl", "Bigr",
        "Bigm", "biggl", "biggr", "biggm", "Biggl", "Biggr", "Biggm", "displaystyle", "textstyle",
        "scriptstyle", "scriptscriptstyle", "limits", "nolimits", "quad", "qquad", "enspace", "thinspace",
        "medspace", "thickspace", "negthinspace", "hfill", "hspace", "vspace", "phantom", "hphantom",
        "vphantom", "boxed", "fbox", "label", "tag", "nonumber", "notag", "color", "relax", "strut",
        "mathstrut", "centering", "noindent", "bf", "rm", "it", "sf", "tt", "em", "par", "allowbreak",
        "nobreak", "large", "Large", "LARGE", "huge", "Huge", "small",
        "tiny", "normalsize", "footnotesize", "textcolor", "colorbox", "ensuremath",
    }
)  # fmt: skip
TEXT_COMMANDS = frozenset(
    {
        "text", "textbf", "textit", "textrm", "textsf", "texttt", "textnormal", "textup", "mbox", "emph",
        "hbox", "mathrm", "mathsf", "mathtt",
    }
)  # fmt: skip
FONTS = frozenset(
    {
        "mathbf", "mathit", "boldsymbol", "bm", "operatorname", "mathcal", "mathord", "mathop", "mathscr",
        "mathfrak", "underline",
    }
)  # fmt: skip
ACCENTS = frozenset(
    {
        "overline", "bar", "hat", "vec", "dot", "ddot", "tilde", "widehat", "widetilde", "overrightarrow",
        "overleftarrow",
    }
)  # fmt: skip

#: Functions by every name that they have, and the name that trees use.
FUNCTION_NAMES = {
    **{name: name for name in (
        "sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "coth", "sech", "csch", "exp", "ln", "log",
        "gcd", "lcm", "max", "min", "sign",
    )},
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arccot": "acot", "arcsec": "asec", "arccsc": "acsc",
    "asin": "asin", "acos": "acos", "atan": "atan", "acot": "acot", "arcsinh": "asinh", "arccosh": "acosh",
    "arctanh": "atanh", "arsinh": "asinh", "arcosh": "acosh", "artanh": "atanh", "asinh": "asinh", "acosh": "acosh",
    "atanh": "atanh", "lg": "lg", "abs": "abs", "floor": "floor", "ceil": "ceil", "factorial": "factorial",
    "sgn": "sign", "binomial": "binomial", "Re": "re", "Im": "im", "arg": "arg", "conj": "conjugate", "Arg": "arg",
    "cbrt": "cbrt", "cis": "cis", "arctg": "atan", "tg": "tan", "ctg": "cot",
}  # fmt: skip

#: Names of functions that are also words; they are functions where a parenthesis follows.
ENGLISH = frozenset(
    {"floor", "ceil", "abs", "sign", "arg", "Arg", "factorial", "binomial", "max", "min", "sec", "conj"}
)

#: Words that stand for a mark.
WORDS = {
    "sqrt": r"\sqrt", "pi": r"\pi", "infinity": r"\infty", "infty": r"\infty", "inf": r"\infty", "oo": r"\infty",
    "and": "and", "or": "or", "und": "and", "oder": "or", "и": "and",
    "или": "or", "frac": r"\frac", "rac": r"\frac", "dfrac": r"\frac", "union": r"\cup",
    "theta": r"\theta", "alpha": r"\alpha", "beta": r"\beta", "lambda": r"\lambda", "degrees": "°", "degree": "°",
    "deg": "°", "percent": "%", "percentage": "%", "pct": "%",
}  # fmt: skip


def spelled(text: str) -> str:
    """The text in ASCII LaTeX, its HTML entities and doubled backslashes undone."""
    marked = _MARKDOWN.fullmatch(text)
    if marked:
        text = marked.group(2)
    text = single_commands(decoded(text.replace("{:}", ":")))
    if text.isascii():
        return common(text)
    text = unicodedata.normalize("NFC", text)
    text = _RAISED.sub(lambda run: "^{" + run.group().translate(_SUPERSCRIPT) + "}", text)
    text = _LOWERED.sub(lambda run: "_{" + run.group().translate(_SUBSCRIPT) + "}", text)
    return common("".join(map(_ascii, text)))


def _ascii(character: str) -> str:
    if character.isascii():
        return character
    known = _CHARACTERS.get(character) or _CIRCLED.get(character)
    if known is not None:
        return known
    category = unicodedata.category(character)
    if category == "Cf":  # zero-width marks
        return ""
    if category == "Nd":
        return str(unicodedata.decimal(character))
    if category == "Zs":
        return " "
    code = ord(character)
    if 0xFF01 <= code <= 0xFF5E:  # full width
        return chr(code - _WIDE_OFFSET)
    if 0x1D400 <= code <= 0x1D7FF:  # mathematical alphabets
        return unicodedata.normalize("NFKC", character)
    return character
