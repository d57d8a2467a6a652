"""Small tagged encoding of plain Python values, for one pipe between a sandbox and its supervisor.

Used instead of pickle (which runs code) and of JSON (which loses int/float, tuple/list and non-string keys). The
sender may be hostile: decoding builds nothing but plain values, checks every length, and bounds the depth.

    N T F        None, True, False
    i f s b      integer (hexadecimal text), float (8 bytes), text (UTF-8), bytes
    l t d S z    list, tuple, dict (keys and values in turn), set, frozenset
    o            anything else: only the name of its type
    x            a list that `special` turned a value into, and turns back into one; malformed where none is given
"""

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

MAX_DEPTH = 200
_LENGTH = struct.Struct("<Q")
_DOUBLE = struct.Struct("<d")
_CONTAINERS: list[tuple[Any, bytes]] = [(list, b"l"), (tuple, b"t"), (set, b"S"), (frozenset, b"z")]
_PLAIN = frozenset({bool, int, float, str, bytes, list, tuple, dict, set, frozenset, type(None)})
Put = Callable[[bytes], None]
#: What to say about a value whose type is not exactly a plain one: a list to encode instead, or None.
Describe = Callable[[Any], "list[Any] | None"]
#: The value that such a list stands for.
Rebuild = Callable[["list[Any]"], Any]


class Malformed(ValueError):
    """The bytes are not one well-formed value."""


@dataclass(frozen=True)
class Opaque:
    """A value of a type that has no encoding; equal to nothing that a test can expect."""

    type_name: str


def is_plain(value: Any) -> bool:
    """True when the value's type is exactly a builtin one that has an encoding."""
    return type(value) in _PLAIN


def encode(value: Any, special: Describe | None = None) -> bytes:
    """The bytes of one value; subclasses of builtin containers and numbers count as what they extend.

    `special` is asked first about every value that is not of a plain type.

    Raises:
        ValueError: nested deeper than `MAX_DEPTH` (or containing itself).
    """
    # One buffer: a part for each item would take several times the memory of the value, which the program pays for.
    buffer = bytearray()
    _Writer(buffer.extend, special).write(value, 0)
    return bytes(buffer)


