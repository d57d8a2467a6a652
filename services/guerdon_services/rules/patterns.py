"""Regular expressions under a time limit: a pattern that backtracks without end costs its limit, no more."""

from functools import lru_cache
from typing import Annotated

import regex
from pydantic import Field

from guerdon_services.rules.base import RuleTimeout

TimeLimit = Annotated[float, Field(gt=0, le=60)]
#: The time it takes to compile a pattern grows with its length.
Pattern = Annotated[str, Field(max_length=10_000)]


def check_pattern(pattern: str) -> None:
    """Refuse a pattern that does not compile.

    Raises:
        ValueError: with the position and the fault.
    """
    try:
        _compiled(pattern, False, False)
    except regex.error as problem:
        raise ValueError(f"pattern does not compile: {problem}") from problem
    except RecursionError as problem:
        raise ValueError("pattern does not compile: it is nested too deeply") from problem


def matches(
    pattern: str,
    text: str,
    *,
    full: bool,
    time_limit_s: float,
    dot_all: bool = False,
    ignore_case: bool = False,
) -> bool:
    """Whether a pattern matches all of a text, or is found in it.

    Raises:
        RuleTimeout: the match took longer than the limit.
    """
    compiled = _compiled(pattern, dot_all, ignore_case)
    match = compiled.fullmatch if full else compiled.search
    try:
        # concurrent: other threads run while this one matches.
        return match(text, timeout=time_limit_s, concurrent=True) is not None
    except TimeoutError as problem:
        raise RuleTimeout(f"the pattern took longer than {time_limit_s:g} s") from problem


@lru_cache(maxsize=512)
def _compiled(pattern: str, dot_all: bool, ignore_case: bool) -> "regex.Pattern[str]":
    flags = (regex.DOTALL if dot_all else 0) | (regex.IGNORECASE if ignore_case else 0)
    return regex.compile(pattern, flags)
