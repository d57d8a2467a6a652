"""Sets that have a name: signs and words for the empty set, all real numbers, and the other sets of numbers."""

import re

#: Words and the sign for the empty set, in small letters.
EMPTY = frozenset(
    {
        r"\emptyset", "empty set", "the empty set", "no solution", "no solutions", "no real solution",
        "no real solutions", "none",
    }
)  # fmt: skip
#: Words for a value that there is not.
MISSING = frozenset({"does not exist", "doesn't exist", "dne", "doesnt exist"})
#: Words for all real numbers, in small letters.
ALL_REALS = frozenset({"all real numbers", "all reals", "real numbers", "any real number", "all real"})
#: Words for all real numbers but those that follow, in small letters.
ALL_BUT = re.compile(
    r"(?:the set of )?(?:all )?real(?: number)?s? ?,?(?:except|other than|excluding|but|besides|not equal to)(?: for)?"
)
#: Signs of sets of numbers, as the lexer spells them.
NUMBER_SETS = frozenset(rf"\mathbb{letter}{sign}" for letter in "RQZNC" for sign in ("", "+", "-", "*"))
