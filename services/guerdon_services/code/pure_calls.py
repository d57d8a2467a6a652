"""Which calls of the program pure tests (`pure`) will make, in the groups in which they may be asked at once.

Whoever is asked several calls at once sees the arguments of all before it answers the first. Those must not tell what
is expected: in `assert f("ab") == "ba"` and then `assert f("ba") == "ab"` each argument is the other's answer. So a
group goes on only while answers are compared with literals, and none of these is among the next arguments.
"""

import ast
from typing import Any, cast

from guerdon_services.code.plain_side import Call

#: Values that tell nothing by being among the arguments.
_TELL_NOTHING: frozenset[Any] = frozenset({None, "", b"", (), frozenset[Any]()})


class Foreseen:
    """Collects the calls as a reader of the tests comes to them."""

    def __init__(self) -> None:
        self.groups: list[list[Call]] = []
        self.count = 0
        #: Literals beside the calls: of the statements since the group began, and of the present one.
        self._compared: set[Any] = set()
        self._present: set[Any] = set()
        #: The next call may be asked together with the last.
        self._open = False

    def literal(self, value: Any) -> None:
        """A literal that is no argument of a call."""
        _collect(value, self._present)

    def call(self, call: Call) -> None:
        """The next call."""
        told: set[Any] = set()
        for argument in (*call[1], *call[2].values()):
            inner: set[Any] = set()
            whole = _collect(argument, inner)
            # Among the numbers of a list, one that is expected somewhere is no news.
            told |= {
                part for part in inner if part == whole or isinstance(part, (str, bytes, tuple, frozenset))
            }
        if not self._open or not told.isdisjoint(self._compared):
            self.groups.append([])
            self._compared = set()
        self.groups[-1].append(call)
        self.count += 1
        self._open = False

    def statement(self, *, calls: int, plain: bool) -> None:
        """The end of a statement with so many calls; `plain`: it compares answers with literals, and no more."""
        self._open = plain and (calls == 1 or (calls == 0 and self._open))
        self._compared |= self._present
        self._present = set()


def _collect(value: Any, parts: set[Any]) -> Any:
    """Add all parts of a literal that tell something, hashable and whatever their type; returns the whole of it."""
    if isinstance(value, (list, tuple)):
        value = tuple(_collect(item, parts) for item in cast("list[Any]", value))
    elif isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        value = frozenset((_collect(key, parts), _collect(item, parts)) for key, item in items)
    if type(value) is not bool and value not in _TELL_NOTHING:
        parts.add(value)
    return value


def literal(node: Any) -> Any:
    """The value of a literal.

    Raises:
        LookupError: it is none.
    """
    kind = cast("type[ast.AST]", type(node))
    if kind is ast.Constant:
        if node.value is not Ellipsis:
            return node.value
    elif kind is ast.List:
        return [literal(part) for part in node.elts]
    elif kind is ast.Tuple:
        return tuple(literal(part) for part in node.elts)
    elif kind is ast.Dict and None not in node.keys:
        return _literal_dict(node)
    elif kind is ast.UnaryOp and type(node.op) is ast.USub and type(node.operand) is ast.Constant:
        value: Any = node.operand.value
        if type(value) in (int, float):
            return -value
    raise LookupError


def _literal_dict(node: Any) -> dict[Any, Any]:
    try:
        return {literal(key): literal(value) for key, value in zip(node.keys, node.values, strict=True)}
    except TypeError:  # what cannot be a key
        raise LookupError from None


def keyword(node: ast.keyword) -> str:
    """Its name.

    Raises:
        LookupError: it is `**`.
    """
    if node.arg is None:
        raise LookupError
    return node.arg
