"""Pydantic messages to protobuf and back, generic over the descriptors of `guerdon.v1`.

What differs between the two forms, and how:

- `Prompt` is a string or a list of chat messages in pydantic and a oneof in protobuf.
- `Status` is a string enum in pydantic and a number in protobuf.
- Fields marked `types.JsonText` hold a JSON value in pydantic and its text in protobuf. `expected: null` that
  was given stays apart from `expected` that was not.
- `options` are a dict in pydantic and a Struct in protobuf, which knows only doubles: numbers without a
  fractional part come back as int, and integers past 2**53 are refused.
- `token_rewards` and `logprobs` are float32 in protobuf and come back rounded to it.

Every error is an `InvalidRequest` that names the field by its dotted path (`samples.3.response_token_ids.0`).
The way between a class and its descriptor is planned once per class; no reflection runs per message.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto
from pydantic import JsonValue, ValidationError

from guerdon import types
from guerdon._values import FieldError, dotted, json_of, parse_json, read_struct, write_struct
from guerdon.errors import InvalidRequest
from guerdon.types import Message
from guerdon.v1 import reward_pb2, rollout_pb2, update_pb2

M = TypeVar("M", bound=Message)

#: Problems that one error message lists.
MAX_LISTED_PROBLEMS = 5

_FLOAT32_MAX = (2 - 2**-23) * 2.0**127
_MODULES = (reward_pb2, rollout_pb2, update_pb2)


def to_proto(message: Message) -> Proto:
    """The protobuf form of a message.

    Raises:
        InvalidRequest: a value has no protobuf form (a lone surrogate, an integer past int32, ...).
    """
    plan = _plan(type(message))
    proto = plan.proto_type()
    try:
        _write_message(plan, message, proto)
    except FieldError as error:
        raise InvalidRequest(str(error)) from error
    return proto


def to_dict(proto: Proto) -> dict[str, Any]:
    """Plain Python ready for pydantic; what is absent in the protobuf message is absent here.

    Raises:
        InvalidRequest: a field has no pydantic form (a prompt of no kind, text that is no JSON, ...).
    """
    try:
        return _read_message(_plan(_message_type(proto.DESCRIPTOR.name)), proto)
    except FieldError as error:
        raise InvalidRequest(str(error)) from error


def from_proto(proto: Proto) -> Message:
    """The validated pydantic form of a protobuf message.

    Raises:
        InvalidRequest: a field is missing or out of its bounds; the message names it.
    """
    values = to_dict(proto)
    try:
        return _message_type(proto.DESCRIPTOR.name).model_validate(values)
    except ValidationError as error:
        raise InvalidRequest(describe(error)) from error


def encode(message: Message) -> bytes:
    """The protobuf bytes of a message; raises as `to_proto` does."""
    return to_proto(message).SerializeToString()


def decode(cls: type[M], data: bytes) -> M:
    """The message of class `cls` in protobuf bytes.

    Raises:
        InvalidRequest: the bytes are no such message, or a field is missing or out of its bounds.
    """
    proto = _plan(cls).proto_type()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise InvalidRequest(f"body: not a protobuf {proto.DESCRIPTOR.full_name}") from error
    message = from_proto(proto)
    assert isinstance(message, cls)
    return message


def proto_type(cls: type[Message]) -> type[Proto]:
    """The generated protobuf class that `cls` mirrors."""
    return _plan(cls).proto_type


#: Pydantic's words that say less than they could.
_SAID = {
    "extra_forbidden": "unknown field",
    "unexpected_keyword_argument": "unknown field",
}


def describe(error: ValidationError) -> str:
    """A validation error as one line: the dotted path of each field and what is wrong with it."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [
        f"{dotted(problem['loc'])}: {_SAID.get(problem['type'], problem['msg'])}"
        for problem in problems[:MAX_LISTED_PROBLEMS]
    ]
    if len(problems) > MAX_LISTED_PROBLEMS:
        lines.append(f"and {len(problems) - MAX_LISTED_PROBLEMS} more")
    return "; ".join(lines)


# Plans ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Field:
    """How one field is written and read.

    `write` gets the protobuf message that holds the field and the pydantic value; `read` the protobuf value. They are
    None where both forms have the same value.
    """

    name: str
    write: Callable[[Any, Any], None] | None
    read: Callable[[Any], Any] | None
    #: The protobuf side knows whether the field was given.
    presence: bool
    #: None is a value of its own, different from "not given".
    null_is_value: bool
    #: A protobuf zero (0, "", empty) means "not given", for pydantic has a default.
    zero_is_absent: bool


@dataclass(frozen=True, slots=True)
class _Plan:
    proto_type: type[Proto]
    fields: tuple[_Field, ...]
    by_descriptor: dict[FieldDescriptor, _Field]
    #: Those whose protobuf zero is a value: pydantic has no default for them.
    always: tuple[_Field, ...]


def _message_type(name: str) -> type[Message]:
    cls = getattr(types, name, None)
    if not (isinstance(cls, type) and issubclass(cls, Message)):
        raise TypeError(f"guerdon.types has no message {name}")
    return cls


def _proto_type(name: str) -> type[Proto]:
    for module in _MODULES:
        if hasattr(module, name):
            return getattr(module, name)
    raise TypeError(f"guerdon.v1 has no message {name}")


@cache
def _plan(cls: type[Message]) -> _Plan:
    proto = _proto_type(cls.__name__)
    descriptors = cast(Sequence[FieldDescriptor], proto.DESCRIPTOR.fields)
    by_descriptor = {descriptor: _field(cls, descriptor) for descriptor in descriptors}
    fields = tuple(by_descriptor.values())
    always = tuple(field for field in fields if not (field.presence or field.zero_is_absent))
    return _Plan(proto, fields, by_descriptor, always)


