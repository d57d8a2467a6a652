"""Sets that have a name: signs and words for the empty set, all real numbers, and the other sets of numbers."""

#: Words and the sign for the empty set, in small letters.
EMPTY = frozenset(
    {
        r"\emptyset", "empty set", "the empty set", "no solution", "no solutions", "no real solution",
        "no real solutions", "none",
    }
)  # fmt: skip
#: Words for all real numbers, in small letters.
ALL_REALS = frozenset({"all real numbers", "all reals", "real numbers", "any real number", "all real"})
#: Signs of sets of numbers, as the lexer spells them.
NUMBER_SETS = frozenset(rf"\mathbb{letter}{sign}" for letter in "RQZNC" for sign in ("", "+", "-", "*"))
