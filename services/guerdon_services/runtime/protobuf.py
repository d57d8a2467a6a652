"""From protobuf bytes to the checked requests of `validation`: the same verdicts as for JSON."""

from collections.abc import Sequence
from typing import Any, TypeVar, cast

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto
from google.protobuf.unknown_fields import UnknownFieldSet

from guerdon import codec
from guerdon.errors import InvalidRequest
from guerdon.types import (
    GenerateRequest,
    GenerateSample,
    Sample,
    ScoreRequest,
    UpdateRequest,
    VersionsRequest,
)
from guerdon.v1 import reward_pb2, rollout_pb2, update_pb2
from guerdon_services.runtime.problem import MalformedBody
from guerdon_services.runtime.scorer import RELEASE
from guerdon_services.runtime.validation import BadItem, Parsed, parse_mapping

ProtoT = TypeVar("ProtoT", bound=Proto)


def parse_score(body: bytes) -> Parsed[ScoreRequest, Sample]:
    """A score request from protobuf bytes.

    Raises:
        MalformedBody: it is no such message.
        InvalidRequest: something outside the samples is wrong.
    """
    return parse_mapping(ScoreRequest, Sample, _mapping(_read(reward_pb2.ScoreRequest, body)))


def parse_generate(body: bytes) -> Parsed[GenerateRequest, GenerateSample]:
    """A generate request from protobuf bytes; raises as `parse_score` does."""
    return parse_mapping(GenerateRequest, GenerateSample, _mapping(_read(rollout_pb2.GenerateRequest, body)))


def parse_update(body: bytes) -> UpdateRequest:
    """An update request from protobuf bytes; anything wrong refuses it all.

    Raises:
        MalformedBody: it is no such message.
        InvalidRequest: something is wrong.
    """
    request = codec.from_proto(_read(update_pb2.UpdateRequest, body))
    assert isinstance(request, UpdateRequest)
    return request


def parse_versions(body: bytes) -> VersionsRequest:
    """A question for versions from protobuf bytes; raises as `parse_update` does."""
    request = codec.from_proto(_read(update_pb2.VersionsRequest, body))
    assert isinstance(request, VersionsRequest)
    return request


def _read(proto_type: type[ProtoT], body: bytes) -> ProtoT:
    proto = proto_type()
    try:
        proto.ParseFromString(body)
    except DecodeError as error:
        raise MalformedBody(f"body: not a protobuf {proto.DESCRIPTOR.full_name}") from error
    # Scored without a field of a newer client, a sample could get a reward that means something else.
    proto.DiscardUnknownFields()
    if proto.ByteSize() != len(body) and (unknown := _unknown(proto_type, body, proto.ByteSize())):
        raise InvalidRequest(f"{unknown} is not known to this release ({RELEASE})")
    return proto


def _unknown(proto_type: type[Proto], body: bytes, known_bytes: int) -> str:
    """The dotted path of the first field that the message does not have; empty when the body only takes more bytes."""
    proto = proto_type()
    proto.ParseFromString(body)
    return (_find_unknown(proto) or "a field") if proto.ByteSize() != known_bytes else ""


def _find_unknown(proto: Proto) -> str:
    for field in UnknownFieldSet(proto):
        return f"field {field.field_number}"
    for descriptor, value in proto.ListFields():
        several = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        for index, child in enumerate(cast(Sequence[Any], value) if several else [value]):
            if isinstance(child, Proto) and (found := _find_unknown(child)):
                return f"{descriptor.name}.{index}.{found}" if several else f"{descriptor.name}.{found}"
    return ""


def _mapping(request: reward_pb2.ScoreRequest | rollout_pb2.GenerateRequest) -> dict[str, Any]:
    try:
        return codec.to_dict(request)
    except InvalidRequest:
        # One by one, to find out whose fault it is.
        envelope = type(request)()
        envelope.CopyFrom(request)  # pyright: ignore[reportArgumentType] -- the same type
        envelope.ClearField("samples")
        return {**codec.to_dict(envelope), "samples": [_item(sample) for sample in request.samples]}


def _item(sample: reward_pb2.Sample | rollout_pb2.GenerateSample) -> dict[str, Any] | BadItem:
    try:
        return codec.to_dict(sample)
    except InvalidRequest as error:
        return BadItem(sample.id if sample.HasField("id") else None, str(error))
