"""A penalty for going round in circles: RLPR's, which counts windows of words."""

from collections import Counter
from typing import Annotated, Literal

from pydantic import Field

from guerdon.types import Sample
from guerdon_services.rules.base import Outcome, RuleOptions, response_of


class RepetitionOptions(RuleOptions):
    """`penalty` when any `window` consecutive words occur `limit` times or more, else 0."""

    rule: Literal["repetition"]
    window: Annotated[int, Field(ge=1, le=1000)] = 10
    limit: Annotated[int, Field(ge=2)] = 10
    penalty: float = -1.0


def judge(options: RepetitionOptions, sample: Sample) -> Outcome:
    """Count every window of the response; windows overlap."""
    words = response_of(sample).split()
    counts: Counter[int] = Counter()
    for start in range(len(words) - options.window + 1):
        window = hash(tuple(words[start : start + options.window]))
        counts[window] += 1
        if counts[window] >= options.limit:
            shown = " ".join(words[start : start + options.window])[:100]
            return Outcome(options.penalty, f"{options.limit} times {shown!r}")
    return Outcome(0.0, f"no {options.window} words occur {options.limit} times")
