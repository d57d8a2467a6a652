"""The answer of a response that boxes nothing: in a tag or a marked line, in words, or the last thing computed.

Only a window at the end of the response is read.
"""

# The patterns read many languages.
# ruff: noqa: RUF001

import re
from collections.abc import Iterator
from typing import NamedTuple

from guerdon_services.math.extraction.phrases import (
    chunks,
    formulas,
    has_value,
    is_hedge,
    last_formulas,
    last_number,
    lead,
    plain,
    sentence,
    yes_or_no,
)
from guerdon_services.math.notation.denials import DENIED_IS, FOREIGN_NOT, NO_BEGINNING
from guerdon_services.math.notation.escapes import decoded, single_backslashes

#: Characters at the end of a response in which an unboxed answer is looked for.
_WINDOW = 8000
#: Characters after "the answer is" that are read, and how many such places, from the last one back.
_REACH = 1000
_PLACES = 12
#: Words that a verbal answer may have.
_MOST_WORDS = 5

_TURN_END = re.compile(r"<\|(?:im_end|endoftext|eot_id|end|return|end_of_text)\|>|</s>|<end_of_turn>|<eos>")
#: A calculator's notes and special tokens; a stock phrase; emphasis, where ** between digits is a power.
_NOISE = re.compile(
    r"<(?:<[^<>\n]{0,200}>>|\|[\w ]{1,30}\|>\w{0,20})"
    r"|I hope (?:it|this) (?:is correct|helps)\W?"
    r"|\*\*(?:(?<![0-9A-Za-z)]\*\*)|(?![0-9A-Za-z(]))|__(?:(?=\W|$)|(?<!\S__))|`+"
)
#: "The answer is not 42." at the very end, of which 42 is not the answer.
_DENIED = re.compile(
    rf"(?i)(?:(?:answer|答案){DENIED_IS}"
    r"|(?:réponse|antwort|ergebnis|respuesta|resposta|risposta|antwoord|odpowiedź|jawabannya|ответ|відповідь|απάντηση)"
    rf":?\s{FOREIGN_NOT})[^.;,]{{1,60}}\.?\s*$"
)
_DENIAL = 120
_FENCE = re.compile(r"(?m)^\s{0,3}```[\w+-]{0,20}[ \t]*$")

_TAG = re.compile(r"<(/?)(?:final[_ ]?)?answer>", re.IGNORECASE)
_MARKED = re.compile(r"(?m)^[ \t>]{0,8}(####|A:|答[:：])[ \t]*+([^\n]++)$")
_HEADING = re.compile(r"(?im)^[ \t>#*]{0,12}(?:the )?(?:final |correct )?answers?[ \t*#:]{0,12}$")

#: The answer, as languages call it. Literals in lower case: the search takes one look at most characters.
_NOUN = re.compile(
    "answer|ans|option|choice|solution|答案|最终结果|解答|正解|答え|정답|답|réponse|antwort|ergebnis|respuesta|resposta"
    "|risposta|antwoord|odpowiedź|odpowiedz|cevap|jawaban|đáp án|đáp số|ответ|відповідь|απάντηση|الإجابة|الجواب|उत्तर"
)
#: From that to the answer itself: "s to the last question would then be".
_IS = re.compile(
    r"(?:s|nya|\.)?(?: (?:to|for|of|in)\b[^.:=\n]{1,80}?)?(?:,?\s\w{1,15}){0,2}?,?[\s*_\"'”)」）]{0,6}"
    r"(?:\b(?:is|are|was|be|equals?|est|sont|ist|lautet|beträgt|es|son|é|è|jest|adalah|là|равен|равно"
    r"|равняется|είναι)\b"
    r"|[:：=≈→—–]|-(?=\s)|应该是|应该为|应是|应为|应选|即为|就是|等于|是|为|為|选|選|は|이|가|은|는|هي|هو|है)"
)
_BARE_IS = re.compile(r"s?[\s*_\"'”)]*(?:is|are|[:：=])")
#: From this letter on, what stands before a word may be written onto it: Arabic, Chinese, Korean.
_FIRST_UNSPACED = "\u0600"
_CHOSEN = re.compile(
    r"选(?:(?<=[题故应此以确的]选)(?:择|项)?|(?<![\u4e00-\u9fff]选)择?)(?:是|为|[:：])?(?=[\s(（$]{0,4}(?:\\text\{)?[A-J])"
)

