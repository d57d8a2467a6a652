"""Each rule by itself: golden values, and the inputs that break it in other systems."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from guerdon.types import Result, Sample, Status
from guerdon_services.rules.service import RulesOptions, RulesScorer, RulesSettings
from guerdon_services.runtime.problem import InvalidFields
from guerdon_services.runtime.scorer import ScoreJob
from guerdon_services.runtime.validation import parse_options

SHARED = Path(os.environ.get("GUERDON_SHARED", Path(__file__).parents[3] / ".." / "shared"))
SCORER = RulesScorer(RulesSettings(workers=1))


@pytest.fixture(scope="module", autouse=True)
def close() -> Iterator[None]:
    yield
    SCORER.close()


def options(*rules: dict[str, Any]) -> RulesOptions:
    return RulesOptions.model_validate_json(json.dumps({"rules": rules}), strict=True)


def score(sample: Sample, *rules: dict[str, Any]) -> Result:
    return SCORER.score([ScoreJob(sample, options(*rules))])[0]


def value(response: str, rule: dict[str, Any], references: list[str] | None = None) -> float:
    result = score(Sample(response=response, references=references or []), rule)
    assert result.status is Status.OK, result.reason
    assert result.value is not None
    return result.value


def vector(name: str) -> dict[str, Any]:
    path = SHARED / "vectors" / f"{name}.json"
    if not path.exists():
        pytest.skip(f"no shared vectors at {path}")
    return json.loads(path.read_text())


def test_format_equals_rlpr() -> None:
    golden = vector("rlpr_text__format_reward")
    for text, r1, nothink in zip(
        golden["inputs"]["texts"], golden["outputs"]["R1"], golden["outputs"]["R1_nothink"], strict=True
    ):
        assert value(text, {"rule": "format"}) == r1, text
        assert value(text, {"rule": "format", "tags": ["answer"], "text_before": True}) == nothink, text


def test_repetition_equals_rlpr() -> None:
    golden = vector("rlpr_text__repetition_penalty")
    for index, text in enumerate(golden["inputs"]["texts"]):
        for limit in golden["parameters"]["limits"]:
            rule = {"rule": "repetition", "window": golden["parameters"]["window"], "limit": limit}
            assert value(text, rule) == golden["outputs"][f"limit{limit}"][index], text


@pytest.mark.parametrize(
    ("response", "rule", "expected"),
    [
        ("<think>a</think><answer>b</answer>", {"text_between": False, "text_after": False}, 1),
        ("<think>a</think><answer>b</answer>\n", {"text_between": False, "text_after": False}, 0),
        ("<think>a</think> <answer>b</answer>", {"text_between": False}, 0),
        ("<think>a</think><answer>b</answer>", {"tags": ["plan", "answer"]}, 0),
        ("<plan>p</plan><answer>b</answer>", {"tags": ["plan", "answer"]}, 1),
        ("<think></think><answer></answer>", {}, 1),
        ("</think><think>a<answer>b</answer>", {}, 0),
        ("<think><answer>b</answer></think>", {}, 0),
        ("no tags", {"failure": -1}, -1),
        ("Answer: 42", {"pattern": r"Answer: \d+"}, 1),
        ("Answer: 42 maybe", {"pattern": r"Answer: \d+"}, 0),
        ("a\nb", {"pattern": "a.b"}, 1),
    ],
)
def test_format(response: str, rule: dict[str, Any], expected: float) -> None:
    assert value(response, {"rule": "format", **rule}) == expected


@pytest.mark.parametrize(
    ("response", "reference", "rule", "expected"),
    [
        ("<think>Paris? no, Rome</think>  Rome ", "rome", {}, 1),
        ("Rome.", "Rome", {}, 0),
        ("Rome.", "Rome", {"ignore_punctuation": True}, 1),
        ("The  Rome", "rome", {"ignore_articles": True}, 1),
        ("Rome", "rome", {"ignore_case": False}, 0),
        ("so\n\\boxed{x \\{1\\}}", "x \\{1\\}", {"answer_from": "last_box"}, 1),
        ("\\boxed{1} \\boxed{2}", "2", {"answer_from": "last_box"}, 1),
        ("no box: 2", "2", {"answer_from": "last_box"}, 0),
        ("<answer>4</answer> or <answer>5</answer>", "5", {"answer_from": "answer_tag"}, 1),
        ("<answer>4", "4", {"answer_from": "answer_tag"}, 0),
        ("work\n 12 \n", "12", {"answer_from": "last_line"}, 1),
        ("ﬁve", "five", {}, 1),
    ],
)
def test_exact(response: str, reference: str, rule: dict[str, Any], expected: float) -> None:
    assert value(response, {"rule": "exact", **rule}, [reference]) == expected


def test_exact_takes_any_reference_and_refuses_empty_ones() -> None:
    assert value("b", {"rule": "exact"}, ["a", "b"]) == 1.0
    missing = score(Sample(response="b"), {"rule": "exact"})
    assert (missing.status, missing.value) == (Status.INVALID_INPUT, None)
    assert "references is missing" in missing.reason
    empty = score(Sample(response="", references=["  "]), {"rule": "exact"})
    assert empty.status is Status.INVALID_INPUT
    assert "references[0] is empty" in empty.reason
    punctuation = score(
        Sample(response="", references=["..."]), {"rule": "exact", "ignore_punctuation": True}
    )
    assert punctuation.status is Status.INVALID_INPUT


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("B", 1),
        ("(b)", 1),
        ("**B**", 1),
        ("B. 42 apples", 1),
        ("\\boxed{\\text{B}}", 1),
        ("The answer is B.", 1),
        ("The answer is (B) because A is wrong", 1),
        ("A fast car. Final answer: B", 1),
        ("A fast car goes 10 km. The answer is \\boxed{A}", 0),
        ("A or B", 0),
        ("The answer is B or C", 0),
        ("The answer is A, B, C, D", 0),
        ("ABCD", 0),
        ("Z", 0),
        ("Not B", 0),
        ("", 0),
        ("B <think> or rather A</think> A", 0),
        ("But it rained", 0),
    ],
)
def test_choice(response: str, expected: float) -> None:
    assert value(response, {"rule": "choice", "letters": "ABCD"}, ["B"]) == expected


def test_choice_refuses_a_reference_that_is_no_choice() -> None:
    result = score(Sample(response="B", references=["forty-two"]), {"rule": "choice"})
    assert result.status is Status.INVALID_INPUT
    assert "references[0]" in result.reason


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"pattern": "b+"}, 1),
        ({"pattern": "b+", "match": "fullmatch"}, 0),
        ({"pattern": "B", "ignore_case": True}, 1),
        ({"pattern": "B"}, 0),
        ({"pattern": "z", "forbid": True}, 1),
        ({"pattern": "b", "forbid": True}, 0),
    ],
)
def test_regex(rule: dict[str, Any], expected: float) -> None:
    assert value("abba", {"rule": "regex", **rule}) == expected


def test_a_pattern_that_backtracks_for_ever_is_a_timeout_not_a_zero() -> None:
    rule = {"rule": "regex", "pattern": r"(a+)+$", "match": "fullmatch", "time_limit_s": 0.2}
    rule["pattern"] = r"(?:a|a|aa)+b(?<!x)c"
    result = score(Sample(response="a" * 60), rule)
    assert (result.status, result.value) == (Status.TIMEOUT, None)
    assert "0.2 s" in result.reason


def test_json_schema() -> None:
    schema = {"type": "object", "required": ["x"], "properties": {"x": {"type": "integer", "minimum": 3}}}
    rule = {"rule": "json_schema", "schema": schema}
    assert value('{"x": 3}', rule) == 1
    assert value('{"x": 2}', rule) == 0
    assert value('{"x": "3"}', rule) == 0
    assert value('first\n```json\n{"x": 1}\n```\nthen\n```json\n{"x": 5}\n```\n', rule) == 1
    assert value('<think>{"x": 1}</think>{"x": 5}', rule) == 1
    assert value('{"x": 3', rule) == 0
    assert value('{"x": NaN}', {"rule": "json_schema"}) == 0
    assert value("[" * 100_000, {"rule": "json_schema"}) == 0
    assert value("1" * 10_000, {"rule": "json_schema"}) == 0


def test_json_schema_fetches_nothing() -> None:
    remote = {"rule": "json_schema", "schema": {"$ref": "http://127.0.0.1:9/schema.json"}}
    result = score(Sample(response="{}"), remote)
    assert result.status is Status.INVALID_INPUT
    assert "127.0.0.1:9" in result.reason


@pytest.mark.parametrize(
    ("schema", "response"),
    [
        ({"pattern": r"^(a|a)+$"}, json.dumps("a" * 60 + "!")),
        ({"patternProperties": {r"^(a|a)+$": {}}}, json.dumps({"a" * 60 + "!": 1})),
        (
            {"additionalProperties": False, "patternProperties": {r"^(a|a)+$": {}}},
            json.dumps({"a" * 60 + "!": 1}),
        ),
        ({"uniqueItems": True}, json.dumps([{"a": number} for number in range(40_000)])),
    ],
)
def test_a_json_schema_that_takes_for_ever_is_a_timeout(schema: dict[str, Any], response: str) -> None:
    service = RulesScorer(RulesSettings(workers=1, time_limit_s=1))
    try:
        job = ScoreJob(Sample(response=response), options({"rule": "json_schema", "schema": schema}))
        assert service.score([job])[0].status is Status.TIMEOUT
        easy = ScoreJob(Sample(response="1"), options({"rule": "json_schema", "schema": {"type": "integer"}}))
        assert service.score([easy])[0].value == 1.0
    finally:
        service.close()


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"not": {"$ref": "#"}}, {"allOf": [{"$ref": "#"}]}])
def test_a_json_schema_without_end_is_no_reward(schema: dict[str, Any]) -> None:
    for response in ("1", '"aaaa"', '{"a": [1]}'):
        result = score(Sample(response=response), {"rule": "json_schema", "schema": schema})
        assert (result.status, result.value) == (Status.INVALID_INPUT, None)
        assert "refers to itself without end" in result.reason


def test_json_too_deep_or_too_large_for_a_schema_is_a_0() -> None:
    nested = {"rule": "json_schema", "schema": {"properties": {"a": {"$ref": "#"}}}}
    assert value('{"a":' * 40 + "1" + "}" * 40, nested) == 1
    assert value('{"a":' * 900 + "1" + "}" * 900, nested) == 0
    assert value("1" + "0" * 400, {"rule": "json_schema", "schema": {"multipleOf": 0.1}}) == 0


@pytest.mark.parametrize(
    ("characters", "expected"),
    [(0, 0), (60, 0), (61, -0.025), (80, -0.5), (100, -1), (101, -1), (10_000, -1)],
)
def test_length_is_the_soft_overlong_penalty(characters: int, expected: float) -> None:
    assert value("x" * characters, {"rule": "length", "max_length": 100, "buffer": 40}) == pytest.approx(
        expected
    )


def test_length_in_tokens_needs_the_token_ids() -> None:
    rule = {"rule": "length", "max_length": 4, "buffer": 2, "unit": "tokens"}
    result = score(Sample(response="a long text", response_token_ids=[1, 2, 3]), rule)
    assert result.value == -0.5
    missing = score(Sample(response="a long text"), rule)
    assert missing.status is Status.INVALID_INPUT
    assert "response_token_ids" in missing.reason


@given(st.integers(0, 300), st.integers(1, 200), st.integers(0, 200))
def test_length_falls_monotonically_between_0_and_minus_1(length: int, longest: int, buffer: int) -> None:
    rule = {"rule": "length", "max_length": longest, "buffer": min(buffer, longest)}
    first, second = value("x" * length, rule), value("x" * (length + 1), rule)
    assert -1.0 <= second <= first <= 0.0


def test_the_value_is_the_weighted_sum_and_the_verdict_lists_each_rule() -> None:
    result = score(
        Sample(response="<think>a</think><answer>Rome</answer>", references=["Rome"]),
        {"rule": "format", "weight": 0.2},
        {"rule": "exact", "weight": 0.8, "answer_from": "answer_tag"},
        {"rule": "length", "weight": 0.5, "max_length": 10},
    )
    assert result.value == pytest.approx(0.2 + 0.8 - 0.5)
    assert result.verdict is not None
    assert [(verdict.rule, verdict.value) for verdict in result.verdict.rules] == [
        ("format", 1.0),
        ("exact", 1.0),
        ("length", -1.0),
    ]


def test_one_sample_at_fault_leaves_its_neighbours_alone() -> None:
    rule = options({"rule": "exact"})
    samples = [
        Sample(response="a", references=["a"]),
        Sample(references=["a"]),
        Sample(response="b", references=["a"]),
    ]
    results = SCORER.score([ScoreJob(sample, rule) for sample in samples])
    assert [result.value for result in results] == [1.0, None, 0.0]
    assert results[1].reason.startswith("response is missing")


@pytest.mark.parametrize(
    "rule",
    [
        {"rule": "regex", "pattern": "("},
        {"rule": "regex", "pattern": "(?:" * 3000 + ")" * 3000},
        {"rule": "regex", "pattern": "a" * 10_001},
        {"rule": "format", "pattern": "a", "tags": ["b"]},
        {"rule": "format", "tags": ["b>"]},
        {"rule": "length", "max_length": 5, "buffer": 6},
        {"rule": "json_schema", "schema": {"type": "nonsense"}},
        {"rule": "choice", "letters": "a"},
        {"rule": "unheard-of"},
        {"rule": "exact", "wieght": 1.0},
        {"rule": "exact", "weight": "1"},
    ],
)
def test_wrong_options_are_refused(rule: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        options(rule)


def test_no_rules_are_refused_and_the_schema_names_every_rule() -> None:
    with pytest.raises(ValidationError):
        options()
    schema = RulesOptions.model_json_schema()
    named = schema["properties"]["rules"]["items"]["discriminator"]["mapping"]
    assert set(named) == {
        "format", "exact", "choice", "regex", "json_schema", "length", "repetition", "reasoning_gym",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            {"rule": "length", "max_length": 5, "max": 5},
            "options.rules.0.max: unknown field; known: weight, rule, max_length, buffer, unit",
        ),
        ({"rule": "json_schema", "shema": {}}, "options.rules.0.shema: unknown field; did you mean schema?"),
        ({"rule": "json_schema", "schema": 5}, "options.rules.0.schema: Input should be an object"),
        (
            {"rule": "repetition", "n": 2},
            "options.rules.0.n: unknown field; known: weight, rule, window, limit, penalty",
        ),
    ],
)
def test_a_wrong_option_is_named_within_its_own_rule(rule: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidFields) as refused:
        parse_options(RulesOptions, {"rules": [rule]})
    assert str(refused.value) == message
