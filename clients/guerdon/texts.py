"""What was asked and what was answered, out of the shapes in which trainers hold them."""

import math
import re
from collections.abc import Mapping, Sequence
from numbers import Number
from typing import Any, cast

from guerdon.errors import InvalidRequest
from guerdon.types import ChatMessage, Prompt

Row = Mapping[str, Any]

#: How tokenizers write the tokens that end a turn; they are no part of an answer.
_END_TOKEN = re.compile(r"(?:<\|[^<>|\s]{1,40}\|>|</s>|<eos>|<end_of_turn>|<pad>)$")
_LONGEST_TOKEN = 44


def plain(value: Any) -> Any:
    """A value as JSON has it: arrays of numpy as lists, its numbers as Python's."""
    if hasattr(value, "tolist"):
        return plain(value.tolist())  # an array of objects may hold arrays
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in cast(Row, value).items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in cast(Sequence[Any], value)]
    return value


def present(value: Any) -> Any:
    """A value, an array as a list; None also where a data frame has NaN for a cell without one."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return None if isinstance(value, float) and math.isnan(value) else value


def number_text(value: Any, field: str) -> str:
    """A number as it is written.

    Raises:
        InvalidRequest: it is none, or has more digits than Python writes.
    """
    if not isinstance(value, Number):
        raise InvalidRequest(f"{field}: must be text, not {type(value).__name__}")
    try:
        return str(value)
    except ValueError as error:
        raise InvalidRequest(f"{field}: {error}") from error


def text_of(value: Any, field: str = "response") -> str | None:
    """A response as text: as it is, or what the assistant says last in a conversation; None where there is none.

    Raises:
        InvalidRequest: it has no shape of a response, which must not be judged as an empty one.
    """
    value = present(value)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return _said(cast(Row, value), field)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        turns = _turns(cast(Sequence[Any], value), field)
        said = [turn for turn in turns if turn.get("role", "assistant") == "assistant"]
        # Of several turns the last one holds the answer.
        return _said(said[-1], field) if said else None
    return number_text(value, field)


def prompt_of(value: Any) -> Prompt | None:
    """A prompt as text or messages; None where there is none.

    Raises:
        InvalidRequest: it is neither.
    """
    value = present(value)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        value = [value]
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        turns = _turns(cast(Sequence[Any], value), "prompt")
        return [
            ChatMessage(role=str(turn.get("role", "user")), content=_said(turn, "prompt")) for turn in turns
        ] or None
    return number_text(value, "prompt")


def _turns(value: Sequence[Any], field: str) -> list[Row]:
    for index, turn in enumerate(value):
        if not isinstance(turn, Mapping):
            raise InvalidRequest(f"{field}.{index}: a turn must be an object, not {type(turn).__name__}")
    return list(cast(Sequence[Row], value))


def _said(turn: Row, field: str) -> str:
    """The text of one turn; empty where it is a call of a tool, say."""
    if not {"role", "content"} & set(turn):
        raise InvalidRequest(f"{field}: an object needs content; this one has {', '.join(map(str, turn))}")
    content = present(turn.get("content"))
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise InvalidRequest(f"{field}.content: must be text or parts, not {type(content).__name__}")
    parts = _turns(cast(Sequence[Any], content), f"{field}.content")
    return "".join(part_text(part, f"{field}.content") for part in parts)


def part_text(part: Row, field: str) -> str:
    """The text of one part of a turn; empty where it is an image, say.

    Raises:
        InvalidRequest: its text is none.
    """
    text = part.get("text", "")
    if not isinstance(text, str):
        raise InvalidRequest(f"{field}.text: must be text, not {type(text).__name__}")
    return text


def response_in(query: str, prompt: str) -> str:
    """The response in a text that begins with the prompt, special tokens and all."""
    at = query.find(prompt) if prompt else -1
    return without_end_tokens(query[at + len(prompt) :] if at >= 0 else query)


def ended_text_of(value: Any) -> str | None:
    """`text_of` a response that was decoded with its special tokens."""
    text = text_of(value)
    return None if text is None else without_end_tokens(text)


def without_end_tokens(text: str) -> str:
    """The text without the special tokens at its end, nor the white space before them."""
    end = kept = len(text)
    while True:
        while end and text[end - 1].isspace():
            end -= 1
        token = _END_TOKEN.search(text, max(0, end - _LONGEST_TOKEN), end)
        if token is None:
            return text[:kept]
        end = token.start()
        while end and text[end - 1].isspace():
            end -= 1
        kept = end
