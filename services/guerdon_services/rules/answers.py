"""Where in a response the final answer stands, for the rules that compare one."""

import re
from typing import Literal

AnswerFrom = Literal["response", "after_thinking", "last_line", "answer_tag", "last_box"]

_THINK_CLOSE = "</think>"
_TAG_OPEN, _TAG_CLOSE = "<answer>", "</answer>"
_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\\\|\\[{}]|[{}]")


def answer_in(response: str, where: AnswerFrom) -> str | None:
    """The stripped answer text; None when the response has none at that place."""
    if where == "response":
        return response.strip()
    text = response.rpartition(_THINK_CLOSE)[2]
    if where == "after_thinking":
        return text.strip()
    if where == "last_line":
        lines = text.strip().splitlines()
        return lines[-1].strip() if lines else None
    return _last_tag(text) if where == "answer_tag" else _last_box(text)


def _last_tag(text: str) -> str | None:
    before, close, _ = text.rpartition(_TAG_CLOSE)
    _, opened, content = before.rpartition(_TAG_OPEN)
    return content.strip() if close and opened else None


def _last_box(text: str) -> str | None:
    """Content of the last complete box: one pass over the braces."""
    stack: list[int | None] = []
    last: str | None = None
    for match in _BRACES.finditer(text):
        token = match.group()
        if token == "{":
            stack.append(None)
        elif token == "}":
            start = stack.pop() if stack else None
            if start is not None:
                last = text[start : match.start()]
        elif len(token) > 2:
            stack.append(match.end())
    return None if last is None else last.strip()
