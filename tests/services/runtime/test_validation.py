"""The validator: total over any bytes, and the same verdict for a sample alone and among others."""

import json
import math
from collections.abc import Callable
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.errors import InvalidRequest
from guerdon.types import Sample, ScoreRequest
from guerdon_services.runtime.problem import InvalidFields, MalformedBody
from guerdon_services.runtime.protobuf import parse_score as parse_score_proto
from guerdon_services.runtime.scorer import ScorerOptions
from guerdon_services.runtime.validation import (
    BadItem,
    did_you_mean,
    parse_generate,
    parse_options,
    parse_score,
    parse_update,
)

SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
FIELDS = st.sampled_from([*Sample.model_fields, "respnse", ""])
SAMPLES = st.dictionaries(FIELDS, JSON, max_size=4) | JSON


class Options(ScorerOptions):
    """One of each kind."""

    count: int = 1
    weight: float = 1.0
    mode: Literal["a", "b"] = "a"
    names: tuple[str, ...] = ()
    strict: bool = False


def refusal(parse: Callable[[Any], Any], given: Any) -> InvalidRequest | None:
    try:
        parse(given)
    except InvalidRequest as error:
        return error
    return None


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(body: bytes) -> None:
    for parse in (parse_score, parse_generate, parse_update, parse_score_proto):
        refused = refusal(parse, body)
        assert refused is None or str(refused)


@settings(max_examples=300)
@given(st.lists(SAMPLES.filter(lambda sample: _is_unicode(sample)), max_size=4))
def test_a_sample_is_judged_as_if_alone(samples: list[Any]) -> None:
    parsed = parse_score(json.dumps({"samples": samples}).encode())
    assert len(parsed.samples) == len(samples)
    for sample, verdict in zip(samples, parsed.samples, strict=True):
        [alone] = parse_score(json.dumps({"samples": [sample]}).encode()).samples
        # As text, for NaN inside a refused sample never equals itself.
        assert repr(alone) == repr(verdict)
        if isinstance(verdict, BadItem):
            assert ": " in verdict.reason
        else:
            json.loads(json.dumps(sample), parse_constant=_let_through)


def _is_unicode(value: Any) -> bool:
    """Whether JSON text of it is valid Unicode: lone surrogates refuse the whole body."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _let_through(constant: str) -> float:
    raise AssertionError(f"{constant} was let through")


@given(
    st.dictionaries(
        st.sampled_from(["count", "weight", "mode", "names", "strict", "cuont"]), JSON, max_size=3
    )
)
def test_options_are_parsed_or_refused_naming_the_field(options: dict[str, Any]) -> None:
    refused = refusal(lambda given: parse_options(Options, given), options)
    if isinstance(refused, InvalidFields):
        assert all(field.field.startswith("options") for field in refused.fields)
        return
    parsed = parse_options(Options, options)
    assert refused is None
    assert isinstance(parsed.count, int)
    assert math.isfinite(parsed.weight)
    assert set(options) <= set(Options.model_fields)


def test_whole_numbers_are_integers_whatever_door_they_came_through() -> None:
    assert parse_options(Options, {"count": 3.0, "weight": 2, "names": ["x"]}) == Options(
        count=3, weight=2.0, names=("x",)
    )
    with pytest.raises(InvalidFields, match=r"options\.count"):
        parse_options(Options, {"count": "3"})
    with pytest.raises(InvalidFields, match=r"options\.strict"):
        parse_options(Options, {"strict": 1})


def test_a_wrong_option_shows_before_a_thousand_wrong_samples() -> None:
    body = json.dumps({"samples": [{"response": 1}] * 1000, "optoins": {}}).encode()
    with pytest.raises(InvalidFields) as caught:
        parse_score(body)
    assert caught.value.fields[0].field == "optoins"
    assert len(caught.value.fields) == 8


def test_the_fast_path_and_the_slow_path_agree() -> None:
    good = {"id": "a", "prompt": [{"role": "user", "content": "hi"}], "response_token_ids": [1], "outcome": 1}
    fast = parse_score(json.dumps({"samples": [good], "min_version": 3, "options": {"a": [1.5]}}).encode())
    slow = parse_score(json.dumps({"samples": [good, 3], "min_version": 3, "options": {"a": [1.5]}}).encode())
    assert fast.samples[0] == slow.samples[0]
    assert slow.samples[1] == BadItem(
        None, slow.samples[1].reason if isinstance(slow.samples[1], BadItem) else ""
    )
    assert isinstance(fast.envelope, ScoreRequest)
    assert (slow.envelope.min_version, slow.envelope.options) == (3, {"a": [1.5]})
    assert (fast.envelope.min_version, fast.envelope.options) == (3, {"a": [1.5]})


def test_large_integers_in_free_form_fields_keep_their_digits() -> None:
    big = 12345678901234567890123456789
    parsed = parse_score(json.dumps({"samples": [{"metadata": {"n": big}}, {"bad": 1}]}).encode())
    assert isinstance(parsed.samples[0], Sample)
    assert parsed.samples[0].metadata == {"n": big}


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"samples":[' + b'{"metadata":{"a":' * 5000, b"\x00", b"nul"]
)
def test_hostile_json_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedBody):
        parse_score(body)


def test_the_closest_name_is_offered_or_all_of_them() -> None:
    assert did_you_mean("exctraction", ["extraction", "beta"]) == "did you mean extraction?"
    assert did_you_mean("zzz", ["extraction", "beta"]) == "known: extraction, beta"
