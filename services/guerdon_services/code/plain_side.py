"""The program's side of the connection with pure tests: calls come in with plain values and so do results go out.

Untrusted, like all that shares a process with the program; what is said here is checked by `warm_side`. Several calls
may come at once, and are answered one by one.

    C  from the tests, marshalled: whether these are the last calls, and the calls
    J  a result as JSON           V  a result that JSON would change (`codec`)
    X  an exception: the name of its type and its message, as JSON        ?  what is not plain
"""

import json
import marshal
from collections.abc import Callable
from typing import Any, cast

from guerdon_services.code import codec, known
from guerdon_services.code.peer import LINK_FD, receive, send

CALLS, JSON, VALUE, RAISED, OTHER = b"C", b"J", b"V", b"X", b"?"
#: The name of the function, arguments and keywords; asked with whether the arguments are wanted back.
Call = tuple[str, list[Any], dict[str, Any]]
Asked = tuple[str, list[Any], dict[str, Any], bool]
_SCALARS = frozenset({int, float, str, bool, type(None)})
_MESSAGE_CHARACTERS = 300
_BUILTIN = (int, float, str, bytes, list, tuple, dict, set, frozenset)


class _NotPlain(Exception):
    """A value that has no encoding."""


def serve(find: Callable[[str], Any], frame: bytes) -> None:
    """Answer `frame` and what comes after it, until the tests are over."""
    while True:
        last, calls = cast("tuple[bool, list[Asked]]", marshal.loads(frame[1:]))
        try:
            for call in calls:
                answer = _answer(find, *call)
                send(LINK_FD, answer)
                if answer[:1] != JSON and answer[:1] != VALUE:
                    break  # the tests end with it
            if last:
                return
            frame = receive(LINK_FD)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return


def _answer(
    find: Callable[[str], Any], name: str, arguments: list[Any], keywords: dict[str, Any], effects: bool
) -> bytes:
    try:
        function = find(name)
        if isinstance(function, type):
            return OTHER
        before = _marshalled(arguments) if effects else None
        value = function(*arguments, **keywords)
    except Exception as error:
        return _raised(error)
    try:
        if effects:
            value = [value, arguments if _marshalled(arguments) != before else None]
        if _is_json(value, 0):
            try:
                return JSON + json.dumps(value, ensure_ascii=False).encode()
            except UnicodeEncodeError:
                # Escaped, two halves of a character would come back as one.
                pass
        return VALUE + codec.encode(value, _refuse)
    except Exception:
        return OTHER


def _marshalled(value: Any) -> bytes:
    """Its bytes, the same for equal values of equal types."""
    return marshal.dumps(value, 2)


def _raised(error: Exception) -> bytes:
    try:
        message = str(error)[:_MESSAGE_CHARACTERS]
    except Exception:
        message = ""
    return RAISED + json.dumps([type(error).__name__, message]).encode()


def _is_json(value: Any, depth: int) -> bool:
    """True where JSON gives back exactly this value."""
    kind = cast("type[Any]", type(value))
    if kind in _SCALARS:
        return kind is not int or -(1 << 64) < value < 1 << 64
    if depth > 20:
        return False
    if kind is list:
        return all(_is_json(item, depth + 1) for item in value)
    if kind is dict:
        return all(type(key) is str and _is_json(item, depth + 1) for key, item in value.items())
    return False


def _refuse(value: Any) -> None:
    if known.describe(value) is not None or not isinstance(value, _BUILTIN):
        raise _NotPlain
