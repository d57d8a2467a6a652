"""Finds the program in a response."""

import re

_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})[ \t]*([^`]*)$")
_PYTHON_TAGS = frozenset({"python", "python3", "py", "py3"})


def last_code_block(response: str) -> str | None:
    """The last fenced block that is tagged as Python, else the last block of any kind, else None.

    A fence that is never closed is no block: the response was cut off.
    """
    any_block: str | None = None
    python_block: str | None = None
    fence = tag = ""
    lines: list[str] = []
    for line in response.splitlines(keepends=True):
        match = _FENCE.match(line.rstrip("\r\n"))
        if not fence:
            if match:
                fence, tag, lines = match[1], match[2].strip().lower(), []
        elif match and not match[2].strip() and match[1].startswith(fence):
            any_block = "".join(lines)
            if tag.split(" ")[0] in _PYTHON_TAGS:
                python_block = any_block
            fence = ""
        else:
            lines.append(line)
    return any_block if python_block is None else python_block
