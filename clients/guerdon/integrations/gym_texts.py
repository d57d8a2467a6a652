"""The texts in NeMo Gym's rows, which are OpenAI Responses requests and answers."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from guerdon.errors import InvalidRequest
from guerdon.texts import part_text, prompt_of
from guerdon.types import Prompt

Row = Mapping[str, Any]


def response_text(response: Row) -> str:
    """What the model wrote in its last message of a Responses object; empty where it wrote none.

    Raises:
        InvalidRequest: it is no such object, or one of a request that failed: that is no answer of the model's.
    """
    if response.get("error") or response.get("status") in ("failed", "cancelled"):
        raise InvalidRequest(
            f"response: the model's request {response.get('status')}: {response.get('error')}"
        )
    for item in reversed(_typed("response.output", response.get("output"))):
        if item["type"] == "message":
            content = item.get("content")
            if isinstance(content, str):
                return content
            parts = _typed("response.output.content", content)
            return "".join(
                part_text(part, "response.output.content") for part in parts if part["type"] == "output_text"
            )
    return ""


def task_prompt(row: Row) -> Prompt | None:
    """What the model was asked: text, or messages.

    Raises:
        InvalidRequest: it is neither.
    """
    asked = cast(Any, cast(Row, row.get("responses_create_params") or {}).get("input"))
    if isinstance(asked, str) or asked is None:
        return asked
    turns = _objects("responses_create_params.input", asked)
    return prompt_of([turn for turn in turns if "role" in turn])


def _typed(field: str, value: Any) -> Sequence[Row]:
    """Objects that say what they are: one that does not could be the answer, and be passed over."""
    objects = _objects(field, value)
    if not all(isinstance(one.get("type"), str) for one in objects):
        raise InvalidRequest(f"{field}.type: must be text")
    return objects


def _objects(field: str, value: Any) -> Sequence[Row]:
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in cast(list[Any], value)):
        raise InvalidRequest(f"{field}: must be a list of objects")
    return cast(Sequence[Row], value)
