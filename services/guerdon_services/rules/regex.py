"""Is a regular expression found in the response, or does it match all of it?"""

from typing import Literal, Self

from pydantic import model_validator

from guerdon.types import Sample
from guerdon_services.rules.answers import AnswerFrom, answer_in
from guerdon_services.rules.base import Outcome, RuleOptions, response_of
from guerdon_services.rules.patterns import Pattern, TimeLimit, check_pattern, matches


class RegexOptions(RuleOptions):
    """1 for a match, 0 for none; with `forbid` the other way round."""

    rule: Literal["regex"]
    pattern: Pattern
    match: Literal["search", "fullmatch"] = "search"
    ignore_case: bool = False
    dot_all: bool = False
    answer_from: AnswerFrom = "response"
    forbid: bool = False
    time_limit_s: TimeLimit = 1.0

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        check_pattern(self.pattern)
        return self


def judge(options: RegexOptions, sample: Sample) -> Outcome:
    """Match the response, or the answer in it, as it stands: nothing is stripped from a whole response."""
    response = response_of(sample)
    text = response if options.answer_from == "response" else answer_in(response, options.answer_from)
    if text is None:
        return Outcome(0.0, f"no answer at {options.answer_from}")
    found = matches(
        options.pattern,
        text,
        full=options.match == "fullmatch",
        dot_all=options.dot_all,
        ignore_case=options.ignore_case,
        time_limit_s=options.time_limit_s,
    )
    return Outcome(
        float(found is not options.forbid), "the pattern matches" if found else "the pattern does not match"
    )
