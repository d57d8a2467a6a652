"""JSON values in protobuf: as JSON text, and as the Struct of `options`."""

import json
import math
from collections.abc import Sequence
from typing import Any

from google.protobuf import struct_pb2
from pydantic import JsonValue

from guerdon.types import Options

#: Nesting of `options`: protobuf parsers give up at 100 messages, and each level of a Struct costs three.
MAX_OPTIONS_DEPTH = 24

_EXACT_INT = 2**53


def dotted(path: Sequence[str | int]) -> str:
    """`("samples", 3, "id")` as `samples.3.id`; the empty path is the body itself."""
    return ".".join(str(part) for part in path) or "body"


class FieldError(Exception):
    """What is wrong with a field; gains one path element per level on its way up."""

    def __init__(self, message: str, *path: str | int) -> None:
        super().__init__(message)
        self.message = message
        self.path = path

    def under(self, parent: str | int) -> "FieldError":
        """The same problem, seen from the message that holds the field."""
        return FieldError(self.message, parent, *self.path)

    def __str__(self) -> str:
        return f"{dotted(self.path)}: {self.message}"


def json_of(value: JsonValue) -> str:
    """Compact JSON text; raises ValueError for what JSON lacks (infinities, NaN)."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def parse_json(text: str) -> Any:
    """The value that JSON text stands for: integers of any size, no NaN, no infinities."""
    try:
        return _DECODER.decode(text)
    except RecursionError as error:
        raise FieldError("JSON text is nested too deeply") from error
    except ValueError as error:
        raise FieldError(f"not JSON text: {error}") from error


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def write_struct(options: Options, proto: Any) -> None:
    """Fill a Struct; no options leave it absent."""
    if options:
        _write_entries(options, proto, 1)


def _write_entries(options: Options, proto: Any, depth: int) -> None:
    for key, value in options.items():
        try:
            _write_value(value, proto.fields[key], depth)
        except FieldError as error:
            raise error.under(key) from error


def _write_value(value: JsonValue, proto: Any, depth: int) -> None:
    if depth > MAX_OPTIONS_DEPTH:
        raise FieldError(f"nested more than {MAX_OPTIONS_DEPTH} deep")
    match value:
        case None:
            proto.null_value = 0
        case bool():
            proto.bool_value = value
        case str():
            proto.string_value = value
        case int() | float():
            proto.number_value = _exact_double(value)
        case list():
            proto.list_value.SetInParent()
            for index, item in enumerate(value):
                try:
                    _write_value(item, proto.list_value.values.add(), depth + 1)
                except FieldError as error:
                    raise error.under(index) from error
        case dict():
            proto.struct_value.SetInParent()
            _write_entries(value, proto.struct_value, depth + 1)


def _exact_double(value: float) -> float:
    if isinstance(value, int) and abs(value) > _EXACT_INT:
        raise FieldError("integers past 2**53 would be rounded")
    if not math.isfinite(value):
        raise FieldError("must be a finite number")
    return value


def read_struct(proto: struct_pb2.Struct) -> dict[str, Any]:
    """The dict in a Struct; numbers without a fractional part come back as int."""
    values: dict[str, Any] = {}
    for key, value in proto.fields.items():
        try:
            values[key] = _read_value(value)
        except FieldError as error:
            raise error.under(key) from error
    return values


def _read_value(proto: struct_pb2.Value) -> Any:
    match proto.WhichOneof("kind"):
        case "null_value":
            return None
        case "bool_value":
            return proto.bool_value
        case "string_value":
            return proto.string_value
        case "number_value":
            return _read_number(proto.number_value)
        case "struct_value":
            return read_struct(proto.struct_value)
        case "list_value":
            return _read_list(proto.list_value)
        case None:
            raise FieldError("has no value")


def _read_number(value: float) -> int | float:
    if not math.isfinite(value):
        raise FieldError("must be a finite number")
    return int(value) if value.is_integer() and abs(value) <= _EXACT_INT else value


def _read_list(proto: struct_pb2.ListValue) -> list[Any]:
    values: list[Any] = []
    try:
        for item in proto.values:
            values.append(_read_value(item))
    except FieldError as error:
        raise error.under(len(values)) from error
    return values
