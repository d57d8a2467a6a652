r"""Finds the final answer in a response, in time linear in its length.

Only what follows the thinking part counts. The answer is the content of the last `\boxed` or `\fbox`; under
`lenient`, a response without a box may also name it in words.
"""

# The patterns read several alphabets.
# ruff: noqa: RUF001

import re
from dataclasses import dataclass
from typing import Literal

from guerdon_services.math.extraction.unboxed import unboxed
from guerdon_services.math.notation.escapes import decoded, single_backslashes

#: `last_box`: the last complete box. `single_box`: there must be no other, not even an unfinished one.
#: `strict`: see `_format_fault`. `lenient`: without a box, a tag, a marked line, "the answer is …", a last value.
Mode = Literal["last_box", "single_box", "strict", "lenient"]

#: Characters at the end of a response in which a box is looked for.
_MAX_CHARS = 500_000
#: Characters after the box that `strict` looks at.
_MAX_CLOSING = 200

_THINKING = r"(?:think(?:ing)?|thoughts?|reasoning|seed:think)"
_THINK_CLOSE = re.compile(
    rf"</{_THINKING}>|◁/think▷|\[/THINK\]|<\|end_of_thought\|>|<\|channel\|>final<\|message\|>", re.IGNORECASE
)
_THINK_OPEN = re.compile(
    rf"<{_THINKING}>|◁think▷|\[THINK\]|<\|begin_of_thought\|>|<\|channel\|>(?:analysis|commentary)\b",
    re.IGNORECASE,
)

_BRACES = re.compile(r"\\{1,4}(?:boxed|fbox)(?![a-zA-Z])\s*+(?P<brace>\{)?|\\\\|\\[{}]|[{}]")
_GROUP = r"\{(?:[^{}]|\{[^{}]{0,200}\}){0,200}\}"
#: What an unbraced box holds: a number, a fraction or a root, text, a constant, or a letter that ends the formula.
_UNBRACED = re.compile(
    r"(?:[-+−]\s?)?(?:\d++(?:(?:[.,]|\{,\})\d++)*+"
    rf"|\\[dtc]?frac\s*+(?:\d|{_GROUP})\s*+(?:\d|{_GROUP})"
    rf"|\\sqrt\s*+(?:\[\w{{1,9}}\])?(?:\d|{_GROUP})"
    rf"|\\(?:text|math)[a-z]{{0,9}}\s*+{_GROUP}"
    r"|\\(?:pi|infty|emptyset|varnothing)(?![a-zA-Z])"
    r"|[A-Za-z](?=\s{0,5}(?:\$|\\[)\]]|[.,;]?\s{0,5}\Z)))"
)
_BETWEEN_BOXES = re.compile(
    r"(?:[\s$,;，；、&*]|\\q?quad|\\[,;:! \\]|\\(?:text|mbox)\{\s*(?:and|or)?,?\s*\}|and|or|\\[()\[\]]"
    r"|[A-Za-z](?:_\{?\w\}?)?\s*=|和|与|或|et|ou|und|oder|и|или)*"
)
_EMPTY = re.compile(r"(?:[\s~{}]|\\[,;:! ]|\\q?quad|\\text(?=\s*\{))*")
#: What may follow the box in the strict format: closing marks, formatting, tokens that end a turn.
_CLOSING = re.compile(
    r"(?:[\s.,;:!?。，；！？…$*_`~\"'”’)\]}]|\\[)\]]|\\end\{[a-z]{1,10}\*?\}|<\|[\w ]{1,30}\|>|</[a-z]{1,10}>)*"
)


