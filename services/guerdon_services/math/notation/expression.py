"""Tokens to expression trees: a recursive descent over what one value of an answer may be."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from guerdon_services.math.notation import commands, functions
from guerdon_services.math.notation.brackets import AROUND_VALUES
from guerdon_services.math.notation.lexer import END, MAX_TOKENS, Token, Unreadable
from guerdon_services.math.notation.numerals import letter, number, primed, with_index
from guerdon_services.math.notation.tree import (
    MINUS_ONE,
    Add,
    Apply,
    Call,
    Constant,
    Mul,
    Node,
    Number,
    Pow,
    Symbol,
    is_within,
    negated,
    quotient,
)

#: Levels of the finished tree, of which signs after a value make one each, and nodes in it.
MAX_HEIGHT = 100
_MAX_NODES = 8 * MAX_TOKENS
#: Levels of nesting of one expression.
_MAX_DEPTH = 60
#: Exponents, factorials and other signs after one value.
_MAX_POSTFIX = 20
#: Letters of a word that still is a product of variables.
_MAX_LETTERS = 4
_POSTFIX, _ENDING = frozenset("^!°%'"), frozenset({"", "+", "-", ")", "}", "]"})
#: Brackets that begin a factor, and the functions that they are.
_BRACKETS = {"(": "", "[": "", "{": "", r"\lfloor": "floor", r"\lceil": "ceil"}
#: Names that are functions when a parenthesis follows; all other letters are factors.
_APPLIED = frozenset("fghFGH")
_LETTERS = frozenset(
    {
        r"\alpha", r"\beta", r"\gamma", r"\delta", r"\epsilon", r"\zeta", r"\eta", r"\theta", r"\iota",
        r"\kappa", r"\lambda", r"\mu", r"\nu", r"\xi", r"\rho", r"\sigma", r"\tau", r"\upsilon", r"\phi",
        r"\chi", r"\psi", r"\omega", r"\Gamma", r"\Delta", r"\Theta", r"\Lambda", r"\Xi", r"\Pi",
        r"\Sigma", r"\Upsilon", r"\Phi", r"\Psi", r"\Omega", r"\ell", r"\hbar", r"\nabla", r"\partial",
    }
)  # fmt: skip
_COMMANDS = frozenset(
    {r"\frac", r"\sqrt", r"\binom", r"\sum", r"\prod", r"\int", r"\lim", r"\pi", r"\infty", r"\emptyset"}
)


@dataclass(frozen=True, slots=True)
class Reading:
    """What notation leaves open: whether 1/2x is 1/(2x), and whether \\log is the decadic logarithm."""

    tight: bool = True
    decadic: bool = False


#: Every way to read an expression, the usual one first.
READINGS = (Reading(), Reading(tight=False), Reading(decadic=True), Reading(tight=False, decadic=True))


def parse(tokens: Sequence[Token], reading: Reading = READINGS[0]) -> Node:
    """The expression that all the tokens are.

    Raises:
        Unreadable: they are none, or it is nested too deeply.
    """
    if len(tokens) == 1 and tokens[0].kind == "number":
        return number(tokens[0].text)
    parser = Parser([*tokens, END], reading)
    node = parser.whole()
    if not parser.done:
        raise Unreadable(f"cannot read {parser.peek()!r}")
    # No token adds more than two levels.
    if 2 * len(tokens) > MAX_HEIGHT and not is_within((node,), nodes=_MAX_NODES, height=MAX_HEIGHT):
        raise Unreadable(f"more than {MAX_HEIGHT} levels or {_MAX_NODES} nodes")
    return node


class Parser:
    """A position in the tokens of one expression."""

    def __init__(self, tokens: list[Token], reading: Reading) -> None:
        self.tokens = tokens
        self.reading = reading
        self.at = 0
        #: Whether an angle is being read: there a degree is pi/180.
        self.angle = False
        self._depth = 0
        #: Absolute values that are open: there a bar closes one.
        self._inside_bars = 0

    @property
    def done(self) -> bool:
        """Whether no token is left."""
        return self.tokens[self.at].kind == END.kind

    def peek(self, ahead: int = 0) -> str:
        """The text of a coming token; "" past the end."""
        return (
            self.tokens[min(self.at + ahead, len(self.tokens) - 1)].text
            if ahead
            else self.tokens[self.at].text
        )

    def kind(self, ahead: int = 0) -> str:
        """The kind of a coming token; "" past the end."""
        return (
            self.tokens[min(self.at + ahead, len(self.tokens) - 1)].kind
            if ahead
            else self.tokens[self.at].kind
        )

    def accept(self, text: str) -> bool:
        """Take the next token when it is this one."""
        token = self.tokens[self.at]
        if token.text == text and token.kind != "text":
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        """Take the next token, which must be this one."""
        if not self.accept(text):
            raise Unreadable(f"{text!r} is missing")

    def enter(self) -> None:
        """Go one level deeper.

        Raises:
            Unreadable: that is one too deep.
        """
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise Unreadable(f"more than {_MAX_DEPTH} levels")

    def leave(self) -> None:
        """Come back from a level; a parser that failed is not used again."""
        self._depth -= 1

    def whole(self) -> Node:
        """A sum, or two of them with `\\choose` or `\\over` between."""
        node = self.sum()
        if self.accept(r"\choose"):
            return Call("binomial", (node, self.sum()))
        return quotient(node, self.sum()) if self.accept(r"\over") else node

    def sum(self) -> Node:
        """Terms with signs between them."""
        self.enter()
        terms = [self._term()]
        while self.peek() in ("+", "-") and self.kind() == "mark":
            terms.append(self._term())
        self.leave()
        return terms[0] if len(terms) == 1 else Add(tuple(terms))

    def _term(self) -> Node:
        negative = False
        while self.peek() in ("+", "-"):
            negative ^= self.peek() == "-"
            self.at += 1
        product = self.product()
        return negated(product) if negative else product

    def product(self) -> Node:
        """Factors with `*` and `/` between them, or nothing."""
        factors = [self.juxtaposed()]
        while True:
            if self.tokens[self.at].text in _ENDING:
                return factors[0] if len(factors) == 1 else Mul(tuple(factors))
            if self.accept("*"):
                factors.append(self._signed(self.juxtaposed))
            elif self.accept("/"):
                below = self._signed(self.juxtaposed if self.reading.tight else self.power)
                factors.append(Pow(below, MINUS_ONE))
            elif self.starts_factor():
                factors.append(self.juxtaposed())
            else:
                return factors[0] if len(factors) == 1 else Mul(tuple(factors))

    def _signed(self, rest: "functions.Rule") -> Node:
        negative = False
        while self.peek() in ("+", "-"):
            negative ^= self.peek() == "-"
            self.at += 1
        node = rest()
        return negated(node) if negative else node

    def juxtaposed(self, *, stop_at_functions: bool = False) -> Node:
        """Factors that simply follow each other; a whole number before a fraction is a mixed number."""
        first = self.at
        factors = [self.power()]
        while self.starts_factor() and not (stop_at_functions and self._ends_argument(factors[-1])):
            if self.kind() == "number" and self.tokens[self.at - 1].kind == "number" and self.at - 1 == first:
                factors[-1] = self._mixed(factors[-1])
            elif (
                self.kind() == "number"
                and self.tokens[self.at - 1].kind == "number"
                and isinstance(factors[-1], Number)
            ):
                raise Unreadable("two numbers without a sign between them")
            else:
                above = self.at
                factor = self.power()
                factors.append(factor)
                if (
                    above == first + 1
                    and self.tokens[above].text == r"\frac"
                    and self.tokens[first].kind == "number"
                ):
                    factors = self._with_fraction(factors)
            first = first if len(factors) == 1 else -1
        return factors[0] if len(factors) == 1 else Mul(tuple(factors))

    def _ends_argument(self, last: Node) -> bool:
        """Whether an argument without brackets ends here: sin x cos y, sin x (a + b), but sin 2(x + 1)."""
        return self.starts_function() or (self.peek() == "(" and not isinstance(last, Number))

    def _mixed(self, whole: Node) -> Node:
        """`1 1/2`: the whole has been read."""
        if not (self.kind(2) == "number" and self.peek(1) == "/" and self.tokens[self.at].spaced):
            raise Unreadable("two numbers without a sign between them")
        above, below = number(self.peek()), number(self.peek(2))
        self.at += 3
        return Add((whole, quotient(above, below)))

    @staticmethod
    def _with_fraction(factors: list[Node]) -> list[Node]:
        whole, fraction = factors
        match whole, fraction:
            case Number(value, places), Mul((Number(), Pow(Number(), Number(minus)))) if minus == -1:
                if places is None and value.denominator == 1 and value >= 0:
                    return [Add((whole, fraction))]
            case _:
                pass
        return factors

    def starts_factor(self) -> bool:
        """Whether a factor follows."""
        token = self.tokens[self.at]
        kind, text = token.kind, token.text
        if kind in ("number", "word", "function") or (kind == "text" and len(text) == 1):
            return True
        return kind == "mark" and (
            text in _BRACKETS
            or text in _COMMANDS
            or text in _LETTERS
            or text.startswith(r"\bar")
            or (text == "|" and not self._inside_bars)
        )

    def starts_function(self) -> bool:
        """Whether a named function follows."""
        return functions.is_function(self.tokens[self.at])

    def power(self) -> Node:
        """A factor with its exponents, factorials, degrees and percent signs."""
        node = self.primary()
        for _ in range(_MAX_POSTFIX):
            if self.tokens[self.at].text not in _POSTFIX:
                return node
            if self.peek() == "^" and self.kind() == "mark":
                self.at += 1
                node = self._raised(node)
            elif self.accept("!"):
                node = Call("double_factorial" if self.accept("!") else "factorial", (node,))
            elif self.accept("°"):
                node = self._degrees(node)
            elif self.accept("%"):
                node = quotient(node, Number(Fraction(100)))
            elif self.accept("'"):
                node = primed(node)
            else:
                return node
        raise Unreadable(f"more than {_MAX_POSTFIX} signs after a value")

    def _degrees(self, node: Node) -> Node:
        return Mul((node, quotient(Constant("pi"), Number(Fraction(180))))) if self.angle else node

    def _raised(self, base: Node) -> Node:
        if self.peek() in (r"\circ", "°") or (self.peek() == "{" and self.peek(1) in (r"\circ", "°")):
            self.at += 3 if self.peek() == "{" else 1
            return self._degrees(base)
        if self.peek() == "'" or (self.peek() == "{" and self.peek(1) == "'"):
            self.at += 3 if self.peek() == "{" else 1
            return primed(base)
        return Pow(base, self.exponent())

    def exponent(self) -> Node:
        """What stands after `^`: a group, a sign and a factor, or one factor; a further `^` belongs to it."""
        return self._signed(self._unsigned_exponent)

    def _unsigned_exponent(self) -> Node:
        self.enter()
        node = self.argument(whole_numbers=True)
        node = Pow(node, self.exponent()) if self.accept("^") else node
        self.leave()
        return node

    def argument(self, *, whole_numbers: bool = False) -> Node:
        """What a command takes: a group, or the next digit, letter or command."""
        if self.peek() == "{" and self.kind() == "mark":
            return self.group()
        token = self.tokens[self.at]
        if token.kind == "number" and not whole_numbers and token.text.isdigit() and len(token.text) > 1:
            self.tokens[self.at : self.at + 1] = [
                Token("number", token.text[0], token.spaced),
                Token("number", token.text[1:]),
            ]
        elif token.kind == "word" and len(token.text) > 1 and not functions.is_function(token):
            self.tokens[self.at : self.at + 1] = [
                Token("word", token.text[0], token.spaced),
                Token("word", token.text[1:]),
            ]
        self.enter()
        node = self.primary()
        self.leave()
        return node

    def group(self) -> Node:
        """A bracketed expression."""
        opener = self.peek()
        self.at += 1
        if self.kind() == "number" and self.peek(1) == AROUND_VALUES[opener]:
            self.at += 2
            return number(self.tokens[self.at - 2].text)
        if opener == "{" and self.peek() == "}":
            raise Unreadable("an empty group")
        bars, self._inside_bars = self._inside_bars, 0
        node = self.whole()
        self._inside_bars = bars
        self.expect(AROUND_VALUES[opener])
        return node

    def primary(self) -> Node:
        """A numeral, a name, a bracketed expression, or a command with its arguments."""
        kind, text = self.kind(), self.peek()
        if kind == "number":
            self.at += 1
            return number(text)
        if kind in ("word", "function"):
            return functions.call(self) if self.starts_function() else self._name(text)
        if kind == "text" and len(text) == 1:
            self.at += 1
            return self._indexed(text)
        if kind != "mark":
            raise Unreadable(f"cannot read {text!r}")
        if text in _BRACKETS:
            node = self.group()
            return Call(_BRACKETS[text], (node,)) if _BRACKETS[text] else node
        if text == "|":
            return self._absolute()
        if text in _LETTERS or text.startswith(r"\bar"):
            self.at += 1
            if text == r"\Gamma" and self.peek() == "(":
                return Call("gamma", functions.arguments(self))
            return self._indexed(text)
        self.at += 1
        return commands.command(self, text)

    def _absolute(self) -> Node:
        self.at += 1
        self._inside_bars += 1
        node = self.sum()
        self._inside_bars -= 1
        self.expect("|")
        return Call("abs", (node,))

    def _name(self, text: str) -> Node:
        """A variable; several letters are a product of them."""
        if len(text) > _MAX_LETTERS:
            raise Unreadable(f"{text!r} is a word")
        self.at += 1
        if len(text) == 1:
            return self._indexed(text)
        *letters, last = text
        self.tokens.insert(self.at, Token("word", last))
        return Mul((*map(letter, letters), self.power()))

    def _indexed(self, name: str) -> Node:
        """A letter with its index and primes, applied when it is the name of a function."""
        node: Node
        if self.accept("_"):
            if self.peek() == "{" and self.kind(1) in ("text", "word", "number") and self.peek(2) == "}":
                node, self.at = with_index(name, self.tokens[self.at + 1]), self.at + 3
            elif self.kind() in ("text", "number"):
                node, self.at = with_index(name, self.tokens[self.at]), self.at + 1
            else:
                node = Apply(f"{name}_", (self.argument(),))
        else:
            node = letter(name)
        while self.accept("'"):
            node = primed(node)
        if name in _APPLIED and self.peek() == "(" and isinstance(node, Symbol):
            return Apply(node.name, functions.arguments(self))
        return node
