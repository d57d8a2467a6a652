"""Undoes what transport does to a text: HTML entities, and the doubled backslashes of JSON."""

import html
import re

_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]{2,31}\d{0,2});")
_BACKSLASHES = re.compile(r"\\+")
_ESCAPED_COMMAND = re.compile(r"\\\\(?:[a-zA-Z]{2}|[{}()\[\]%])")
_DOUBLED = re.compile(r"\\\\(?=[a-zA-Z()\[\]{}])")


def decoded(text: str) -> str:
    """The text with HTML entities as characters, also those that were escaped twice."""
    for _ in range(2):
        if "&" not in text or ";" not in text:
            break
        text = _ENTITY.sub(lambda match: html.unescape(match.group()), text).replace("\u00a0", " ")
    return text


def single_backslashes(text: str) -> str:
    r"""The text with `\\frac` as `\frac`, where every backslash was doubled, as in JSON."""
    if not _ESCAPED_COMMAND.search(text) or any(len(run) % 2 for run in _BACKSLASHES.findall(text)):
        return text
    return _BACKSLASHES.sub(lambda match: "\\" * (len(match.group()) // 2), text)


def single_commands(text: str) -> str:
    r"""The text with `\\frac` as `\frac` wherever no row of a matrix can end there."""
    if "\\\\" not in text or "\\begin" in text:
        return text
    return _DOUBLED.sub(r"\\", text)