class _Writer:
    def __init__(self, put: Put, special: Describe | None) -> None:
        self.put = put
        self.special = special

    def write(self, value: Any, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise ValueError(f"the value is nested deeper than {MAX_DEPTH}")
        kind = cast("type[Any]", type(value))
        if self.special and kind not in _PLAIN:
            described = self.special(value)
            if described is not None:
                self.put(b"x")
                self.write(described, depth + 1)
                return
        if value is None or kind is bool:
            self.put(b"N" if value is None else b"T" if value else b"F")
        elif issubclass(kind, int):
            self.sized(b"i", format(int.__index__(value), "x").encode())
        elif issubclass(kind, float):
            self.put(b"f" + _DOUBLE.pack(float.__float__(value)))
        elif issubclass(kind, str):
            self.sized(b"s", str.encode(value, "utf-8", "surrogatepass"))
        elif issubclass(kind, bytes):
            self.sized(b"b", bytes(value))
        elif issubclass(kind, dict):
            items = list(dict[Any, Any].items(value))
            self.items(b"d", (part for item in items for part in item), len(items), depth)
        elif kind.__module__ == "numpy" and hasattr(value, "tolist"):
            self.write(value.tolist(), depth + 1)
        else:
            self.container(value, kind, depth)

    def container(self, value: Any, kind: type[Any], depth: int) -> None:
        for base, tag in _CONTAINERS:
            if issubclass(kind, base):
                # The builtin's own iterator: a subclass may have overridden it.
                items: list[Any] = list(base.__iter__(value))
                self.items(tag, items, len(items), depth)
                return
        self.sized(b"o", kind.__name__.encode("utf-8", "replace")[:100])

    def sized(self, tag: bytes, body: bytes) -> None:
        self.put(tag + _LENGTH.pack(len(body)))
        self.put(body)

    def items(self, tag: bytes, items: Iterable[Any], count: int, depth: int) -> None:
        self.put(tag + _LENGTH.pack(count))
        for item in items:
            self.write(item, depth + 1)


def encode_list(items: Iterable[bytes]) -> bytes:
    """The bytes of a list from the bytes of its items, which may be a stranger's and are not looked at."""
    parts = list(items)
    return b"l" + _LENGTH.pack(len(parts)) + b"".join(parts)


def decode(data: bytes, *, json_only: bool = False) -> Any:
    """The one value that `data` holds.

    With `json_only`, sets, bytes and dicts with keys other than text become `Opaque`: nothing is ever hashed
    but text, so that no choice of keys makes decoding slow.

    Raises:
        Malformed: `data` is anything else than exactly one value.
    """
    reader = Reader(data, json_only=json_only)
    value = reader.value(0)
    reader.end()
    return value


class Reader:
    """Reads values that follow one another; `special` turns lists with tag x into what they stand for."""

    def __init__(self, data: bytes, *, json_only: bool = False, special: Rebuild | None = None) -> None:
        self.data = data
        self.position = 0
        self.json_only = json_only
        self.special = special

    def end(self) -> None:
        """Check that nothing follows.

        Raises:
            Malformed: something does.
        """
        if self.position != len(self.data):
            raise Malformed("bytes follow the value")

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.position:
            raise Malformed("the value is cut short")
        self.position += count
        return self.data[self.position - count : self.position]

    def length(self) -> int:
        # Every item takes at least one byte: a count above that is a lie, not a reason to allocate.
        length = int(_LENGTH.unpack(self.take(8))[0])
        if length > len(self.data) - self.position:
            raise Malformed("the value is cut short")
        return length

    def value(self, depth: int = 0) -> Any:
        """The next value.

        Raises:
            Malformed: there is none, or it is no value.
        """
        if depth > MAX_DEPTH:
            raise Malformed(f"the value is nested deeper than {MAX_DEPTH}")
        tag = self.take(1)
        if tag in b"NTF":
            return {b"N": None, b"T": True, b"F": False}[tag]
        if tag == b"f":
            return float(_DOUBLE.unpack(self.take(8))[0])
        if tag in b"isbo":
            return self.scalar(tag, self.take(self.length()))
        if tag in b"ltdSz":
            return self.container(tag, depth)
        if tag == b"x" and self.special:
            return self.rebuilt(self.value(depth + 1))
        raise Malformed(f"unknown tag {tag!r}")

    def rebuilt(self, described: Any) -> Any:
        assert self.special
        if not isinstance(described, list):
            raise Malformed("a special value is no list")
        try:
            return self.special(cast("list[Any]", described))
        except (TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise Malformed(f"not what a special value looks like: {error}") from None

    def scalar(self, tag: bytes, body: bytes) -> Any:
        try:
            if tag == b"s":
                return body.decode("utf-8", "surrogatepass")
            if tag == b"i":
                return int(body, 16)
        except ValueError as error:
            raise Malformed(str(error)[:200]) from None
        if tag == b"o":
            return Opaque(body.decode("utf-8", "replace"))
        return Opaque("bytes") if self.json_only else body

    def container(self, tag: bytes, depth: int) -> Any:
        length = self.length()
        if tag == b"d":
            return self.mapping(length, depth)
        items = [self.value(depth + 1) for _ in range(length)]
        if tag == b"l":
            return items
        if tag == b"t":
            return tuple(items)
        if self.json_only:
            return Opaque("set")
        try:
            return set(items) if tag == b"S" else frozenset(items)
        except TypeError as error:
            raise Malformed(str(error)) from None

    def mapping(self, length: int, depth: int) -> Any:
        pairs = [(self.value(depth + 1), self.value(depth + 1)) for _ in range(length)]
        if self.json_only and not all(type(key) is str for key, _ in pairs):
            return Opaque("dict with keys that are not text")
        try:
            result = dict(pairs)
        except TypeError as error:
            raise Malformed(str(error)) from None
        if len(result) != length:
            raise Malformed("a dict repeats a key")
        return result