#: Words between "the answer is" and the answer.
_BEFORE = re.compile(
    r"(?:[\s:：*_\"'`>=≈~“「]++|\\approx\s|(?:therefore|thus|simply|just|indeed|then|hence|clearly|also|still|actually"
    r"|approximately|about|roughly|around|exactly|nearly|equal to|given by|that|as follows|option|choice"
    r"|only|donc|environ|etwa|ungefähr|aproximadamente|约|大约|约为|选项|选择?|는|은)(?=[\s:：,(（]|选|\d|[A-Z])\s*+[,:：]?)",
    re.IGNORECASE,
)
_BULLET = re.compile(r"\s*+(?:[-*•>]\s++)?+")
_NO_ANSWER = re.compile(
    rf"\s*(?:{NO_BEGINNING}|correct\b|right\b|consistent\b|reasonable\b|valid\b|verified\b|confirmed\b"
    r"|unclear\b|found\b|obtained\b|based\b|expected\b|clear\b|what\b|in the\b|supposed\b|likely\b|indeed\b[.,]"
    r"|below\b|above\b|正确|合理)",
    re.IGNORECASE,
)
#: "The answer is 42? No, it is 43."
_DOUBTED = re.compile(rf"[^.!?\n]{{1,60}}\?\s{{1,3}}(?:no\b|nope\b|wait\b|{NO_BEGINNING})", re.IGNORECASE)
_COPULA = re.compile(
    r"\b(?:is|are|was|equals?|be|est|sont|ist|sind|beträgt|es|son|é|è|равен|равна|равно)\b|等于|为|是|は|=",
    re.IGNORECASE,
)
_THEREFORE = re.compile(
    r"(?im)(?:^|[.。!?]\s)\s{0,4}(?:(?:therefore|thus|hence|so|consequently|in conclusion|donc|also|daher"
    r"|por (?:lo )?tanto|следовательно|итак)\b|所以|因此|故|综上所?述?|よって|したがって|따라서|그러므로)[,，:]?"
)
_IS_CORRECT = re.compile(r" is (?:the )?(?:correct|right|best)\b|\s?正确")
_LETTER = re.compile(r"(?:^|[\s(项])([A-J])[).]{0,2}\Z")
_REFERENCE = re.compile(
    r"(?:step|equation|eq\.|theorem|lemma|case|part|section|figure|page|method|problem|question|exercise|第)"
    r"\s{0,3}[(\[]?\d{1,4}",
    re.IGNORECASE,
)
_EQUATED = re.compile(r"\d\s?[x×]\s?(?=\d)")


class _Place(NamedTuple):
    """Where an answer may be named. `alone`: the text is nothing else; `sure`: the words mean the answer."""

    start: int
    text: str
    alone: bool
    sure: bool = True


def unboxed(text: str) -> str | None:
    """The answer that a response without boxes names, None where it names none."""
    text = _readable(text)
    if _DENIED.search(text[-_DENIAL:]):
        return None
    answer = _named(text) or _concluded(text) or _last(text) or ""
    return answer.strip() or None


def _readable(text: str) -> str:
    """The end of the first turn, without notes, emphasis and escapes."""
    text = text[-_WINDOW:]
    ended = _TURN_END.search(text)
    if ended and text[: ended.start()].strip():
        text = text[: ended.start()]
    return single_backslashes(decoded(_NOISE.sub("", _FENCE.sub("", text)))).strip()


def _named(text: str) -> str | None:
    """What the last tag, marked line or "the answer is" names."""
    places = sorted([*_tagged(text), *_marked(text), *_worded(text)])
    for place in places[: -_PLACES - 1 : -1]:
        answer = _phrase(place.text.strip()) if place.alone else _announced(place.text, place.sure)
        if answer:
            return answer
    letters = [
        _LETTER.search(text[max(0, match.start() - 4) : match.start()])
        for match in _IS_CORRECT.finditer(text)
    ]
    return next((letter.group(1) for letter in reversed(letters) if letter), None)


def _tagged(text: str) -> Iterator[_Place]:
    """Contents of answer tags; the last may lack its end, which generation stops at."""
    opened: int | None = None
    for match in _TAG.finditer(text):
        if not match.group(1):
            opened = match.end()
        elif opened is not None:
            yield _Place(opened, text[opened : match.start()], alone=True)
            opened = None
    if opened is not None:
        yield _Place(opened, text[opened:], alone=True)


def _marked(text: str) -> Iterator[_Place]:
    """Lines "#### 42" and "A: 42", not headings or the options of a question."""
    for match in _MARKED.finditer(text):
        after = text[match.end() : match.end() + 50].lstrip()
        content = match.group(2)
        if not after or (len(pieces := chunks(content)) == 1 and has_value(pieces[0]) and after[0] != "B"):
            yield _Place(match.end(1), content, alone=True)


