"""Does the response keep to the format that the prompt asked for?

`tags` asks for `<tag>…</tag>` blocks in this order, each tag exactly once. The defaults are RLPR's R1 format: the
response begins with the first tag, text may stand between the blocks and after them. `pattern` asks for a full
match with a regular expression instead (its dot matches newlines).
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from guerdon.types import Sample
from guerdon_services.rules.base import Outcome, RuleOptions, response_of
from guerdon_services.rules.patterns import Pattern, TimeLimit, check_pattern, matches


class FormatOptions(RuleOptions):
    """`success` when the whole response has the format, `failure` when it does not."""

    rule: Literal["format"]
    tags: Annotated[list[Annotated[str, Field(pattern=r"^[A-Za-z_][\w-]*$")]], Field(min_length=1)] | None = (
        None
    )
    text_before: bool = False
    text_between: bool = True
    text_after: bool = True
    pattern: Pattern | None = None
    time_limit_s: TimeLimit = 1.0
    success: float = 1.0
    failure: float = 0.0

    @model_validator(mode="after")
    def _one_template(self) -> Self:
        if self.pattern is not None:
            if self.tags is not None:
                raise ValueError("give either tags or pattern, not both")
            check_pattern(self.pattern)
        return self


def judge(options: FormatOptions, sample: Sample) -> Outcome:
    """Check the format of the whole response."""
    response = response_of(sample)
    if options.pattern is not None:
        full = matches(options.pattern, response, full=True, dot_all=True, time_limit_s=options.time_limit_s)
        problem = None if full else "the response does not match the pattern as a whole"
    else:
        problem = _tag_problem(response, options.tags or ["think", "answer"], options)
    if problem:
        return Outcome(options.failure, problem)
    return Outcome(options.success, "the format is kept")


def _tag_problem(response: str, tags: list[str], options: FormatOptions) -> str | None:
    position = 0
    for index, tag in enumerate(tags):
        opening, closing = f"<{tag}>", f"</{tag}>"
        for mark in (opening, closing):
            if (count := response.count(mark)) != 1:
                return f"{mark} occurs {count} times, not once"
        start, end = response.index(opening), response.index(closing)
        if start < position or end < start + len(opening):
            return f"{opening} … {closing} is out of order"
        allowed = options.text_before if index == 0 else options.text_between
        if not allowed and start != position:
            return f"text before {opening}"
        position = end + len(closing)
    return None if options.text_after or position == len(response) else f"text after </{tags[-1]}>"
