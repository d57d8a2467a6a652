r"""JSON strings that hold half of a surrogate pair, as `"\ud800"` does: JSON by its grammar, and yet no text.

They come from programs that decode a model's bytes leniently. pydantic refuses the body as a whole and says only
at which column; here one finds out whose string it is, so that one sample's flaw stays that sample's.
"""

import json
import re
from typing import Any, cast

#: What to say of such a string.
NO_TEXT = "holds half of a surrogate pair, which is no text"

_HALF = re.compile("[\ud800-\udfff]")


def read(body: bytes) -> dict[str, Any] | None:
    """The JSON object in `body` where halves of surrogate pairs are all that is wrong with it, else None."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return cast(dict[str, Any], value) if isinstance(value, dict) and first(value) is not None else None


def first(value: Any) -> str | None:
    """The path of the first string (or key) in `value` that is no text; None when all are."""
    if isinstance(value, str):
        return "" if _HALF.search(value) else None
    if isinstance(value, dict):
        children = list(cast(dict[str, Any], value).items())
        wrong = next((key for key, _ in children if _HALF.search(key)), None)
        if wrong is not None:
            return wrong.encode("utf-8", "backslashreplace").decode()
    else:
        children = list(enumerate(cast(list[Any], value) if isinstance(value, list) else []))
    for key, child in children:
        path = first(child)
        if path is not None:
            return f"{key}.{path}" if path else str(key)
    return None
