"""What was asked and what was answered, out of the shapes in which trainers hold them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from guerdon.types import ChatMessage, Prompt

Row = Mapping[str, Any]

#: How tokenizers write the tokens that end a turn; they are no part of an answer.
_END_TOKEN = re.compile(r"(?:<\|[^<>|\s]{1,40}\|>|</s>|<eos>|<end_of_turn>|<pad>)$")
_LONGEST_TOKEN = 44


def text_of(value: Any) -> str | None:
    """A response as text: as it is, or what the assistant says in a conversation."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        content = cast(Row, value).get("content")
        if isinstance(content, Sequence) and not isinstance(content, str):
            parts = cast(Sequence[Any], content)
            return "".join(
                str(cast(Row, part).get("text") or "") for part in parts if isinstance(part, Mapping)
            )
        return "" if content is None else str(content)
    if isinstance(value, Sequence):
        turns = [cast(Row, turn) for turn in cast(Sequence[Any], value) if isinstance(turn, Mapping)]
        said = [turn for turn in turns if turn.get("role", "assistant") == "assistant"]
        # Of several turns the last one holds the answer.
        return text_of(said[-1]) if said else ""
    return str(value)


def prompt_of(value: Any) -> Prompt | None:
    """A prompt as text or messages."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        turns = cast(Sequence[Row], value)
        return [
            ChatMessage(role=str(turn.get("role", "user")), content=text_of(turn) or "") for turn in turns
        ]
    return str(value)


def response_in(query: str, prompt: str) -> str:
    """The response in a text that begins with the prompt, special tokens and all."""
    at = query.find(prompt) if prompt else -1
    return without_end_tokens(query[at + len(prompt) :] if at >= 0 else query)


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