def _field(cls: type[Message], descriptor: FieldDescriptor) -> _Field:
    info = cls.model_fields[descriptor.name]
    json_text = any(isinstance(mark, types.JsonText) for mark in info.metadata)
    write, read = _json_text(descriptor.name) if json_text else _accessors(descriptor)
    presence = descriptor.has_presence
    return _Field(
        name=descriptor.name,
        write=write,
        read=read,
        presence=presence,
        # `list | None` and its like use None for "not given"; only a bare JSON value may be null itself.
        null_is_value=json_text and info.annotation is JsonValue,
        zero_is_absent=not info.is_required(),
    )


Accessors = tuple[Callable[[Any, Any], None] | None, Callable[[Any], Any] | None]


def _accessors(descriptor: FieldDescriptor) -> Accessors:
    name, target = descriptor.name, descriptor.message_type
    if target is not None and target.GetOptions().map_entry:
        return (lambda proto, value: getattr(proto, name).update(value)), dict
    if target is None and descriptor.is_repeated:
        return _packed(name, single=descriptor.type == FieldDescriptor.TYPE_FLOAT)
    if descriptor.enum_type is not None:
        return (lambda proto, value: setattr(proto, name, _STATUS_NUMBER[value])), _read_status
    if target is None:
        return None, None
    if target.full_name == "google.protobuf.Struct":
        return (lambda proto, value: write_struct(value, getattr(proto, name))), read_struct
    if target.name == "Prompt":
        return (lambda proto, value: _write_prompt(value, getattr(proto, name))), _read_prompt
    return _messages(name, _plan(_message_type(target.name)), repeated=descriptor.is_repeated)


# Messages ------------------------------------------------------------------------------------------------


def _write_message(plan: _Plan, message: Message, proto: Any) -> None:
    values = message.__dict__
    for field in plan.fields:
        value = values[field.name]
        if not value:
            # Nothing to write: an absent field reads as the same zero.
            if field.zero_is_absent and not field.presence:
                continue
            if value is None and not (field.null_is_value and field.name in message.model_fields_set):
                continue
        try:
            if field.write is None:
                setattr(proto, field.name, value)
            else:
                field.write(proto, value)
        except FieldError as error:
            raise error.under(field.name) from error
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise FieldError(str(error), field.name) from error


def _read_message(plan: _Plan, proto: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    # One call lists what was given, and leaves out the zeros of fields that cannot tell zero from "not given".
    given: list[tuple[FieldDescriptor, Any]] = proto.ListFields()
    for descriptor, value in given:
        field = plan.by_descriptor[descriptor]
        values[field.name] = value if field.read is None else _read(field, value)
    for field in plan.always:
        if field.name not in values:
            values[field.name] = _read(field, getattr(proto, field.name))
    return values


def _read(field: _Field, value: Any) -> Any:
    try:
        return value if field.read is None else field.read(value)
    except FieldError as error:
        raise error.under(field.name) from error


def _messages(name: str, plan: _Plan, *, repeated: bool) -> Accessors:
    def write_one(proto: Any, value: Any) -> None:
        child = getattr(proto, name)
        child.SetInParent()
        _write_message(plan, value, child)

    if not repeated:
        return write_one, lambda proto: _read_message(plan, proto)
    return (
        lambda proto, values: _write_items(plan, values, getattr(proto, name)),
        lambda protos: _read_items(plan, protos),
    )


def _write_items(plan: _Plan, values: Iterable[Message], container: Any) -> None:
    try:
        for value in values:
            _write_message(plan, value, container.add())
    except FieldError as error:
        raise error.under(len(container) - 1) from error


def _read_items(plan: _Plan, protos: Iterable[Any]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    try:
        for proto in protos:
            items.append(_read_message(plan, proto))
    except FieldError as error:
        raise error.under(len(items)) from error
    return items


def _packed(name: str, *, single: bool) -> Accessors:
    def write(proto: Any, values: Any) -> None:
        if single:
            _check_float32(values)
        getattr(proto, name).extend(values)

    return write, _copy


def _copy(values: Any) -> Any:
    # Slicing a protobuf container is faster than iterating over it.
    return values[:]


def _check_float32(values: Sequence[float]) -> None:
    """Refuse what protobuf would quietly turn into infinity."""
    # The Euclidean norm bounds every element and takes one fast call.
    if math.hypot(*values) <= _FLOAT32_MAX:
        return
    for index, value in enumerate(values):
        if not abs(value) <= _FLOAT32_MAX:
            raise FieldError("does not fit a float32", index)


# Special fields ------------------------------------------------------------------------------------------

_STATUS_NUMBER = {
    status: reward_pb2.Status.Value(f"STATUS_{status.name}")  # pyright: ignore[reportUnknownMemberType]
    for status in types.Status
}
_STATUS_OF = {number: status for status, number in _STATUS_NUMBER.items()}


def _read_status(number: int) -> types.Status:
    status = _STATUS_OF.get(number)
    if status is None:
        raise FieldError("must be given" if number == 0 else f"unknown status {number}")
    return status


def _write_prompt(prompt: types.Prompt, proto: Any) -> None:
    if isinstance(prompt, str):
        proto.text = prompt
        return
    proto.chat.SetInParent()
    _write_items(_plan(types.ChatMessage), prompt, proto.chat.messages)


def _read_prompt(proto: Any) -> str | list[dict[str, Any]]:
    kind = proto.WhichOneof("kind")
    if kind == "text":
        return proto.text
    if kind == "chat":
        return _read_items(_plan(types.ChatMessage), proto.chat.messages)
    raise FieldError("must be text or chat")


def _json_text(name: str) -> Accessors:
    return (lambda proto, value: setattr(proto, name, json_of(value))), parse_json
