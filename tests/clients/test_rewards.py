"""Several services as one reward: weights, gates, stated values, backups; never a value out of a failure."""

from pathlib import Path

import pytest

from guerdon.errors import InvalidRequest
from guerdon.rewards import Part, Rewards, mix, or_backup, parts_from_yaml
from guerdon.testing import StubService
from guerdon.types import Result, Sample, ScoreRequest, Status, failed


def ok(value: float, reason: str = "") -> Result:
    return Result(status=Status.OK, value=value, reason=reason)


FORMAT = Part(name="format", weight=0.1, gate=1.0)
RIGHT = Part(name="right", weight=1.0)
#: As a scorer says it, of a sample that it began.
TIMED_OUT = Result(status=Status.TIMEOUT, reason="over 2 s", scorer="math", exec_ms=2000.0)


def test_the_weighted_sum() -> None:
    mixed = mix([FORMAT, RIGHT], [ok(1.0), ok(0.5, "half")])
    assert mixed.value == pytest.approx(0.6)
    assert mixed.values == {"format": 1.0, "right": 0.5}
    assert mixed.reason == "format 1; right 0.5: half"


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_a_missing_value_leaves_the_whole_without(status: Status) -> None:
    for results in ([ok(1.0), failed(status, "why")], [failed(status, "why"), ok(1.0)]):
        mixed = mix([Part(name="a"), Part(name="b")], results)
        assert (mixed.value, mixed.status) == (None, status)
        assert mixed.reason.endswith("why")


def test_a_closed_gate_ends_the_sum_whatever_comes_after() -> None:
    for later in (ok(1.0), failed(Status.UNAVAILABLE, "gone"), None):
        mixed = mix([FORMAT, RIGHT], [ok(0.5), later])
        assert mixed.value == pytest.approx(0.05)
        assert mixed.values == {"format": 0.5}
        assert "below its gate" in mixed.reason


def test_a_part_of_weight_0_without_a_gate_only_measures() -> None:
    measure = Part(name="length", weight=0)
    mixed = mix([measure, RIGHT], [failed(Status.INVALID_INPUT, "no"), ok(0.5)])
    assert (mixed.value, mixed.status, mixed.values) == (0.5, Status.OK, {"right": 0.5})
    assert "length has no value (invalid_input)" in mixed.reason
    gate = Part(name="format", weight=0, gate=1.0)
    assert mix([gate, RIGHT], [failed(Status.INVALID_INPUT, "no"), ok(0.5)]).value is None


def test_a_stated_value_counts_only_for_what_the_sample_may_bring_about() -> None:
    part = Part(name="right", counts_as={"timeout": 0.0, "invalid_input": -1.0})
    assert mix([part], [TIMED_OUT]).value == 0.0
    assert mix([part], [failed(Status.INVALID_INPUT, "")]).value == -1.0
    # The client's own deadline passed, or the item waited in line: that is not the sample's doing.
    assert mix([part], [failed(Status.TIMEOUT, "no answer within 60 s")]).value is None
    assert mix([part], [Result(status=Status.TIMEOUT, scorer="math")]).value is None
    for status in (Status.OVERLOADED, Status.UNAVAILABLE, Status.INTERNAL_ERROR):
        assert mix([part], [failed(status, "")]).value is None
        with pytest.raises(ValueError, match="counts_as"):
            Part.model_validate({"name": "right", "counts_as": {str(status): 0.0}})


def test_a_sum_that_is_no_number_is_no_reward() -> None:
    parts = [Part(name=name, weight=1e308) for name in "ab"]
    mixed = mix(parts, [Result(status=Status.OK, value=1.0)] * 2)
    assert (mixed.value, mixed.status) == (None, Status.INVALID_INPUT)


def test_a_part_that_counts_needs_a_result() -> None:
    with pytest.raises(ValueError, match="right counts"):
        mix([FORMAT, RIGHT], [ok(1.0), None])


def write(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


async def test_a_file_of_two_services(tmp_path: Path) -> None:
    def shaped(sample: Sample) -> float:
        return float("<think>" in (sample.response or ""))

    def right(sample: Sample) -> Result | float:
        return TIMED_OUT if sample.response == "<think>slow" else float(sample.response == "<think>4")

    with StubService(shaped) as first, StubService(right) as second:
        file = write(
            tmp_path / "rewards.yaml",
            f"""
rewards:
  - {{name: format, url: "{first.url}", weight: 0.1, gate: 1.0}}
  - {{name: right, url: "{second.url}", counts_as: {{timeout: 0.0}}, options: {{mode: strict}}}}
""",
        )
        async with Rewards.from_yaml(file) as rewards:
            asked = [Sample(id=text, response=text) for text in ("<think>4", "<think>5", "<think>slow", "4")]
            results = await rewards.score(asked)
        requests = [request for request in second.requests if isinstance(request, ScoreRequest)]
    assert [result.value for result in results] == pytest.approx([1.1, 0.1, 0.1, 0.0])
    assert [result.id for result in results] == ["<think>4", "<think>5", "<think>slow", "4"]
    assert results[0].verdict is not None
    assert [(rule.rule, rule.value) for rule in results[0].verdict.rules] == [("format", 1.0), ("right", 1.0)]
    # What is not in the right form is never asked for.
    assert sum(len(request.samples) for request in requests) == 3
    assert all(request.options == {"mode": "strict"} for request in requests)


async def test_the_backup_is_asked_where_the_first_has_no_value(tmp_path: Path) -> None:
    with (
        StubService(lambda _: failed(Status.INVALID_INPUT, "cannot")) as first,
        StubService(lambda _: 0.25) as backup,
    ):
        file = write(
            tmp_path / "rewards.yaml",
            f'rewards: [{{name: right, url: "{first.url}", backup: {{url: "{backup.url}"}}}}]',
        )
        async with Rewards.from_yaml(file) as rewards:
            result = await rewards.score_one(Sample(response="4"))
    assert result.value == 0.25
    assert "of the backup, for the first is invalid_input" in result.reason
    neither = or_backup(failed(Status.UNAVAILABLE, "gone"), failed(Status.INVALID_INPUT, "no answer"))
    assert (neither.value, neither.status) == (None, Status.UNAVAILABLE)
    assert neither.reason == "gone; its backup: invalid_input: no answer"


async def test_a_service_that_is_gone_is_no_reward(tmp_path: Path) -> None:
    file = write(tmp_path / "rewards.yaml", 'rewards: [{name: right, url: "http://127.0.0.1:1"}]')
    async with Rewards.from_yaml(file, retries=0) as rewards:
        result = await rewards.score_one(Sample(response="4"))
    assert (result.value, result.status) == (None, Status.UNAVAILABLE)
    assert result.verdict is not None
    assert result.verdict.rules == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rewards: []", "rewards"),
        ("rewards: [{name: a}]", "url"),
        ("rewards: [{name: a, url: 'http://h', wight: 1}]", "wight"),
        ("rewards: [{name: a, url: 'http://h'}, {name: a, url: 'http://h'}]", "same name"),
        ("rewards: [", "not YAML"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        parts_from_yaml(write(tmp_path / "rewards.yaml", text))
