"""The codec keeps types apart, and takes no bytes on trust."""

import math
from collections import OrderedDict, defaultdict, namedtuple
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon_services.code import codec

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
keys = st.none() | st.integers() | st.text() | st.tuples(st.integers(), st.text())
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(keys, inner)
        | st.sets(st.integers() | st.text())
        | st.frozensets(st.integers())
    ),
    max_leaves=20,
)


def shape(value: Any) -> Any:
    """The value with its types spelled out: 1, 1.0 and True differ."""
    if isinstance(value, dict):
        return dict, [(shape(key), shape(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [shape(item) for item in value]
    return type(value), value


@given(values)
def test_round_trip_keeps_types(value: Any) -> None:
    assert shape(codec.decode(codec.encode(value))) == shape(value)


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_are_malformed(data: bytes) -> None:
    for json_only in (False, True):
        try:
            codec.decode(data, json_only=json_only)
        except codec.Malformed:
            continue


@given(values, st.data())
def test_every_cut_is_malformed(value: Any, data: st.DataObject) -> None:
    encoded = codec.encode(value)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(codec.Malformed):
        codec.decode(encoded[:cut])


def test_trailing_bytes_are_malformed() -> None:
    with pytest.raises(codec.Malformed, match="follow"):
        codec.decode(codec.encode(1) + b"N")


def test_a_lying_length_allocates_nothing() -> None:
    with pytest.raises(codec.Malformed):
        codec.decode(b"l" + (2**60).to_bytes(8, "little"))


def test_a_repeated_key_is_malformed() -> None:
    pair = codec.encode("a") + codec.encode(1)
    with pytest.raises(codec.Malformed, match="repeats"):
        codec.decode(b"d" + (2).to_bytes(8, "little") + pair * 2)


@pytest.mark.parametrize("nested", [b"l" + (1).to_bytes(8, "little")] * 1)
def test_depth_is_bounded(nested: bytes) -> None:
    with pytest.raises(codec.Malformed, match="deeper"):
        codec.decode(nested * 5000 + b"N")
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueError, match="deeper"):
        codec.encode(loop)


def test_json_only_hashes_nothing_but_text() -> None:
    assert codec.decode(codec.encode({1: 2}), json_only=True) == codec.Opaque(
        "dict with keys that are not text"
    )
    assert codec.decode(codec.encode({"a": {1}}), json_only=True) == {"a": codec.Opaque("set")}


def test_subclasses_count_as_what_they_extend_and_strangers_are_opaque() -> None:
    class Always(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    point = namedtuple("point", "x y")(1, 2)
    value = [Always(7), OrderedDict(a=1), defaultdict(int, b=2), point, object(), math.inf]
    assert codec.decode(codec.encode(value)) == [
        7,
        {"a": 1},
        {"b": 2},
        (1, 2),
        codec.Opaque("object"),
        math.inf,
    ]
    assert type(codec.decode(codec.encode(Always(7)))) is int
