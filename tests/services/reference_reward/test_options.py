"""What a request may ask for: several references, whose baseline, shaping, templates, token rewards."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from guerdon import weights
from guerdon.types import Result, Sample, Status
from guerdon_services import models
from guerdon_services.reference_reward import service
from guerdon_services.reference_reward.service import ReferenceRewardScorer
from guerdon_services.reference_reward.settings import ReferenceRewardOptions, ReferenceRewardSettings
from guerdon_services.runtime.scorer import ScoreJob

PROMPT = "3+4="
RESPONSE = "sum is <answer> 8 </answer>"
REFERENCES = ["7", "seven", "7.0"]


def opened(folder: Path, **settings: Any) -> ReferenceRewardScorer:
    scorer = ReferenceRewardScorer(ReferenceRewardSettings(model=folder, **settings))
    scorer.open()
    return scorer


@pytest.fixture
def scorer(tiny_qwen2: Path) -> ReferenceRewardScorer:
    return opened(tiny_qwen2)


def sample(response: str = RESPONSE, *references: str) -> Sample:
    return Sample(prompt=PROMPT, response=response, references=list(references or ("7",)))


def score(scorer: ReferenceRewardScorer, *samples: Sample, **options: Any) -> list[Result]:
    # As it reaches the service: JSON, strictly.
    chosen = ReferenceRewardOptions.model_validate_json(json.dumps(options), strict=True)
    return scorer.score([ScoreJob(each, chosen) for each in samples])


def publish_other_weights(model: Path, folder: Path, version: int, factor: float = 1.5) -> None:
    loaded = models.load(model)
    with torch.no_grad():
        next(loaded.model.parameters()).mul_(factor)

    def write(path: Path) -> None:
        loaded.model.save_pretrained(path)
        loaded.tokenizer.save_pretrained(path)

    weights.publish(folder, version, write, keep_last=9)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sequences each pass through a model had, from here on."""
    counts: list[int] = []
    original = service.token_logprobs

    def counting(model: Any, sequences: Any, **given: Any) -> Any:
        counts.append(len(sequences))
        return original(model, sequences, **given)

    monkeypatch.setattr(service, "token_logprobs", counting)
    return counts


@pytest.mark.parametrize("debias", [False, True])
def test_references_together_and_each_alone(scorer: ReferenceRewardScorer, debias: bool) -> None:
    alone = [score(scorer, sample(RESPONSE, one), debias=debias)[0].value for one in REFERENCES]
    values = [value for value in alone if value is not None]
    best = max(range(3), key=values.__getitem__)
    by_max = score(scorer, sample(RESPONSE, *REFERENCES), debias=debias)[0]
    by_mean = score(scorer, sample(RESPONSE, *REFERENCES), debias=debias, references="mean")[0]
    assert by_max.value == pytest.approx(values[best], abs=1e-6)
    assert by_mean.value == pytest.approx(sum(values) / 3, abs=1e-6)
    assert "the mean of 3 references" in by_mean.reason
    for result in (by_max, by_mean):
        assert result.verdict is not None
        assert [one.reference for one in result.verdict.references] == REFERENCES
        assert [one.value for one in result.verdict.references] == pytest.approx(values, abs=1e-6)
        # Everything that can be of one reference only is the best one's.
        assert result.verdict.extracted == REFERENCES[best]
        assert result.verdict.span == result.verdict.references[best].span
        assert result.token_ids == by_max.token_ids


def test_a_verdict_holds_score_and_baseline_of_each_reference(scorer: ReferenceRewardScorer) -> None:
    plain = score(scorer, sample(RESPONSE, *REFERENCES))[0]
    debiased = score(scorer, sample(RESPONSE, *REFERENCES), debias=True)[0]
    assert plain.verdict is not None
    assert debiased.verdict is not None
    for without, one in zip(plain.verdict.references, debiased.verdict.references, strict=True):
        assert without.baseline is None
        assert without.value == without.score == pytest.approx(one.score, abs=1e-6)
        assert one.baseline is not None
        assert one.value == pytest.approx(min(max(one.score - one.baseline, 0), 1), abs=1e-7)


