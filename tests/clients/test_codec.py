"""guerdon.codec: nothing is lost between pydantic and protobuf, and every error names the field."""

import contextlib
import math
import types as python_types
from collections.abc import Callable
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
import pytest
from google.protobuf import struct_pb2
from google.protobuf.message import Message as Proto
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import JsonValue
from pydantic.fields import FieldInfo

from guerdon import codec, types
from guerdon._values import MAX_OPTIONS_DEPTH
from guerdon.errors import InvalidRequest
from guerdon.types import Message, Status
from guerdon.v1 import reward_pb2, rollout_pb2, update_pb2

MESSAGES = [
    cls
    for cls in vars(types).values()
    if isinstance(cls, type) and issubclass(cls, Message) and cls is not Message
]

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
SINGLES = st.floats(allow_nan=False, allow_infinity=False, width=32)


def json_values(numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.none() | st.booleans() | TEXT | numbers,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
        max_leaves=8,
    )


JSON = json_values(st.integers() | DOUBLES)
# Whole requests are large; that is the point.
SLOW_DATA = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
# A Struct holds doubles.
OPTIONS = st.dictionaries(TEXT, json_values(st.integers(-(2**53), 2**53) | DOUBLES), max_size=3)


def numbers(annotation: type, marks: list[Any], *, single: bool) -> st.SearchStrategy[Any]:
    """Numbers within the bounds that pydantic enforces (int32 where it enforces none)."""
    bounds: list[Any] = []
    for mark in marks:
        bounds += mark.metadata if isinstance(mark, FieldInfo) else [mark]
    low: Any = -(2**31) if annotation is int else None
    high: Any = 2**31 - 1 if annotation is int else None
    open_low = False
    for bound in bounds:
        match bound:
            case annotated_types.Ge(ge=low):
                pass
            case annotated_types.Gt(gt=low):
                open_low = True
            case annotated_types.Le(le=high):
                pass
            case annotated_types.Lt(lt=limit):
                high = limit - 1  # type: ignore[operator]
            case _:
                pass
    if annotation is int:
        return st.integers(low + open_low, high)
    if single:
        return SINGLES
    return st.floats(low, high, allow_nan=False, allow_infinity=False, exclude_min=open_low)


def values(annotation: Any, marks: list[Any], *, single: bool = False) -> st.SearchStrategy[Any]:
    """Values that a field of this annotation accepts."""
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation is JsonValue:
        return JSON
    if annotation in (types.Options, dict[str, JsonValue]):
        return JSON.map(lambda value: {"key": value}) if any_json_text(marks) else OPTIONS
    if origin is Annotated:
        return values(args[0], [*marks, *args[1:]], single=single)
    if origin in (Union, python_types.UnionType):
        return st.one_of(*[values(arg, marks, single=single) for arg in args])
    if origin is list:
        return st.lists(values(args[0], [], single=single), max_size=3)
    if origin is dict:
        return st.dictionaries(TEXT, values(args[1], []), max_size=3)
    if origin is Literal:
        return st.sampled_from(args)
    if annotation is str:
        # Empty text is "not given" where the default is another text.
        return TEXT.filter(bool)
    if annotation is bool:
        return st.booleans()
    if annotation in (int, float):
        return numbers(annotation, marks, single=single)
    if annotation is Status:
        return st.sampled_from(Status)
    if annotation is python_types.NoneType:
        return st.none()
    return messages(annotation)


def any_json_text(marks: list[Any]) -> bool:
    return any(isinstance(mark, types.JsonText) for mark in marks)


def messages(cls: type[Message]) -> st.SearchStrategy[Any]:
    fields = codec.proto_type(cls).DESCRIPTOR.fields_by_name
    required: dict[str, Any] = {}
    optional: dict[str, Any] = {}
    for name, info in cls.model_fields.items():
        # pyright does not know that FieldDescriptor.TYPE_FLOAT is 2
        strategy = values(info.annotation, info.metadata, single=fields[name].type == 2)
        (required if info.is_required() else optional)[name] = strategy
    return st.fixed_dictionaries(required, optional=optional).map(lambda given: build(cls, given))


