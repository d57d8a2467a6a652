"""The texts in NeMo Gym's rows, which are OpenAI Responses requests and answers."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from guerdon.texts import prompt_of
from guerdon.types import Prompt

Row = Mapping[str, Any]


def response_text(response: Row) -> str:
    """What the model wrote in its last message of a Responses object; empty where it wrote none."""
    for item in reversed(cast(Sequence[Row], response.get("output") or ())):
        if item.get("type") == "message":
            content = cast(Any, item.get("content"))
            if isinstance(content, str):
                return content
            parts = cast(Sequence[Row], content or ())
            return "".join(str(part.get("text") or "") for part in parts if part.get("type") == "output_text")
    return ""


def task_prompt(row: Row) -> Prompt | None:
    """What the model was asked: text, or messages."""
    asked = cast(Any, cast(Row, row.get("responses_create_params") or {}).get("input"))
    if isinstance(asked, str) or asked is None:
        return asked
    return prompt_of([turn for turn in cast(Sequence[Row], asked) if "role" in turn])
