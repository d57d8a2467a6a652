"""Finds the final answer in a response, in time linear in its length.

Only what follows the thinking part counts. The answer is the content of the last `\\boxed` or `\\fbox`; under
`lenient`, a response without a box may also name it in words.
"""

import re
from dataclasses import dataclass
from typing import Literal

Mode = Literal["last_box", "single_box", "lenient"]

#: Characters at the end of a response in which a box is looked for.
_MAX_CHARS = 1_000_000
#: Characters at the end of a response in which an unboxed answer is looked for.
_TAIL = 4000

_THINK_CLOSE = re.compile(r"</(?:think|thinking|reasoning)>")
_THINK_OPEN = re.compile(r"<(?:think|thinking|reasoning)>")
_BRACES = re.compile(r"\\{1,4}(?:boxed|fbox)\s*\{|\\\\|\\[{}]|[{}]")
_BETWEEN_BOXES = re.compile(
    r"(?:[\s$,;]|\\quad|\\qquad|\\[,;:! ]|\\(?:text|mbox)\{\s*(?:and|or)\s*\}|and|or|\\[()\[\]])*"
)
_ANSWER_TAG = re.compile(r"<answer>([^<]*)</answer>")
_MARKED = re.compile(r"(?m)^\s*(?:####|A:)\s*(\S[^\n]*)$")
_ANSWER_WORDS = re.compile(
    r"(?i)(?:final answer(?:\s+is|\s*:)|answer(?:\s+is|\s*:)|\bsolution(?: to [\w ]{1,40})? is)[\s:*]*"
)
_MATH = re.compile(
    r"\$\$([^$]+)\$\$|\$([^$\n]+)\$|\\\(((?:[^\\\n]|\\[^)\n])+)\\\)|\\\[((?:[^\\]|\\[^\]])+)\\\]"
)
_NUMBER = re.compile(
    r"(?<![\w.,])[$€£¥]?[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+/\d+|\d*[.,]?\d+)(?:\s?%)?(?![\d/])"
)
_MARKDOWN = re.compile(r"\*\*|__|`|<\|[\w ]{1,30}\|>\w*")
_SENTENCE_END = re.compile(r"\.(?:\s|$)|\n")


@dataclass(frozen=True)
class Extraction:
    """The final answer, or None with the reason why there is none.

    `run` holds the contents of adjacent boxes ("\\boxed{2} and \\boxed{3}") when the last box ends such a run.
    """

    answer: str | None
    reason: str = ""
    run: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Box:
    start: int
    end: int
    content: str


def extract(response: str, mode: Mode) -> Extraction:
    """The final answer of a response."""
    text = after_thinking(response)[-_MAX_CHARS:]
    if not text.strip():
        return Extraction(None, "nothing follows the thinking part" if response.strip() else "empty response")
    boxes = _boxes(text)
    if mode == "single_box" and len(boxes) > 1:
        return Extraction(None, f"{len(boxes)} boxes where exactly one is allowed")
    if boxes:
        return Extraction(boxes[-1].content, run=_last_run(text, boxes))
    if mode == "lenient" and not re.search(r"\\(?:boxed|fbox)\b", text):
        answer = _unboxed(text[-_TAIL:])
        return Extraction(answer, "" if answer is not None else "no answer found")
    return Extraction(None, "no complete \\boxed{} after the thinking part")


def after_thinking(response: str) -> str:
    """What follows the last closing think tag, up to a thinking part that never closes."""
    start = 0
    for match in _THINK_CLOSE.finditer(response):
        start = match.end()
    unclosed = _THINK_OPEN.search(response, start)
    return response[start : unclosed.start() if unclosed else len(response)]


def _boxes(text: str) -> list[_Box]:
    """The complete outermost boxes in order: one pass over the braces, however they are nested or broken."""
    stack: list[tuple[int, int] | None] = []
    closed: list[tuple[int, int, int]] = []
    for match in _BRACES.finditer(text):
        token = match.group()
        if token == "{":
            stack.append(None)
        elif token == "}":
            opened = stack.pop() if stack else None
            if opened:
                closed.append((opened[0], opened[1], match.end()))
        elif token.endswith("{") and len(token) > 2:
            stack.append((match.start(), match.end()))
    outermost: list[_Box] = []
    for start, inner, end in reversed(closed):
        if not outermost or end <= outermost[-1].start:
            outermost.append(_Box(start, end, text[inner : end - 1]))
    return outermost[::-1]


def _last_run(text: str, boxes: list[_Box]) -> tuple[str, ...]:
    """Contents of the boxes that only commas, "and" or "or" separate from the last one; () when it is alone."""
    first = len(boxes) - 1
    while first > 0:
        between = text[boxes[first - 1].end : boxes[first].start]
        if len(between) > 60 or not between.strip() or not _BETWEEN_BOXES.fullmatch(between):
            break
        first -= 1
    run = tuple(box.content for box in boxes[first:])
    return run if len(run) > 1 else ()


def _unboxed(text: str) -> str | None:
    """The answer that a response without boxes names: tag, marker line, "the answer is", last formula, number."""
    for pattern in (_ANSWER_TAG, _MARKED):
        matches = pattern.findall(text)
        if matches:
            return _first_formula(matches[-1]) or _plain(matches[-1])
    words = list(_ANSWER_WORDS.finditer(text))
    if words:
        rest = text[words[-1].end() :][:500]
        formula = _MATH.match(rest)
        if formula:
            tail = _SENTENCE_END.split(rest[formula.end() :], maxsplit=1)[0]
            percent = re.match(r"\s*(?:%|percent|pct)", tail)
            return _content(formula) + ("%" if percent else "")
        sentence = _plain(_SENTENCE_END.split(rest, maxsplit=1)[0])
        return _last_number(sentence) or sentence or None
    formulas = list(_MATH.finditer(text))
    number = _last_number(_plain(text[formulas[-1].end() :] if formulas else text))
    if number or not formulas:
        return number
    percent = re.match(r"\s*(?:%|percent|pct)", text[formulas[-1].end() :][:20])
    return _content(formulas[-1]) + ("%" if percent else "")


def _content(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None)


def _first_formula(text: str) -> str | None:
    match = _MATH.search(text)
    return _content(match) if match else None


def _plain(text: str) -> str:
    return _MARKDOWN.sub("", text).strip()


def _last_number(text: str) -> str | None:
    numbers = _NUMBER.findall(text)
    return numbers[-1] if numbers else None
