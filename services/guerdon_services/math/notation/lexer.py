"""Text to tokens, in one pass: what is the same in LaTeX, ASCII and Unicode mathematics gives the same tokens."""

import re
from typing import NamedTuple

from guerdon_services.math.notation.spelling import (
    ACCENTS,
    COMMANDS,
    CURRENCIES,
    DROPPED,
    ENGLISH,
    FONTS,
    FUNCTION_NAMES,
    TEXT_COMMANDS,
    WORDS,
    spelled,
)

#: Tokens that an answer may have; one more and it is not read.
MAX_TOKENS = 60_000

_LEXEME = re.compile(
    r"(?P<space>\s+|~)"
    r"|(?P<repeating>\d*\.\d*\\(?:dot\s*\{?\d\}?\d*\\dot\s*\{?\d\}?|(?:overline|bar|dot)\s*\{\s*\d{1,50}\s*\}))"
    r"|\\(?P<environment>begin|end)\s*\{\s*(?P<name>[a-zA-Z]+)\*?\s*\}(?:\s*\{[lcr|]+\})?"
    r"|\\(?P<command>[a-zA-Z]+)\*?"
    r"|\\(?P<escaped>.)"
    r"|(?P<grouped>(?<![\d._^])[1-9]\d{0,2}(?P<mark>\{(?:,|\\,)\}|,\s*\\!\s*|\\[,;:! ]|,|\s|~)"
    r"\d{3}(?:(?P=mark)\d{3})*(?:\.\d+)?(?!\d)(?!(?P=mark)\d)(?!\s*/))"
    r"|(?P<number>\d+(?:\.\d+)?(?:[eE][-+]?\d+(?![\d.]))?|\.\d+)"
    r"|(?P<word>[^\W\d_]+)"
    r"|(?P<operator><=|>=|!=|==|=>|->|\*\*|.)",
    re.DOTALL,
)
_BRACED = re.compile(r"\s*\{([^{}]*)\}")
_SIMPLE = re.compile(r"\s*[-+]?[\d.,/ ]*\d\s*")
_SEPARATORS = re.compile(r"[^0-9.]")
#: What follows a number, a command or a font, at the place where the lexer stands.
_DECIMALS = re.compile(r",(\d+)(?![\d,])")
_CYCLE = re.compile(r"\.?\(\d{1,50}\)(?=\s*(?:$|[,;$)\]}%=]))")
_DIGITS = re.compile(r"\d+")
_BARE_FRACTION = re.compile(r"\s*(\d)(?:\s*(\d)|(?=\s*\{))")
_ROW_SPACE = re.compile(r"\s*\[\s*-?[\d.]+\s*(?:pt|e[mx]|[mc]m|in|bp|pc)\s*\]")
_INVISIBLE = re.compile(r"\s*\.(?!\d)")
_ACCENTED = re.compile(r"\s*(?:\{\s*(\\[A-Za-z]+|[A-Za-z0-9]+)\s*\}|(\\[A-Za-z]+|[A-Za-z](?![A-Za-z])))")
_UNIT_VECTORS = frozenset({"i", "j", "k", r"\imath", r"\jmath"})
_NEGATED = re.compile(r"\s*(=|\\(?:in|equiv)(?![a-zA-Z]))")
_NAMED_SET = re.compile(r"\s*(?:\{\s*([A-Z])\s*\}|([A-Z]))(?:\s*[\^_]\s*\{?\s*([+*-])\s*\}?)?")
#: Brackets that enclose a list; braces of LaTeX only group.
_OPENING, _CLOSING = frozenset({"(", "[", r"\{"}), frozenset({")", "]", r"\}"})
_AFTER_BOLD = ("", ".", ",", "$", "*", "\\")
_MULTICHARACTER = {
    "<=": r"\leq",
    ">=": r"\geq",
    "!=": r"\neq",
    "==": "=",
    "=>": ",",
    "->": r"\to",
    "**": "^",
}


class Token(NamedTuple):
    """One token. `kind`: number, word, function, text (prose in a text command), environment, or mark for all others.

    `text` of a command keeps its backslash; `grouped` tells a number with thousands separators; `spaced` whether
    space came before it.
    """

    kind: str
    text: str
    spaced: bool = False
    grouped: bool = False


#: What a parser puts behind the last token.
END = Token("end", "")


class Unreadable(ValueError):
    """The text is no mathematics that can be read, or there is too much of it."""


def lex(text: str, *, decimal_comma: bool = False, thousands: bool = True) -> list[Token]:
    """The tokens of an answer, with delimiters, sizes and spacing commands left out.

    With `decimal_comma`, a comma between digits is a decimal point; without `thousands`, it always separates.

    Raises:
        Unreadable: there are more than MAX_TOKENS.
    """
    tokens: list[Token] = []
    lexer = _Lexer(spelled(text), tokens, decimal_comma, thousands)
    lexer.run()
    return tokens


