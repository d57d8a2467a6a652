"""Multiple choice: a letter, several letters, a letter with its value."""

import re
from collections.abc import Callable

from guerdon_services.math.decision import Decision
from guerdon_services.math.notation.denials import takes_back

_LETTER = re.compile(r"[A-J]")
_LETTERS = re.compile(r"[A-J]{1,10}")
_CHOSEN = re.compile(
    r"(?:option|choice|answer)?:?\s*[(\[]?\s*([A-J])\s*[)\]]?(?:$|[.:)]\s*(?P<rest>.*))", re.IGNORECASE
)
#: Another choice, in what follows a first one.
_ANOTHER = re.compile(r"(?:^|[\s(\[,;:.])(?:[B-J]|A(?!\s*[a-z]))(?:[\s)\].,;:]|$)")
_FIRST = frozenset("ABCDEFGHIJ({")
_ALONE = re.compile(r"[(\[]?\s*[A-J]\s*[)\].]?")
_WITH_VALUE = re.compile(r"(?:\(([A-J])\)|([A-J])[.)])\s*(?![-+*/^=<>)|,])(?P<value>\S.*)")
_BRACED = re.compile(r"^\{(\([A-J]\))\}")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")

Decide = Callable[[str, str], Decision]


def chosen(answer: str, reference: str, *, in_words: bool, decide: Decide) -> Decision | None:
    """The decision on two normalised texts where a choice letter is at stake, else None.

    `in_words` tells an answer in words; `decide` compares the values beside letters.
    """
    said, wanted = _plain(answer), _plain(reference)
    return _letter(said, wanted, in_words) or _letters(said, wanted) or _with_value(said, wanted, decide)


def _plain(text: str) -> str:
    text = (_TEXT.sub(r"\1", text) if "\\text" in text else text).strip()
    return _BRACED.sub(r"\1", text)


def _letter(said: str, wanted: str, in_words: bool) -> Decision | None:
    """A reference that is a letter."""
    wanted = wanted.strip("()[]")
    if not _LETTER.fullmatch(wanted):
        return None
    found = _CHOSEN.fullmatch(said)
    if found:
        rest = found.group("rest") or ""
        single = not _ANOTHER.search(rest) and not takes_back(rest)
        return Decision(single and found.group(1).upper() == wanted, "string", "choice letter")
    return Decision(False, "string", f"not the choice {wanted}") if in_words else None


def _letters(said: str, wanted: str) -> Decision | None:
    """A reference of several letters in any order: AC, "A, C"."""
    letters = _listed(wanted)
    found = _listed(said) if len(letters) > 1 else []
    return Decision(letters == found, "string", "choice letters") if found else None


def _listed(text: str) -> list[str]:
    if text[:1] not in _FIRST:
        return []
    bare = re.sub(r"[\s,(){}]|and|\\&", "", text)
    return sorted(bare) if _LETTERS.fullmatch(bare) and len(set(bare)) == len(bare) else []


def _with_value(said: str, wanted: str, decide: Decide) -> Decision | None:
    """A letter with its value: either will do, a letter that contradicts will not."""
    offered, expected = _WITH_VALUE.fullmatch(said), _WITH_VALUE.fullmatch(wanted)
    if not expected:
        return decide(offered.group("value"), wanted) if offered else None
    letter = expected.group(1) or expected.group(2)
    if _ALONE.fullmatch(said):
        return Decision(letter in said, "string", "choice letter")
    if offered and (offered.group(1) or offered.group(2)) != letter:
        return Decision(False, "string", "another choice letter")
    return decide(offered.group("value") if offered else said, expected.group("value"))
