"""Did the response choose the right letter of a multiple-choice question, and only that one?"""

import re
from typing import Annotated, Literal

from pydantic import Field

from guerdon.types import Sample
from guerdon_services.rules.answers import AnswerFrom, answer_in
from guerdon_services.rules.base import Outcome, RuleOptions, references_of, response_of
from guerdon_services.runtime.scorer import Unscorable

_WRAPPERS = re.compile(r"\\(?:text|textbf|mathrm|mathbf|boxed)\s*\{([^{}]*)\}")
_BARE = re.compile(r"[\s*_$(\[{]*([A-Za-z])[\s*_$)\]}]*(?:$|[.:)]\**(?:\s.*)?$)", re.DOTALL)
_NAMED = re.compile(
    r"(?i:\b(?:answer|choice|option)\b(?:\s+is|\s*:)?|\bis\s+option)[\s:*_$(\[{]*([A-Z])(?![A-Za-z'])"
)
_JOINED = re.compile(r"\s*[)\]}*_$]*\s*(?:,|/|&|and|or)\s*[*_$(\[{]*([A-Z])(?![A-Za-z'])")


class ChoiceOptions(RuleOptions):
    """1 for the reference's letter, 0 for another, several or none. `letters` are the choices that exist."""

    rule: Literal["choice"]
    letters: Annotated[str, Field(pattern=r"^[A-Z]{2,26}$")] = "ABCDEFGHIJ"
    answer_from: AnswerFrom = "after_thinking"


def judge(options: ChoiceOptions, sample: Sample) -> Outcome:
    """Compare the chosen letter with the reference's."""
    response, references = response_of(sample), references_of(sample)
    wanted: set[str] = set()
    for index, reference in enumerate(references):
        letter = _letter(reference, options.letters)
        if letter is None:
            raise Unscorable(f"references[{index}] is no choice among {options.letters}")
        wanted.add(letter)
    answer = answer_in(response, options.answer_from)
    letter = _letter(answer, options.letters) if answer is not None else None
    if letter is None:
        return Outcome(0.0, "no single letter was chosen")
    return Outcome(float(letter in wanted), f"chose {letter}")


def _letter(text: str, letters: str) -> str | None:
    """The one letter that a text names; None when it names none or several."""
    text = _WRAPPERS.sub(r"\1", _WRAPPERS.sub(r"\1", text)).strip()
    bare = _BARE.match(text)
    if bare:
        letter = bare.group(1).upper()
        return letter if letter in letters else None
    named = list(_NAMED.finditer(text))
    if not named or _JOINED.match(text, named[-1].end()):
        return None
    letter = named[-1].group(1)
    return letter if letter in letters else None
