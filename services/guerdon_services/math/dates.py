"""Calendar dates in words and in ISO form; what could be read in two ways is no date here."""

import re

_NAMES = (
    "january february march april may june july august september october november december".split()  # noqa: SIM905
)
_MONTHS = {
    spelling: number for number, name in enumerate(_NAMES, start=1) for spelling in (name, name[:3])
} | {"sept": 9}
_MONTH = "|".join(sorted(_MONTHS, key=len, reverse=True))
_DAY, _YEAR = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?", r"(?:,? (?P<year>\d{4}))?"
_FORMS = (
    re.compile(rf"(?:\w+day,? )?(?P<month>{_MONTH})\.? {_DAY}{_YEAR}"),
    re.compile(rf"(?:\w+day,? )?(?:the )?{_DAY} (?:of )?(?P<month>{_MONTH})\.?{_YEAR}"),
    re.compile(r"(?P<year>\d{4})-(?P<month>\d{2})-(?P<day>\d{2})"),
)
_HINT = re.compile(rf"(?i){'|'.join(name[:3] for name in _NAMES)}|\d-\d\d-")
_MARKUP = re.compile(r"\\(?:text|mathrm|mbox|textbf)\s*|[{}$~]|\\[ ,]")
_DAYS_OF_MONTH = 31
_LONGEST = 60

#: (year, month, day); the year is 0 where none is given.
Date = tuple[int, int, int]


def parse_date(text: str) -> Date | None:
    """The date that a text is, else None."""
    if len(text) > _LONGEST or not _HINT.search(text):
        return None
    plain = " ".join(_MARKUP.sub(" ", text).lower().replace(",", ", ").split()).rstrip(".")
    plain = plain.replace(" ,", ",")
    for form in _FORMS:
        found = form.fullmatch(plain)
        if found:
            named = found.group("month")
            month = _MONTHS[named] if named in _MONTHS else int(named)
            day = int(found.group("day"))
            return (
                (int(found.group("year") or 0), month, day)
                if month <= 12 and 1 <= day <= _DAYS_OF_MONTH
                else None
            )
    return None


def same_date(answer: Date, gold: Date) -> bool:
    """Whether two dates agree; a year counts where both have one."""
    return answer[1:] == gold[1:] and (answer[0] == gold[0] or not (answer[0] and gold[0]))
