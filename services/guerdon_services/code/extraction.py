"""Finds the program in a response."""

import re
from collections.abc import Set

from guerdon_services.code.languages import named

_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})[ \t]*([^`]*)$")
PYTHON_TAGS = named("python").names


def last_code_block(response: str, tags: Set[str] = PYTHON_TAGS) -> str | None:
    """The last fenced block that has one of the tags, in lower case, else the last block of any kind, else None.

    A fence that is never closed is no block: the response was cut off.
    """
    any_block: str | None = None
    tagged_block: str | None = None
    fence = tag = ""
    lines: list[str] = []
    for line in response.splitlines(keepends=True):
        match = _FENCE.match(line.rstrip("\r\n"))
        if not fence:
            if match:
                fence, tag, lines = match[1], match[2].strip().lower(), []
        elif match and not match[2].strip() and match[1].startswith(fence):
            any_block = "".join(lines)
            if tag.split(" ")[0] in tags:
                tagged_block = any_block
            fence = ""
        else:
            lines.append(line)
    return any_block if tagged_block is None else tagged_block
