"""Words that say that what stands beside them is not so: "not 12", "12 cannot be right", "false: 12"."""

# The tables hold several languages.
# ruff: noqa: RUF001

import re

#: Verbs before the short form of "not"; the second ones leave another word when it is cut off, as in "don".
_NEGATED_VERBS = ("is", "are", "was", "were", "does", "did", "could", "would", "should", "has", "had", "ai")
_NEGATED_WORDS = ("do", "wo", "ca", "have", "must", "need")
_CUT_OFF = "|".join(rf"{verb}n" for verb in _NEGATED_VERBS)
_NOT = (
    rf"not|cannot|(?:{_CUT_OFF})(?:\s?['’]?\s?t)?"
    rf"|(?:{'|'.join(_NEGATED_WORDS)})n?\s?['’]\s?t|dont|wont|cant|havent"
)
#: What finds fault with a value.
_FAULTS = ("wrong", "incorrect", "untrue", "mistaken", "erroneous")
#: What answers a question as well; NO names two points.
_OPPOSITES = ("false", "nope", "nah")
_NO = r"(?-i:[nN]o)(?!\.?\s+of)"
#: What excludes; options of a multiple choice often begin with it.
_EXCLUDING = (
    "never", "neither", "nor", "none", "nowhere", "except", "excluding", "unequal", "invalid", "impossible",
    "unlikely", "hardly", "fails", "nicht", "kein", "keine", "falsch", "faux", "falso", "incorrecto", "incorrecta",
    "неверно", "неправильно", "не", "нет",
)  # fmt: skip
_FOREIGN = "不|错|並非|并非|錯|非正"


def _words(*words: str) -> str:
    return rf"(?<![^\W\d_])(?:{'|'.join(words)})(?![^\W\d_])"


_ANY = re.compile(rf"(?i){_words(_NOT, *_FAULTS, *_OPPOSITES, _NO, *_EXCLUDING)}|{_FOREIGN}")
_COPULA = r"(?:(?:it|that|this)(?:['’]s|\s+is)|is|was|are|seems)\s+"
#: Only in small letters: the text of an option begins with a capital, as in "B. False".
_TAKEN_BACK = re.compile(
    rf"\s*(?:(?:{_COPULA})?{_words(_NOT.replace('|cannot', ''), *_FAULTS, *_OPPOSITES, 'no')}"
    rf"|{_COPULA}{_words(*_EXCLUDING)}"
    r"|(?:cannot|can\s?['’]t)\s+be\s+(?:right|correct|true|it|so|the)\b|fails\b|不|错)"
)

#: For other patterns: a negation or a fault with which no answer begins; what "the answer" is followed by in a denial.
NO_BEGINNING = rf"{_words('not', *_FAULTS)}|n['’]t\b|不是|不对|错误"
DENIED_IS = (
    r"\s?(?:(?:is|was|would be|will be)\s+(?:not|never)|(?:is|was)n['’]?t|can(?:not|['’]?t)\s+be"
    r"|does(?:\s+not|n['’]?t)\s+equal|不是|并非)"
)
#: The same in other languages, with or without a verb, before it or after.
FOREIGN_NOT = (
    r"(?:(?:(?:est|ist|lautet|es|é|è|is|jest|είναι)\s+)?(?:ne|no|não|non|nicht|nie|niet|bukan|не|δεν|όχι)\b"
    r"|n['’]est\s+pas\b)"
)


def is_denial(text: str) -> bool:
    """Whether words say that something is not so."""
    return len(text) > 1 and _ANY.search(text) is not None


def takes_back(remark: str) -> bool:
    """Whether a remark after a choice says that it is none; an option may have a text such as "No" or "None"."""
    return _TAKEN_BACK.match(remark) is not None
