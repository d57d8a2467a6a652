"""The contract has two forms, proto/guerdon/v1 and guerdon.types: neither may drift from the other."""

import subprocess
import sys
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto
from pydantic import JsonValue
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from guerdon import types
from guerdon.types import Message
from guerdon.v1 import reward_pb2, rollout_pb2, update_pb2

ROOT = Path(__file__).resolve().parents[2]
FILES = [reward_pb2.DESCRIPTOR, rollout_pb2.DESCRIPTOR, update_pb2.DESCRIPTOR]
DESCRIPTORS: dict[str, Descriptor] = {
    name: descriptor for file in FILES for name, descriptor in file.message_types_by_name.items()
}
MIRRORS: dict[str, type[Message]] = {
    name: cls
    for name, cls in vars(types).items()
    if isinstance(cls, type) and issubclass(cls, Message) and cls is not Message
}
#: A prompt is a plain string or list in pydantic; requests for information have no body in JSON.
PROTO_ONLY = {"Prompt", "Chat", "InfoRequest"}

SCALARS = {
    FieldDescriptor.TYPE_STRING: str,
    FieldDescriptor.TYPE_INT32: int,
    FieldDescriptor.TYPE_INT64: int,
    FieldDescriptor.TYPE_DOUBLE: float,
    FieldDescriptor.TYPE_FLOAT: float,
    FieldDescriptor.TYPE_BOOL: bool,
}
FIELDS = [
    pytest.param(name, field.name, id=f"{name}.{field.name}")
    for name, cls in DESCRIPTORS.items()
    if name in MIRRORS
    for field in cls.fields
]


def plain(annotation: Any) -> Any:
    """The annotation without bounds, without None, literals as the type of their values."""
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation in (types.Prompt, JsonValue):
        return annotation
    if origin is Annotated:
        return plain(args[0])
    if origin in (Union, UnionType):
        left = [arg for arg in args if arg is not NoneType]
        return plain(left[0]) if len(left) == 1 else Union[tuple(left)]  # noqa: UP007
    if origin is Literal:
        return type(args[0])
    if origin is list:
        return list[plain(args[0])]
    if origin is dict:
        return dict[args[0], plain(args[1])]
    return annotation


def single(field: FieldDescriptor) -> Any:
    """The Python type of one value of a protobuf field."""
    if field.enum_type is not None:
        return getattr(types, field.enum_type.name)
    if field.message_type is None:
        return SCALARS[field.type]
    if field.message_type.full_name == "google.protobuf.Struct":
        return dict[str, JsonValue]
    return types.Prompt if field.message_type.name == "Prompt" else MIRRORS[field.message_type.name]


def python_type(field: FieldDescriptor) -> Any:
    """The Python type that mirrors a protobuf field."""
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        return dict[single(entry.fields_by_name["key"]), single(entry.fields_by_name["value"])]
    return list[single(field)] if field.is_repeated else single(field)


def is_optional(field: FieldDescriptor) -> bool:
    """True when the proto file says `optional`."""
    message = DescriptorProto()
    assert field.containing_type is not None
    DESCRIPTORS[field.containing_type.name].CopyToProto(message)
    return message.field[field.index].proto3_optional


def both(message: str, name: str) -> tuple[FieldDescriptor, FieldInfo]:
    return DESCRIPTORS[message].fields_by_name[name], MIRRORS[message].model_fields[name]  # pyright: ignore[reportReturnType]


def test_every_message_has_a_mirror_and_nothing_else_has() -> None:
    assert set(DESCRIPTORS) - PROTO_ONLY == set(MIRRORS)


def test_what_has_no_mirror_has_nothing_to_mirror() -> None:
    assert [field.name for field in DESCRIPTORS["Prompt"].fields] == ["text", "chat"]
    assert [field.name for field in DESCRIPTORS["Chat"].fields] == ["messages"]
    assert not DESCRIPTORS["InfoRequest"].fields


@pytest.mark.parametrize("name", sorted(MIRRORS))
def test_names_and_order_agree(name: str) -> None:
    assert [field.name for field in DESCRIPTORS[name].fields] == list(MIRRORS[name].model_fields)


@pytest.mark.parametrize("name", sorted(DESCRIPTORS))
def test_field_numbers_have_no_holes(name: str) -> None:
    numbers = [field.number for field in DESCRIPTORS[name].fields]
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize(("message", "name"), FIELDS)
def test_types_agree(message: str, name: str) -> None:
    field, info = both(message, name)
    if any(isinstance(mark, types.JsonText) for mark in info.metadata):
        assert python_type(field) is str
        assert plain(info.annotation) in (JsonValue, list[JsonValue], dict[str, JsonValue])
        return
    assert plain(info.annotation) == python_type(field)


@pytest.mark.parametrize(("message", "name"), FIELDS)
def test_optionality_agrees(message: str, name: str) -> None:
    field, info = both(message, name)
    default = info.get_default(call_default_factory=True)
    may_be_none = NoneType in get_args(info.annotation) or info.annotation is JsonValue
    if field.name == "options":
        # Absent options and empty ones mean the same.
        assert is_optional(field)
        assert default == {}
    elif is_optional(field):
        assert not info.is_required()
        assert may_be_none is (default is None)
    else:
        assert not may_be_none
        zero = [] if field.is_repeated else field.default_value
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            zero = {}
        assert default is PydanticUndefined or default == zero


def test_statuses_agree() -> None:
    names = [value.name for value in reward_pb2.DESCRIPTOR.enum_types_by_name["Status"].values]
    assert names == ["STATUS_UNSPECIFIED", *(f"STATUS_{status.name}" for status in types.Status)]
    assert [status.value for status in types.Status] == [status.name.lower() for status in types.Status]


def test_every_rpc_has_an_operation_of_the_client() -> None:
    methods = {
        f"{service.name}.{method.name}"
        for file in FILES
        for service in file.services_by_name.values()
        for method in service.methods
    }
    assert methods == {
        "RewardService.Score",
        "RewardService.ScoreStream",
        "RewardService.Info",
        "RolloutService.Generate",
        "RolloutService.GenerateStream",
        "UpdateService.Update",
        "UpdateService.Versions",
    }


def test_the_generated_code_is_what_the_protos_generate(tmp_path: Path) -> None:
    protos = sorted(
        path.relative_to(ROOT / "proto").as_posix() for path in ROOT.glob("proto/guerdon/v1/*.proto")
    )
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(ROOT / "proto"), *outputs, *protos]
    subprocess.run(command, check=True)
    committed = {path.name: path.read_bytes() for path in (ROOT / "clients/guerdon/v1").glob("*_pb2*")}
    generated = {path.name: path.read_bytes() for path in (tmp_path / "guerdon/v1").glob("*_pb2*")}
    assert sorted(generated) == sorted(committed)
    differing = [name for name, content in generated.items() if content != committed[name]]
    assert not differing, f"run `make proto`: {differing}"
