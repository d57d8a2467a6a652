"""Is the answer, normalised, one of the references?"""

import string
import unicodedata
from typing import Literal

from guerdon.types import Sample
from guerdon_services.rules.answers import AnswerFrom, answer_in
from guerdon_services.rules.base import Outcome, RuleOptions, references_of, response_of
from guerdon_services.runtime.scorer import Unscorable

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = frozenset({"a", "an", "the"})


class ExactOptions(RuleOptions):
    """1 when the answer equals any reference after both were normalised, else 0. Spaces are always collapsed."""

    rule: Literal["exact"]
    answer_from: AnswerFrom = "after_thinking"
    ignore_case: bool = True
    ignore_punctuation: bool = False
    ignore_articles: bool = False


def judge(options: ExactOptions, sample: Sample) -> Outcome:
    """Compare the answer with each reference."""
    response, references = response_of(sample), references_of(sample)
    answer = answer_in(response, options.answer_from)
    if answer is None:
        return Outcome(0.0, f"no answer at {options.answer_from}")
    given = normalise(answer, options)
    for index, reference in enumerate(references):
        expected = normalise(reference, options)
        if not expected:
            raise Unscorable(f"references[{index}] is empty once normalised")
        if given == expected:
            return Outcome(1.0, f"equals references[{index}]")
    return Outcome(0.0, f"{given[:100]!r} equals no reference")


def normalise(text: str, options: ExactOptions) -> str:
    """NFKC, one space between words, and what the options ignore left out."""
    text = unicodedata.normalize("NFKC", text)
    if options.ignore_case:
        text = text.casefold()
    if options.ignore_punctuation:
        text = text.translate(_PUNCTUATION)
    words = text.split()
    if options.ignore_articles:
        words = [word for word in words if word.casefold() not in _ARTICLES]
    return " ".join(words)