class _Lexer:
    """The position in the text and the brackets around it."""

    def __init__(self, text: str, tokens: list[Token], decimal_comma: bool, thousands: bool) -> None:
        self._text = text
        self._tokens = tokens
        self._decimal_comma = decimal_comma
        self._thousands = thousands
        self._at: int = 0
        self._depth = 0
        self._spaced = False

    def run(self) -> None:
        length = len(self._text)
        while self._at < length:
            match = _LEXEME.match(self._text, self._at)
            if match is None:  # every character is a lexeme
                break
            self._at = match.end()
            self._take(match)
            if len(self._tokens) > MAX_TOKENS:
                raise Unreadable(f"more than {MAX_TOKENS} tokens")

    def _take(self, match: re.Match[str]) -> None:
        kind, found = match.lastgroup, match.group()
        if kind == "operator":  # the most frequent first
            self._operator(found)
        elif kind == "number":
            self._number(found)
        elif kind == "command":
            self._command(match.group("command"))
        elif kind == "space":
            self._spaced = True
        elif kind == "word":
            self._word(found)
        elif kind == "escaped":
            self._escaped(match.group("escaped"))
        elif kind == "repeating":
            before, _, cycle = found.partition("\\")
            self._add("number", f"{before}({re.sub(r'[^0-9]', '', cycle)})")
        elif kind == "name":
            self._environment(match)
        else:
            self._grouped(match)

    def _add(self, kind: str, text: str, *, grouped: bool = False) -> None:
        self._tokens.append(Token(kind, text, self._spaced, grouped))
        self._spaced = False

    def _number(self, found: str) -> None:
        if self._decimal_comma and not self._depth:
            rest = _DECIMALS.match(self._text, self._at)
            if rest and found.isdigit():
                self._at = rest.end()
                found = f"{found}.{rest.group(1)}"
        if self._text.startswith("(" if "." in found else ".(", self._at):
            cycle = _CYCLE.match(self._text, self._at)  # 0.1(6), 2.(3)
            if cycle:
                self._at = cycle.end()
                found += cycle.group()
        self._add("number", found)

    def _grouped(self, match: re.Match[str]) -> None:
        """A number such as 1,234,567: between brackets a plain comma separates."""
        found, comma = match.group(), match.group("mark") == ","
        in_list = re.fullmatch(r"\d,", self._text[max(0, match.start() - 2) : match.start()])
        if comma and (self._depth or not self._thousands or in_list):
            first = _DIGITS.match(self._text, match.start())
            assert first  # the group begins with a digit
            self._at = first.end()
            self._number(first.group())
            return
        self._add("number", _SEPARATORS.sub("", found), grouped=comma)

    def _word(self, found: str) -> None:
        if not found.isascii():
            self._add("mark" if found in WORDS else "text", WORDS.get(found, found))
            return
        spelling = WORDS.get(found) or WORDS.get(found.lower() if len(found) > 3 else found)
        if found == "U" and self._tokens and self._tokens[-1].text in _CLOSING:
            spelling = r"\cup"
        if (
            spelling is None
            and found in FUNCTION_NAMES
            and (found not in ENGLISH or self._text[self._at :][:1] == "(")
        ):
            self._add("function", found)
        else:
            self._add("mark" if spelling else "word", spelling or found)

    def _operator(self, found: str) -> None:
        if found == "$" or (found == "**" and not self._is_power()):
            return
        if found == "." and self._text.startswith("..", self._at):
            self._at += 2
            found = r"\dots"
        found = _MULTICHARACTER.get(found, found)
        if found in "()[]":
            self._bracket(found)
        self._add("mark", found)

    def _is_power(self) -> bool:
        """Whether `**` stands between two values; else it makes bold."""
        rest = self._text[self._at : self._at + 40].lstrip()
        return bool(self._tokens) and rest[:1] not in _AFTER_BOLD

    def _bracket(self, found: str) -> None:
        if found in _OPENING:
            self._depth += 1
        elif found in _CLOSING:
            self._depth -= 1

    def _escaped(self, character: str) -> None:
        if character in "{}":
            self._bracket("\\" + character)
            self._add("mark", "\\" + character)
        elif character in "\n,;:!> ":
            self._spaced = True
        elif character == "\\":
            space = _ROW_SPACE.match(self._text, self._at)
            self._at = space.end() if space else self._at
            self._add("mark", r"\\")
        elif character == "|":
            self._add("mark", "|")
        elif character in "%#&_^":
            self._add("mark", character)
        elif character == "$":
            self._add("mark", r"\$")

    def _environment(self, match: re.Match[str]) -> None:
        self._depth += 1 if match.group("environment") == "begin" else -1
        self._add("environment", match.group("name") if match.group("environment") == "begin" else "end")

    def _command(self, name: str) -> None:
        name = COMMANDS.get(name, name)
        if name in DROPPED:
            self._dropped(name)
        elif name in TEXT_COMMANDS:
            self._prose(name)
        elif name in FONTS or name in ACCENTS:
            self._font(name)
        elif name in ("lbrace", "rbrace"):
            self._escaped("{" if name == "lbrace" else "}")
        elif name == "mathbb":
            self._named_set()
        elif name.startswith("\\") or (len(name) == 1 and not name.isalpha()):  # spelled as another mark
            self._bracket(name)
            self._add("mark", name)
        elif name in FUNCTION_NAMES:
            self._add("function", name)
        elif name in ("and", "or"):
            self._add("mark", name)
        elif name == "not":
            self._negated()
        else:
            self._add("mark", "\\" + name)
            if name in ("frac", "binom"):
                self._digits_of_fraction()

    def _digits_of_fraction(self) -> None:
        """`\\frac34` as `\\frac{3}{4}`."""
        bare = _BARE_FRACTION.match(self._text, self._at)
        if bare:
            self._at = bare.end()
            for digit in filter(None, bare.groups()):
                for kind, text in (("mark", "{"), ("number", digit), ("mark", "}")):
                    self._add(kind, text)

    def _dropped(self, name: str) -> None:
        """Sizes and spacing; `\\left.` and `\\right.` take their invisible delimiter with them."""
        self._spaced = self._spaced or "quad" in name or "space" in name
        rest = _INVISIBLE.match(self._text, self._at)
        if rest and name in ("left", "right"):
            self._at = rest.end()
        elif name in (
            "phantom",
            "hphantom",
            "vphantom",
            "label",
            "tag",
            "color",
            "textcolor",
            "colorbox",
            "hspace",
            "vspace",
        ):
            braced = _BRACED.match(self._text, self._at)
            self._at = braced.end() if braced else self._at

    def _prose(self, name: str) -> None:
        """`\\text{…}`: mathematics when it holds a number or a letter, else prose."""
        braced = _BRACED.match(self._text, self._at)
        if braced is None:
            return
        inside = braced.group(1)
        word = inside.strip(" ~\t\n")
        if word in ("e", "i", "cis", "gcd", "lcm") or (
            name == "mathrm" and (word in FUNCTION_NAMES or word in ("d", "D", "P"))
        ):
            self._at = braced.end()
            self._word(word)
        elif "\\" in inside and re.search(r"\\[a-zA-Z]", inside):
            self._at = braced.start(1) - 1
        elif not any(character.isalnum() for character in word):
            self._at = braced.end()
            self._spaced = True
            if word in CURRENCIES:
                self._add("mark", word)
        elif name != "mathrm" and _SIMPLE.fullmatch(inside):
            self._at = braced.start(1) - 1  # braces and all: read as mathematics
        elif word in ("and", "or"):
            self._at = braced.end()
            self._add("mark", word)
        else:
            self._at = braced.end()
            self._spaced = self._spaced or inside[:1].isspace()
            self._add("text", " ".join(word.split()))

    def _font(self, name: str) -> None:
        """A font says nothing; an accent makes another name of what it stands on, but for an arrow."""
        found = _ACCENTED.match(self._text, self._at)
        if found is None:
            if name in ACCENTS:
                self._add("mark", "\\" + name)
            return
        inside = found.group(1) or found.group(2)
        if inside[1:] in FONTS or inside[1:] in ACCENTS:  # the next command says it
            return
        self._at = found.end()
        if name == "mathbf" and inside in ("R", "Z", "Q", "N", "C"):
            self._add("mark", f"\\mathbb{inside}")
        elif name == "hat" and inside in _UNIT_VECTORS:
            self._word(inside.removeprefix("\\")[:1])
        elif name in ACCENTS and not (name == "vec" and len(inside) == 1):
            self._add("mark", f"\\bar {inside}" if name in ("overline", "bar") else f"\\bar {name} {inside}")
        elif inside.startswith("\\"):
            self._command(inside[1:])
        elif inside.isdigit():
            self._number(inside)
        else:
            self._word(inside)

    def _negated(self) -> None:
        """`\\not=` and `\\not\\in`."""
        sign = _NEGATED.match(self._text, self._at)
        if sign:
            self._at = sign.end()
            self._add("mark", r"\neq" if sign.group(1) == "=" else rf"\not{sign.group(1)[1:]}")
        else:
            self._add("mark", r"\not")

    def _named_set(self) -> None:
        letter = _NAMED_SET.match(self._text, self._at)
        if letter is None:
            return
        self._at = letter.end()
        self._add("mark", f"\\mathbb{letter.group(1) or letter.group(2)}{letter.group(3) or ''}")