@dataclass(frozen=True)
class Extraction:
    r"""The final answer, or None with the reason why there is none.

    `run` holds the contents of adjacent boxes (`\boxed{2} and \boxed{3}`) when the last box ends such a run.
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
    text = response.rpartition("</think>")[2] if mode == "strict" else after_thinking(response)
    text = text[-_MAX_CHARS:]
    if not text.strip():
        return Extraction(None, "nothing follows the thinking part" if response.strip() else "empty response")
    boxes, unfinished = _boxes(text)
    fault = ""
    if mode == "strict":
        fault = _format_fault(response, text, boxes, unfinished)
    elif mode == "single_box" and len(boxes) + unfinished > 1:
        fault = f"{len(boxes) + unfinished} boxes where exactly one is allowed"
    if fault:
        return Extraction(None, fault)
    if boxes:
        return Extraction(_cleaned(boxes[-1].content), run=_last_run(text, boxes))
    if mode == "lenient" and not unfinished:
        answer = unboxed(text)
        return Extraction(answer, "" if answer is not None else "no answer found")
    return Extraction(None, r"no complete \boxed{} after the thinking part")


def after_thinking(response: str) -> str:
    """What follows the last closing think tag, up to a thinking part that never closes."""
    start = 0
    for match in _THINK_CLOSE.finditer(response):
        start = match.end()
    unclosed = _THINK_OPEN.search(response, start)
    return response[start : unclosed.start() if unclosed else len(response)]


def _format_fault(response: str, text: str, boxes: list[_Box], unfinished: int) -> str:
    r"""What keeps a response from the form `<think>…</think> … \boxed{answer}`, "" if nothing does.

    Thinking ends exactly once, and starts exactly once, with the response; a template may have put the opening tag
    into the prompt, so it may be missing. Exactly one box follows. After it come only closing marks: punctuation,
    delimiters, markdown, an end of turn. What stands in the thinking part does not matter.
    """
    if response.count("</think>") != 1:
        return f"{response.count('</think>')} closing think tags where exactly one is required"
    if response.count("<think>") != response.lstrip().startswith("<think>"):
        return "a thinking part begins after the start of the response"
    if len(boxes) + unfinished != 1:
        return f"{len(boxes) + unfinished} boxes where exactly one is required"
    if not boxes:
        return r"no complete \boxed{} after the thinking part"
    rest = text[boxes[0].end :].strip()
    if len(rest) > _MAX_CLOSING or not _CLOSING.fullmatch(rest):
        return "text follows the box"
    return ""


def _boxes(text: str) -> tuple[list[_Box], int]:
    """The complete outermost boxes in order, and how many never close: one pass over the braces.

    A box without content, as in a repeated instruction, is none.
    """
    # Spans until the outermost are known: contents of boxes in boxes would add up to the square of the text.
    stack: list[tuple[int, int] | None] = []
    closed: list[tuple[int, int, int, int]] = []
    resume = 0
    first = re.search(r"\\(?:boxed|fbox)", text)
    for match in _BRACES.finditer(text, max(0, first.start() - 3) if first else len(text)):
        token = match.group()
        if match.start() < resume:
            continue
        if token == "{":
            stack.append(None)
        elif token == "}":
            opened = stack.pop() if stack else None
            if opened:
                closed.append((*opened, match.start(), match.end()))
        elif match["brace"]:
            stack.append((match.start(), match.end()))
        elif len(token) > 2 and (bare := _UNBRACED.match(text, match.end())):
            closed.append((match.start(), *bare.span(), bare.end()))
            resume = bare.end()
    outermost: list[_Box] = []
    for start, first_inside, end_inside, end in reversed(closed):
        if not outermost or end <= outermost[-1].start:
            outermost.append(_Box(start, end, text[first_inside:end_inside]))
    complete = [box for box in reversed(outermost) if not _EMPTY.fullmatch(box.content)]
    return complete, sum(opened is not None for opened in stack)


def _last_run(text: str, boxes: list[_Box]) -> tuple[str, ...]:
    """Contents of the boxes that only commas, "and" or "or" separate from the last one; () when it is alone."""
    first = len(boxes) - 1
    while first > 0:
        between = text[boxes[first - 1].end : boxes[first].start]
        if len(between) > 60 or not between.strip() or not _BETWEEN_BOXES.fullmatch(between):
            break
        first -= 1
    run = tuple(_cleaned(box.content) for box in boxes[first:])
    return run if len(run) > 1 else ()


def _cleaned(content: str) -> str:
    """The content with HTML entities and the doubled backslashes of JSON undone."""
    return single_backslashes(decoded(content))