def build(cls: type[Message], given: dict[str, Any]) -> Message:
    """The message, after the rules that tie its fields to its status."""
    if cls is types.Result:
        ok = given["status"] is Status.OK
        given["value"] = (given.get("value") or 0.5) if ok else None
        count = min(len(given.get("token_rewards", [])), len(given.get("token_ids", []))) if ok else 0
        given["token_rewards"] = given.get("token_rewards", [])[:count]
        given["token_ids"] = given.get("token_ids", [])[: count or None]
    if cls is types.GenerateResult:
        given["status"] = Status.OK if given.get("rollouts") else Status.TIMEOUT
    if cls is types.IndexedGeneration and (given.get("piece") is None) == (given.get("result") is None):
        given |= {"piece": None, "result": types.GenerateResult(status=Status.TIMEOUT)}
    return cls(**given)


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
@settings(max_examples=60, deadline=None, suppress_health_check=SLOW_DATA)
@given(data=st.data())
def test_every_message_survives_the_round_trip(cls: type[Message], data: st.DataObject) -> None:
    message = data.draw(messages(cls))
    assert codec.decode(cls, codec.encode(message)) == message


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=200))
def test_random_bytes_are_invalid_or_a_message(cls: type[Message], data: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        assert isinstance(codec.decode(cls, data), cls)


@settings(max_examples=200, deadline=None, suppress_health_check=SLOW_DATA)
@given(
    request=messages(types.ScoreRequest), cut=st.integers(0, 10_000), flip=st.integers(0, 255), data=st.data()
)
def test_damaged_requests_raise_nothing_but_invalid(
    request: types.ScoreRequest, cut: int, flip: int, data: st.DataObject
) -> None:
    damaged = bytearray(codec.encode(request))
    if damaged:
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = flip
    with contextlib.suppress(InvalidRequest):
        assert isinstance(codec.decode(types.ScoreRequest, bytes(damaged[:cut])), types.ScoreRequest)


def sample_with(**fields: Any) -> reward_pb2.ScoreRequest:
    good = reward_pb2.Sample(response="fine")
    return reward_pb2.ScoreRequest(samples=[good, reward_pb2.Sample(**fields)])


NAN_OPTIONS = struct_pb2.Struct()
NAN_OPTIONS["beta"] = [1, math.nan]
EMPTY_OPTION = struct_pb2.Struct(fields={"beta": struct_pb2.Value()})


@pytest.mark.parametrize(
    ("proto", "expected"),
    [
        (sample_with(response_token_ids=[1, -1]), "samples.1.response_token_ids.1: "),
        (sample_with(outcome=math.nan), "samples.1.outcome: "),
        (sample_with(outcome=1.5), "samples.1.outcome: "),
        (sample_with(prompt=reward_pb2.Prompt()), "samples.1.prompt: must be text or chat"),
        (sample_with(metadata="[1]"), "samples.1.metadata: "),
        (sample_with(metadata="{"), "samples.1.metadata: not JSON text"),
        (sample_with(metadata="[" * 100_000), "samples.1.metadata: JSON text is nested too deeply"),
        (sample_with(metadata='{"a": ' + "1" * 5000 + "}"), "samples.1.metadata: not JSON text"),
        (sample_with(code=reward_pb2.CodeTask(language="python")), "samples.1.code.kind: "),
        (
            sample_with(code=reward_pb2.CodeTask(kind="call", tests=[reward_pb2.CodeTest(args="7")])),
            "samples.1.code.tests.0.args: ",
        ),
        (
            sample_with(code=reward_pb2.CodeTask(kind="call", tests=[reward_pb2.CodeTest(expected="NaN")])),
            "samples.1.code.tests.0.expected: not JSON text: NaN is not a finite number",
        ),
        (
            sample_with(code=reward_pb2.CodeTask(kind="call", tests=[reward_pb2.CodeTest(expected="1e999")])),
            "samples.1.code.tests.0.expected: not JSON text: 1e999 is not a finite number",
        ),
        (reward_pb2.ScoreRequest(min_version=-1), "min_version: "),
        (reward_pb2.ScoreRequest(options=NAN_OPTIONS), "options.beta.1: must be a finite number"),
        (reward_pb2.ScoreRequest(options=EMPTY_OPTION), "options.beta: has no value"),
        (reward_pb2.ScoreResponse(results=[reward_pb2.Result()]), "results.0.status: must be given"),
        (reward_pb2.Result.FromString(b"\x10\x4d"), "status: unknown status 77"),
        (reward_pb2.Result(status=reward_pb2.STATUS_OK), "value must be given exactly when status is ok"),
        (
            reward_pb2.Result(status=reward_pb2.STATUS_TIMEOUT, value=0.0),
            "value must be given exactly when status is ok",
        ),
        (reward_pb2.IndexedResult(index=3), "result: Field required"),
        (rollout_pb2.GenerateRequest(sampling=rollout_pb2.Sampling(n=0)), "sampling.n: "),
        (update_pb2.UpdateRequest(request_id="u1", order="sideways"), "order: "),
        (update_pb2.UpdateRequest(order="before"), "request_id: "),
    ],
)
def test_an_invalid_protobuf_message_names_the_field(proto: Proto, expected: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        codec.from_proto(proto)
    assert expected in str(caught.value)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (types.Sample(response="\ud800"), "response: "),
        (types.Sample(prompt=[types.ChatMessage(role="user", content="\ud800")]), "prompt.0.content: "),
        (types.ScoreRequest(samples=[types.Sample(), types.Sample(id="\udfff")]), "samples.1.id: "),
        (types.ScoreRequest(samples=[], options={"seed": 2**53 + 1}), "options.seed: integers past 2**53"),
        (types.ScoreRequest(samples=[], options={"a": [1, 2**70]}), "options.a.1: integers past 2**53"),
        (types.ScoreRequest(samples=[], options=nested(40)), "nested more than 24 deep"),
        (types.Span(start=2**31, end=0, token_start=0, token_end=0), "start: "),
        (
            types.Result(status=Status.OK, value=1.0, token_rewards=[0.0, 1e300], token_ids=[1, 2]),
            "token_rewards.1: does not fit a float32",
        ),
        (types.CodeTest(args=[10**5000]), "args: "),
    ],
)
def test_a_message_without_protobuf_form_names_the_field(message: Message, expected: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        codec.encode(message)
    assert expected in str(caught.value)


def test_bytes_of_another_kind_are_named() -> None:
    with pytest.raises(InvalidRequest, match=r"body: not a protobuf guerdon\.v1\.Result"):
        codec.decode(types.Result, b"\xff\xff\xff")


@pytest.mark.parametrize(
    ("test", "given", "text"),
    [
        (types.CodeTest(), False, None),
        (types.CodeTest(expected=None), True, "null"),
        (types.CodeTest(expected=1), True, "1"),
        (types.CodeTest(expected=1.0), True, "1.0"),
        (types.CodeTest(expected=10**60), True, "1" + "0" * 60),
    ],
)
def test_an_expected_null_stays_apart_from_none_given(
    test: types.CodeTest, given: bool, text: str | None
) -> None:
    proto = codec.to_proto(test)
    assert isinstance(proto, reward_pb2.CodeTest)
    assert (proto.expected if proto.HasField("expected") else None) == text
    back = codec.decode(types.CodeTest, proto.SerializeToString())
    assert ("expected" in back.model_fields_set) is given
    assert type(back.expected) is type(test.expected)


def test_absent_optionals_are_absent_in_the_dict() -> None:
    assert codec.to_dict(reward_pb2.Sample(id="a", response_token_ids=[1, 2])) == {
        "id": "a",
        "response_token_ids": [1, 2],
    }
    assert codec.to_dict(reward_pb2.CodeTask(kind="stdio")) == {"kind": "stdio"}
    assert codec.from_proto(reward_pb2.CodeTask(kind="stdio")) == types.CodeTask(kind="stdio")


def test_a_prompt_keeps_its_kind() -> None:
    chat = [types.ChatMessage(role="user", content="hi")]
    for prompt in ("", "text", [], chat):
        sample = types.Sample(prompt=prompt)
        assert codec.decode(types.Sample, codec.encode(sample)).prompt == prompt


def test_whole_option_numbers_come_back_as_int() -> None:
    request = types.ScoreRequest(
        samples=[], options={"n": 3, "beta": 0.5, "flag": True, "none": None, "d": {}}
    )
    options = codec.decode(types.ScoreRequest, codec.encode(request)).options
    assert options == request.options
    assert {name: type(value) for name, value in options.items()} == {
        name: type(value) for name, value in request.options.items()
    }


def test_the_deepest_options_allowed_can_be_read() -> None:
    request = types.ScoreRequest(samples=[], options=nested(MAX_OPTIONS_DEPTH))
    assert codec.decode(types.ScoreRequest, codec.encode(request)) == request


def test_floats_at_the_limits_of_float32_pass() -> None:
    largest = float.fromhex("0x1.fffffep127")
    rewards = [largest, -largest, largest]
    result = types.Result(status=Status.OK, value=1.0, token_rewards=rewards, token_ids=[1, 2, 3])
    assert codec.decode(types.Result, codec.encode(result)) == result


@pytest.mark.parametrize("call", [codec.to_dict, codec.from_proto])
def test_messages_without_a_mirror_are_refused(call: Callable[[Proto], object]) -> None:
    with pytest.raises(TypeError, match="InfoRequest"):
        call(reward_pb2.InfoRequest())


def test_numbers_travel_as_packed_binary() -> None:
    """Token ids and their numbers are one field each, not one field per number and no text."""
    ids, numbers = [151_000] * 1000, [-0.123456789] * 1000
    sample = types.Sample(prompt_token_ids=ids, response_token_ids=ids)
    result = types.Result(status=Status.OK, value=1.0, token_rewards=numbers, token_ids=ids)
    rollout = types.Rollout(
        response="", token_ids=ids, logprobs=numbers, finish_reason="stop", model_version=1
    )
    # Three bytes for an id of this size, four for a float32; a tag and a length for each list.
    for message, lists, size in ((sample, 2, 6000), (result, 2, 7000), (rollout, 2, 7000)):
        bare = message.model_copy(update={name: [] for name in _lists_of_numbers(message)})
        assert len(codec.encode(message)) - len(codec.encode(bare)) == size + 3 * lists


def _lists_of_numbers(message: Message) -> list[str]:
    return [name for name, value in message if isinstance(value, list) and len(value) == 1000]