def _worded(text: str) -> Iterator[_Place]:
    """What follows "the answer is" and its like, or a heading that says answer."""
    for match in _HEADING.finditer(text):
        yield _Place(match.end(), _after(text, match.end()), alone=False)
    for match in _CHOSEN.finditer(text):
        yield _Place(match.end(), _after(text, match.end()), alone=False)
    lower = text.lower()
    if len(lower) != len(text):  # the capital dotted i becomes two characters
        lower = text
    for noun in _NOUN.finditer(lower):
        said = _IS.match(lower, noun.end())
        if said and _is_announcement(
            noun.group(), said.group(), lower[max(0, noun.start() - 1) : noun.start()]
        ):
            sure = noun.group() != "solution"
            yield _Place(said.end(), _after(text, said.end()), alone=False, sure=sure)


def _is_announcement(noun: str, said: str, before: str) -> bool:
    """Whether these words announce the answer: not "plans are", "Solution: first …" or "option A is 5"."""
    if before.isalpha() and noun[0] < _FIRST_UNSPACED:
        return False
    if noun == "solution":
        return said[-1] not in ":：="
    return noun not in ("option", "choice") or bool(_BARE_IS.fullmatch(said))


def _after(text: str, start: int) -> str:
    return text[start : start + _REACH].partition("</")[0]


def _announced(text: str, sure: bool) -> str | None:
    """The answer in what follows "the answer is"."""
    text = _without_filler(text)
    if _NO_ANSWER.match(text) or _DOUBTED.match(text):
        return None
    return _phrase(text) if sure else _equated(text)


def _without_filler(text: str) -> str:
    """The text without "therefore", "equal to", bullets and the like at its start."""
    for _ in range(_PLACES):
        match = _BEFORE.match(text) or _BULLET.match(text)
        if not match or not match.end():
            break
        text = text[match.end() :]
    return text


def _phrase(text: str) -> str | None:
    """The answer in a text that begins with a phrase about it: its value, or a few words."""
    phrase = sentence(text)
    if is_hedge(phrase):
        return plain(phrase)
    values = [piece for piece in chunks(phrase) if has_value(piece)]
    found = yes_or_no(text) or _equated(text) or (values[-1] if values else None)
    if found:
        return found
    words = plain(phrase)
    return words if words and len(words.split()) <= _MOST_WORDS and len(words) <= 80 else None


def _equated(text: str) -> str | None:
    """What a text begins with, or says that something is."""
    return lead(text) or _said(text)


def _said(text: str) -> str | None:
    """What follows the last "is" of the first sentence."""
    phrase = sentence(text)
    spans = formulas(phrase)
    copulas = [
        match
        for match in _COPULA.finditer(phrase)
        if not any(formula.start < match.start() < formula.end for formula in spans)
    ]
    found = lead(_without_filler(phrase[copulas[-1].end() :])) if copulas else None
    return found if found and has_value(found) else None


def _concluded(text: str) -> str | None:
    """What the closing "Therefore, … is …" says, where no other value follows it."""
    matches = list(_THEREFORE.finditer(text))
    if not matches:
        return None
    match = matches[-1]
    conclusion = sentence(text[match.end() :], explained=True)
    rest = text[match.end() + len(conclusion) :]
    return None if formulas(rest) or last_number(rest) else _said(conclusion)


def _last(text: str) -> str | None:
    """The last line if it is notation only, else the last number or formula."""
    found = formulas(text)
    start = text.rfind("\n") + 1
    line = text[start:]
    if not any(formula.start < start < formula.end for formula in found):
        pieces = chunks(_BULLET.sub("", line, count=1))
        if len(pieces) == 1 and (has_value(pieces[0]) or re.fullmatch(r"\(?[A-J]\)?", pieces[0])):
            return _result(pieces[0])
    last = last_formulas(text, found)
    return last_number(_REFERENCE.sub("", text[last[1] if last else 0 :])) or (last[0] if last else None)


def _result(line: str) -> str:
    """The right side of a computation such as 3 x 4 = 12; an equation with variables whole; a number unbracketed."""
    bracketed = re.fullmatch(r"\[\s*([-+.,/\d]{1,40})\s*\]", line)
    if bracketed:
        return bracketed.group(1)
    left, equals, right = line.rpartition("=")
    named = re.search(r"[a-zA-Z\\]", _EQUATED.sub("", left))
    return right.strip() if equals and not named and has_value(right) else line
