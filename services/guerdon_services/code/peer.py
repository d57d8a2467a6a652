"""One end of the connection between the tests and the program: asking, answering, and what may be said.

Frames: 8 bytes of length, then a kind and a body (`codec`, never pickle). Both ends may ask; whoever waits for
an answer answers questions meanwhile, so that a function that the tests handed over can be called back.

    Q  a question                 V  the answer's value                 X  an exception instead

A body is three values in a row: the type names of records, their attributes, and the value. Records are instances
of the task's own classes (list and tree nodes); they may point to each other, in circles too.
"""

import os
import struct
import threading
from typing import Any, Protocol, cast

from guerdon_services.code import codec

#: Beside the report pipe, in both sandboxes.
LINK_FD = 4
QUESTION, VALUE, RAISED = b"Q", b"V", b"X"
MAX_FRAME_BYTES = 64 << 20
_LENGTH = struct.Struct("<Q")
_NO_RECORDS = codec.encode([]) + codec.encode([])


class LinkLost(BaseException):
    """The other side ended, or sent what is no answer. Not an Exception: tests must not catch it."""


class Sides(Protocol):
    """What the tests' and the program's side know, each about its own objects."""

    def describe(self, value: Any) -> list[Any] | None:
        """What to send for a value that is not plain; None to send it as if it were."""
        ...

    def rebuild(self, described: list[Any]) -> Any:
        """The value or stand-in for what the other side described."""
        ...

    def record_type(self, value: Any) -> str | None:
        """The type name of an instance that crosses by its attributes, else None."""
        ...

    def new_record(self, type_name: str) -> Any:
        """An instance of the type of that name, without attributes."""
        ...

    def answer(self, question: list[Any]) -> Any:
        """The answer to a question of the other side."""
        ...

    def error(self, error: Exception) -> Any:
        """What to send for an exception."""
        ...


class Peer:
    """Asks and answers for one side."""

    def __init__(self, side: Sides) -> None:
        self._side = side
        # Tests may use threads; questions and answers alternate.
        self._lock = threading.RLock()
        #: Why the connection is of no more use.
        self.lost: str | None = None

    def ask(self, question: list[Any]) -> Any:
        """Ask; returns the answer's kind and value.

        Raises:
            LinkLost: no answer came.
            ValueError: the question is nested too deeply.
        """
        message = self._packed(QUESTION, question)
        with self._lock:
            try:
                send(LINK_FD, message)
                while (frame := receive(LINK_FD))[:1] == QUESTION:
                    send(LINK_FD, self._answered(frame))
                if frame[:1] not in (VALUE, RAISED):
                    raise codec.Malformed("what came is no answer")
                return frame[:1], self._unpacked(frame)
            except (EOFError, OSError, codec.Malformed, RecursionError, OverflowError, MemoryError) as error:
                self.lost = f"{error}"
                raise LinkLost(self.lost) from None

    def serve(self, frame: bytes) -> None:
        """Answer that question, and all that follow until the other side is gone."""
        while True:
            answer = self._answered(frame)
            try:
                send(LINK_FD, answer)
                frame = receive(LINK_FD)
            except (EOFError, BrokenPipeError, ConnectionResetError):
                return  # whoever asked is gone: that is no fault of the one who answers

    def _answered(self, frame: bytes) -> bytes:
        question = self._unpacked(frame)
        try:
            return self._packed(VALUE, self._side.answer(question))
        except Exception as error:
            return self._packed(RAISED, self._side.error(error))

    def _packed(self, kind: bytes, value: Any) -> bytes:
        names: list[str] = []
        records: list[Any] = []
        indices: dict[int, int] = {}

        def describe(value: Any) -> list[Any] | None:
            index = indices.get(id(value))
            if index is None:
                name = self._side.record_type(value)
                if name is None:
                    return self._side.describe(value)
                index = indices[id(value)] = len(records)
                names.append(name)
                records.append(value)
            return ["record", index]

        body = codec.encode(value, describe)
        if not records:
            return kind + _NO_RECORDS + body
        attributes: list[bytes] = []
        for record in records:  # grows while records lead to others
            attributes.append(codec.encode(vars(record), describe))
        return kind + codec.encode(names) + codec.encode_list(attributes) + body

    def _unpacked(self, frame: bytes) -> Any:
        records: list[Any] = []

        def rebuild(described: list[Any]) -> Any:
            if len(described) == 2 and described[0] == "record":
                return records[described[1]]
            return self._side.rebuild(described)

        reader = codec.Reader(frame[1:], special=rebuild)
        if frame.startswith(_NO_RECORDS, 1):  # the common case
            reader.position = len(_NO_RECORDS)
            value = reader.value()
            reader.end()
            return value
        names = cast("list[str]", reader.value())
        try:
            records.extend(map(self._side.new_record, names))
            for record, attributes in zip(records, reader.value(), strict=True):
                _give_attributes(record, attributes)
        except (TypeError, ValueError, AttributeError) as error:
            raise codec.Malformed(f"not what records look like: {error}") from None
        value = reader.value()
        reader.end()
        return value


def _give_attributes(record: Any, attributes: dict[str, Any]) -> None:
    """Set what the other side says; what the type itself computes is not for it to say."""
    for name, value in attributes.items():
        own: Any = getattr(cast("type[Any]", type(record)), name, None)
        if callable(own) or hasattr(cast("type[Any]", type(own)), "__get__"):
            raise ValueError(f"{name} is no attribute of its own")
        vars(record)[name] = value


def _read(descriptor: int, count: int) -> bytes:
    part = os.read(descriptor, min(count, 1 << 20))
    if len(part) == count:
        return part
    parts = bytearray(part)
    while part and len(parts) < count:
        part = os.read(descriptor, min(count - len(parts), 1 << 20))
        parts += part
    if len(parts) < count:
        raise EOFError("the connection ended")
    return bytes(parts)


def receive(descriptor: int) -> bytes:
    """The next frame, without its length.

    Raises:
        EOFError: the other side is gone.
        OverflowError: it is too long.
    """
    length = _LENGTH.unpack(_read(descriptor, 8))[0]
    if length > MAX_FRAME_BYTES:
        raise OverflowError(f"an answer of {length} bytes")
    return _read(descriptor, length)


def send(descriptor: int, body: bytes) -> None:
    """Send one frame."""
    message = _LENGTH.pack(len(body)) + body
    sent = os.write(descriptor, message)
    if sent < len(message):
        rest = memoryview(message)[sent:]
        while rest:
            rest = rest[os.write(descriptor, rest) :]