def test_token_rewards_are_what_was_asked_for(scorer: ReferenceRewardScorer) -> None:
    logprobs = score(scorer, sample(RESPONSE, "12"))[0]
    probabilities = score(scorer, sample(RESPONSE, "12"), token_rewards="probabilities")[0]
    none = score(scorer, sample(RESPONSE, "12"), token_rewards="none")[0]
    assert probabilities.token_rewards == pytest.approx([math.exp(x) for x in logprobs.token_rewards])
    assert sum(probabilities.token_rewards) / 2 == pytest.approx(logprobs.value)
    assert none.token_rewards == []
    assert none.token_ids == logprobs.token_ids == probabilities.token_ids
    assert none.value == logprobs.value


def test_shaping_takes_the_place_of_the_clip(scorer: ReferenceRewardScorer) -> None:
    clipped = score(scorer, sample(RESPONSE, *REFERENCES), debias=True)[0]
    raw = score(scorer, sample(RESPONSE, *REFERENCES), debias=True, shaping={"kind": "identity"})[0]
    assert raw.verdict is not None
    assert clipped.verdict is not None
    differences = [one.score - (one.baseline or 0) for one in raw.verdict.references]
    assert [one.value for one in raw.verdict.references] == pytest.approx(differences)
    assert min(differences) < 0
    assert min(one.value for one in clipped.verdict.references) == 0
    curve = score(scorer, sample(RESPONSE), shaping={"kind": "sigmoid", "steepness": 3})[0]
    plain = score(scorer, sample(RESPONSE))[0].value
    assert plain is not None
    assert curve.value == pytest.approx(1 / (1 + math.exp(-3 * (2 * plain - 1))))


def test_no_answer_is_worth_no_more_than_a_wrong_one(scorer: ReferenceRewardScorer) -> None:
    """r is 0 without an answer, and r' is still subtracted: silence must not pay where r - r' may be negative."""
    for shaping in ({"kind": "identity"}, {"kind": "leaky", "threshold": 0.5, "slope": 1.0}):
        silent = score(scorer, sample("no tags"), debias=True, shaping=shaping)[0]
        wrong = score(scorer, sample(), debias=True, shaping=shaping)[0]
        assert silent.verdict is not None
        only = silent.verdict.references[0]
        assert only.baseline is not None
        assert (only.score, only.span, silent.token_rewards) == (0.0, None, [])
        assert silent.value == pytest.approx(-only.baseline)
        assert silent.value is not None
        assert wrong.value is not None
        assert silent.value < wrong.value


def test_fixed_baselines_stay_those_of_the_base_model(tmp_path: Path, tiny_qwen2: Path) -> None:
    policy, bases = tmp_path / "policy", tmp_path / "bases"
    publish_other_weights(tiny_qwen2, bases, 3, factor=0.5)
    publish_other_weights(tiny_qwen2, bases, 8, factor=3.0)
    scorer = opened(tiny_qwen2, weights_dir=policy, base_model=bases, base_version=3)
    own_baseline = opened(weights.version_path(bases, 3))

    def baseline_of(one: ReferenceRewardScorer, **options: Any) -> tuple[float, Result]:
        result = score(one, sample(), debias=True, **options)[0]
        assert result.verdict is not None
        baseline = result.verdict.references[0].baseline
        assert baseline is not None
        return baseline, result

    expected, _ = baseline_of(own_baseline)
    before, result = baseline_of(scorer, baseline="fixed")
    assert before == pytest.approx(expected, abs=1e-6)
    assert (result.model_version, result.reference_version) == (0, 3)
    refreshed, result = baseline_of(scorer)
    assert (result.model_version, result.reference_version) == (0, 0)
    publish_other_weights(tiny_qwen2, policy, 5)
    scorer.refresh()
    after, result = baseline_of(scorer, baseline="fixed")
    assert after == before
    assert (result.model_version, result.reference_version) == (5, 3)
    moved, result = baseline_of(scorer)
    assert (result.model_version, result.reference_version) == (5, 5)
    assert moved == pytest.approx(baseline_of(opened(weights.version_path(policy, 5)))[0], abs=1e-6)
    assert moved != pytest.approx(refreshed, rel=1e-3)


def test_a_base_is_a_plain_folder_or_the_latest_version(tmp_path: Path, tiny_qwen2: Path) -> None:
    assert opened(tiny_qwen2, base_model=tiny_qwen2).details()["base_version"] == "0"
    publish_other_weights(tiny_qwen2, tmp_path, 6)
    publish_other_weights(tiny_qwen2, tmp_path, 7)
    assert opened(tiny_qwen2, base_model=tmp_path).details()["base_version"] == "7"
    with pytest.raises(FileNotFoundError, match=r"no version 5; it has \[6, 7\]"):
        opened(tiny_qwen2, base_model=tmp_path, base_version=5)
    with pytest.raises(ValidationError, match="base_version needs base_model"):
        ReferenceRewardSettings(model=tiny_qwen2, base_version=5)


def test_a_base_with_another_vocabulary_is_refused(tmp_path: Path, tiny_qwen2: Path) -> None:
    loaded = models.load(tiny_qwen2)
    loaded.model.save_pretrained(tmp_path)
    loaded.tokenizer.add_tokens(["<more>"])
    loaded.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="different vocabularies"):
        opened(tiny_qwen2, base_model=tmp_path)


def test_a_baseline_is_computed_once_and_anew_after_new_weights(
    tmp_path: Path, tiny_qwen2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = opened(tiny_qwen2, weights_dir=tmp_path, base_model=tiny_qwen2)
    counts = counted(monkeypatch)
    group = [sample(f"{i} <answer> 8") for i in range(3)]
    first = score(scorer, *group, debias=True)
    assert score(scorer, *group, debias=True) == first
    assert counts == [3 + 1, 3]
    counts.clear()
    fixed = score(scorer, *group, debias=True, baseline="fixed")
    assert score(scorer, *group, debias=True, baseline="fixed") == fixed
    assert counts == [3, 1, 3]
    counts.clear()
    # What makes a baseline another one makes it be computed.
    score(scorer, group[0], debias=True, temperature=0.5)
    score(scorer, group[0], debias=True, aggregation="product")
    score(scorer, group[0], debias=True, template="verifree")
    score(scorer, sample(RESPONSE, "8"), debias=True)
    assert counts == [2] * 4
    counts.clear()
    publish_other_weights(tiny_qwen2, tmp_path, 1)
    scorer.refresh()
    assert score(scorer, *group, debias=True)[0].value != first[0].value
    score(scorer, *group, debias=True, baseline="fixed")
    assert counts == [3 + 1, 3]


def test_a_small_memory_changes_no_value(tiny_qwen2: Path) -> None:
    samples = [sample(RESPONSE, str(n), f"{n}.0") for n in range(6)]
    expected = score(opened(tiny_qwen2), *samples, debias=True)
    for size in (0, 1, 3):
        scorer = opened(tiny_qwen2, baseline_cache=size)
        for _ in range(2):
            results = score(scorer, *samples, debias=True)
            for result, one in zip(results, expected, strict=True):
                assert result.value == pytest.approx(one.value, abs=1e-6)
        assert all(len(remembered) <= size for remembered in scorer._remembered.values())  # pyright: ignore[reportPrivateUsage]


def test_a_custom_template_can_say_what_the_papers_do(scorer: ReferenceRewardScorer) -> None:
    for response in (RESPONSE, "<answers> <answer>8", "none"):
        given = sample(response, "7", "\\frac{1}{2}")
        verifree = {"marker": "<answer", "text": "> \\boxed{{reference}} </answer>", "scored": "text"}
        assert_same(
            score(scorer, given, template="verifree", debias=True)[0],
            score(scorer, given, template="custom", custom_template=verifree, debias=True)[0],
        )
    rlpr = {"marker": "<answer>", "text": " {reference} </answer>", "occurrence": "only"}
    assert_same(
        score(scorer, sample())[0], score(scorer, sample(), template="custom", custom_template=rlpr)[0]
    )


def assert_same(one: Result, other: Result) -> None:
    assert other.value == pytest.approx(one.value, abs=1e-6)
    assert other.token_ids == one.token_ids
    assert other.token_rewards == pytest.approx(one.token_rewards, abs=1e-5)
    assert one.verdict is not None
    assert other.verdict is not None
    assert other.verdict.span == one.verdict.span


def test_a_custom_template_of_the_settings_and_its_occurrences(tiny_qwen2: Path) -> None:
    scorer = opened(tiny_qwen2, custom_template={"marker": "Answer:", "text": " {reference}."})
    two = "Answer: 1. No! Answer: 2."

    def span_of(occurrence: str) -> tuple[int, int]:
        template = {"marker": "Answer:", "text": " {reference}.", "occurrence": occurrence}
        verdict = score(scorer, sample(two, "7"), template="custom", custom_template=template)[0].verdict
        assert verdict is not None
        assert verdict.span is not None
        return verdict.span.start, verdict.span.end

    assert span_of("first") == (8, 9)
    assert span_of("last") == (23, 24)
    by_settings = score(scorer, sample(two, "7"), template="custom")[0]
    assert by_settings.verdict is not None
    assert by_settings.verdict.span is not None
    assert by_settings.verdict.span.start == 8
    only = {"marker": "Answer:", "text": " {reference}.", "occurrence": "only"}
    refused = score(scorer, sample(two, "7"), template="custom", custom_template=only)[0]
    assert (refused.status, refused.value) == (Status.OK, 0.0)
    assert refused.reason == "the response has 2 markers 'Answer:', not one"
    absent = score(scorer, sample("Answers: 7", "7"), template="custom")[0]
    assert (absent.value, absent.reason) == (0.0, "the response has no 'Answer:', the marker of the answer")


@pytest.mark.parametrize("template", ["rlpr", "verifree", "custom"])
def test_think_tags_can_be_asked_for_with_every_template(
    scorer: ReferenceRewardScorer, template: str
) -> None:
    options: dict[str, Any] = {"template": template, "require_think": True}
    if template == "custom":
        options["custom_template"] = {}
    thought = score(scorer, sample("<think>so</think> <answer> 8"), **options)[0]
    assert thought.value is not None
    assert thought.value > 0
    for response in ("so <answer> 8", "<think>so</think></think> <answer> 8"):
        result = score(scorer, sample(response), **options)[0]
        assert (result.status, result.value) == (Status.OK, 0.0)
        assert "think> tags, not one" in result.reason


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"custom_template": {"text": "no place"}, "template": "custom"}, "exactly once, not 0 times"),
        (
            {"custom_template": {"text": "{reference}{reference}"}, "template": "custom"},
            "exactly once, not 2",
        ),
        ({"custom_template": {"marker": " "}, "template": "custom"}, "marker must not be blank"),
        ({"custom_template": {}}, "needs template: custom"),
        ({"debias": True, "aggregation": "mean_logprob"}, "not mean_logprob"),
        ({"shaping": {"kind": "clip"}, "aggregation": "mean_logprob"}, "not mean_logprob"),
        ({"baseline": "fixed"}, "needs debias"),
        ({"shaping": {"kind": "sigmoid", "steepness": 0}}, "steepness"),
        ({"shaping": {"kind": "bend"}}, "identity"),
        ({"temperature": 0}, "temperature"),
        ({"references": "min"}, "references"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValidationError, match=match):
        ReferenceRewardOptions.model_validate(options)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"template": "custom"}, "options.custom_template: missing"),
        ({"debias": True, "baseline": "fixed"}, "options.baseline: fixed needs the service's setting"),
        (
            {"template": "custom", "custom_template": {"marker": "is", "text": "\n{reference}"}},
            None,
        ),
        (
            {"template": "custom", "custom_template": {"marker": "<answer>", "text": "{reference}"}},
            "options.custom_template.text: the tokenizer makes one token, '>\\\\', of the end of the marker",
        ),
        (
            {"template": "custom", "custom_template": {"marker": "is", "text": ">{reference}"}},
            "references: the tokenizer joins '>', which is not scored, with the reference in one token",
        ),
    ],
)
def test_a_template_that_cannot_be_used_is_the_callers_fault(
    fusing: ReferenceRewardScorer, options: dict[str, Any], reason: str | None
) -> None:
    result = score(fusing, sample(RESPONSE, "\\x"), **options)[0]
    if reason is None:
        assert result.status is Status.OK
    else:
        assert (result.status, result.value) == (Status.INVALID_INPUT, None)
        assert result.reason.startswith(reason)


@pytest.fixture
def fusing(tmp_path: Path, tiny_qwen2: Path) -> ReferenceRewardScorer:
    """`>` and a backslash make one token, as in Qwen's vocabulary."""
    loaded = models.load(tiny_qwen2)
    path = tmp_path / "fusing"
    loaded.model.save_pretrained(path)
    loaded.tokenizer.save_pretrained(path)
    data = json.loads((path / "tokenizer.json").read_text())
    data["model"]["vocab"][">\\"] = data["model"]["vocab"].pop("Ġ7")
    data["model"]["merges"] = [[">", "\\"], [">", "Ċ"]]
    (path / "tokenizer.json").write_text(json.dumps(data))
    return opened(path)
