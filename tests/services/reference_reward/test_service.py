"""The service class: values against the plain forward, several references, debiasing, items at fault."""

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from guerdon import weights
from guerdon.types import ChatMessage, Result, Sample, ScoreRequest, Status
from guerdon_services import models
from guerdon_services.reference_reward import service
from guerdon_services.reference_reward.service import ReferenceRewardScorer
from guerdon_services.reference_reward.settings import ReferenceRewardOptions, ReferenceRewardSettings
from guerdon_services.runtime.dispatch import Dispatcher
from guerdon_services.runtime.metrics import Metrics
from guerdon_services.runtime.scorer import ScoreJob
from guerdon_services.runtime.settings import Address, RuntimeSettings

PROMPT = "3+4="
RLPR = "sum is <answer> 8 </answer>"


@pytest.fixture
def scorer(tiny_qwen2: Path) -> ReferenceRewardScorer:
    scorer = ReferenceRewardScorer(ReferenceRewardSettings(model=tiny_qwen2))
    scorer.open()
    return scorer


def sample(response: str = RLPR, *references: str, **given: Any) -> Sample:
    return Sample(prompt=PROMPT, response=response, references=list(references or ("7",)), **given)


def score(scorer: ReferenceRewardScorer, *samples: Sample, **options: Any) -> list[Result]:
    chosen = ReferenceRewardOptions(**options)
    return scorer.score([ScoreJob(each, chosen) for each in samples])


def plain_logps(folder: Path, before: str, scored: str, *, temperature: float = 1.0) -> list[float]:
    """Log-probs of `scored` after `before` from full logits; one token per byte but for ` 7`."""
    loaded = models.load(folder)
    prefix = models.encode_prompt(loaded.tokenizer, before)
    ids = prefix + models.encode_prompt(loaded.tokenizer, scored)
    logits = loaded.model(input_ids=torch.tensor([ids])).logits[0] / temperature
    logps = torch.log_softmax(logits.float(), -1)
    return [logps[i - 1, ids[i]].item() for i in range(len(prefix), len(ids))]


AGGREGATIONS: dict[str, Callable[[list[float]], float]] = {
    "mean": lambda logps: sum(math.exp(x) for x in logps) / len(logps),
    "product": lambda logps: math.exp(sum(logps)),
    "geometric_mean": lambda logps: math.exp(sum(logps) / len(logps)),
    "mean_logprob": lambda logps: sum(logps) / len(logps),
}


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_rlpr_equals_the_plain_forward(
    scorer: ReferenceRewardScorer, tiny_qwen2: Path, aggregation: str, temperature: float
) -> None:
    result = score(scorer, sample(RLPR, "12"), aggregation=aggregation, temperature=temperature)[0]
    logps = plain_logps(tiny_qwen2, f"{PROMPT}sum is <answer> ", "12", temperature=temperature)
    assert result.token_rewards == pytest.approx(logps, abs=1e-4)
    assert result.value == pytest.approx(AGGREGATIONS[aggregation](logps), rel=1e-4)
    assert (result.temperature, result.model_version, result.reference_version) == (temperature, 0, None)
    assert result.verdict is not None
    assert result.verdict.method == f"rlpr {aggregation}"


def test_verifree_scores_the_scaffold_with_the_reference(
    scorer: ReferenceRewardScorer, tiny_qwen2: Path
) -> None:
    result = score(scorer, sample(RLPR, "12"), aggregation="product", template="verifree")[0]
    logps = plain_logps(tiny_qwen2, f"{PROMPT}sum is <answer", "> \\boxed{12} </answer>")
    assert result.token_rewards == pytest.approx(logps, abs=1e-4)
    assert result.value == pytest.approx(math.exp(sum(logps)), rel=1e-3)


def test_the_span_and_the_ids_are_those_that_were_scored(
    scorer: ReferenceRewardScorer, tiny_qwen2: Path
) -> None:
    tokenizer = models.load(tiny_qwen2).tokenizer
    result = score(scorer, sample("so <answer>\n8", "7"))[0]
    text = "so <answer>\n7 </answer><|end|>"
    assert result.verdict is not None
    span = result.verdict.span
    assert span is not None
    assert text[span.start : span.end] == "7"
    ids = models.encode_prompt(tokenizer, text)
    assert ids[span.token_start : span.token_end] == result.token_ids
    assert tokenizer.decode(result.token_ids) == "7"
    assert result.verdict.extracted == "7"


def test_the_best_of_several_references_counts(scorer: ReferenceRewardScorer) -> None:
    references = ["7", "seven", "7.0"]
    alone = {r: score(scorer, sample(RLPR, r))[0].value for r in references}
    result = score(scorer, sample(RLPR, *references))[0]
    best = max(alone, key=lambda r: alone[r] or 0.0)
    assert result.value == pytest.approx(alone[best], rel=1e-5)
    assert result.verdict is not None
    assert result.verdict.extracted == best
    assert "best of 3" in result.reason


def test_debiasing_subtracts_the_reference_directly_after_the_prompt(
    scorer: ReferenceRewardScorer, tiny_qwen2: Path
) -> None:
    for reference in ("12", "no", "x+y"):
        plain = score(scorer, sample(RLPR, reference))[0]
        result = score(scorer, sample(RLPR, reference), debias=True)[0]
        without = AGGREGATIONS["mean"](plain_logps(tiny_qwen2, f"{PROMPT} ", reference))
        assert plain.value is not None
        assert result.value == pytest.approx(min(max(plain.value - without, 0.0), 1.0), abs=1e-5)
        assert result.reference_version == 0


def test_the_baseline_of_a_group_is_computed_once(
    scorer: ReferenceRewardScorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    original = service.token_logprobs

    def counting(model: Any, sequences: Any, **given: Any) -> Any:
        counts.append(len(sequences))
        return original(model, sequences, **given)

    monkeypatch.setattr(service, "token_logprobs", counting)
    score(scorer, *(sample(f"{i} <answer> 8") for i in range(5)), debias=True)
    assert counts == [5 + 1]


def test_sampled_ids_are_scored_as_sampled(scorer: ReferenceRewardScorer, tiny_qwen2: Path) -> None:
    tokenizer = models.load(tiny_qwen2).tokenizer
    text = "it is 7: <answer> 8"
    odd = [token for character in text for token in models.encode_prompt(tokenizer, character)]
    by_text, by_ids = score(
        scorer, sample(text), Sample(prompt=PROMPT, response_token_ids=odd, references=["7"])
    )
    assert by_ids.status is Status.OK
    assert by_ids.value != pytest.approx(by_text.value, rel=1e-3)
    assert by_ids.token_ids == by_text.token_ids
    kept = len("it is 7: <answer")
    assert f"{kept} sampled tokens" in by_ids.reason


@pytest.mark.parametrize("aggregation", ["mean", "product", "geometric_mean"])
@pytest.mark.parametrize("template", ["rlpr", "verifree"])
def test_a_response_without_an_answer_is_worth_nothing(
    scorer: ReferenceRewardScorer, aggregation: str, template: str
) -> None:
    for response in ("I do not know", ""):
        result = score(scorer, sample(response), aggregation=aggregation, template=template)[0]
        assert (result.status, result.value, result.token_rewards) == (Status.OK, 0.0, [])
        assert "<answer>" in result.reason


def test_a_response_without_an_answer_has_no_logprob(scorer: ReferenceRewardScorer) -> None:
    result = score(scorer, sample("I do not know"), aggregation="mean_logprob")[0]
    assert (result.status, result.value) == (Status.INVALID_INPUT, None)
    assert "no finite log-probability" in result.reason


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (Sample(prompt=PROMPT, response=RLPR), "references: missing"),
        (Sample(prompt=PROMPT, response=RLPR, references=["7", " "]), "references[1]: blank"),
        (Sample(prompt=PROMPT, references=["7"]), "response: missing"),
        (Sample(response=RLPR, references=["7"]), "prompt: missing"),
        (
            Sample(prompt_token_ids=[999], response=RLPR, references=["7"]),
            "prompt_token_ids[0]: token id 999",
        ),
        (
            Sample(prompt=PROMPT, response_token_ids=[3, 999], references=["7"]),
            "response_token_ids[1]: token id 999",
        ),
        (Sample(prompt=PROMPT, response="x" * 130 + RLPR, references=["7"]), "response: 4 prompt and"),
        (Sample(prompt=PROMPT, response="x" * 9_000_000 + RLPR, references=["7"]), "response: 90000"),
        (Sample(prompt=PROMPT, response=RLPR, references=["7" * 9_000_000]), "references[0]: 9000000"),
    ],
)
def test_samples_at_fault_are_named_and_their_neighbours_unharmed(
    scorer: ReferenceRewardScorer, bad: Sample, reason: str
) -> None:
    first, middle, last = score(scorer, sample(), bad, sample())
    assert first == last
    assert first.status is Status.OK
    assert (middle.status, middle.value) == (Status.INVALID_INPUT, None)
    assert middle.reason.startswith(reason)


def test_a_score_does_not_depend_on_its_neighbours(scorer: ReferenceRewardScorer) -> None:
    samples = [sample(f"{'so ' * n}<answer> 8", "7", "seven times one") for n in range(8)]
    together = score(scorer, *samples)
    for each, result in zip(samples, together, strict=True):
        assert result.token_rewards == pytest.approx(score(scorer, each)[0].token_rewards, abs=1e-5)


def test_options_apply_per_item(scorer: ReferenceRewardScorer) -> None:
    options = [{}, {"temperature": 2.0}, {"aggregation": "product"}, {"template": "verifree"}, {}]
    jobs = [ScoreJob(sample(RLPR, "12"), ReferenceRewardOptions.model_validate(o)) for o in options]
    results = scorer.score(jobs)
    assert results[0] == results[4]
    assert len({result.value for result in results}) == 4


def test_chat_prompts_use_the_template(scorer: ReferenceRewardScorer) -> None:
    chat = [ChatMessage(role="user", content=PROMPT)]
    by_chat, by_text = score(
        scorer,
        Sample(prompt=chat, response=RLPR, references=["7"]),
        Sample(prompt=f"<user>{PROMPT}\n<assistant>", response=RLPR, references=["7"]),
    )
    assert by_chat.value == by_text.value


def test_debias_needs_a_probability() -> None:
    with pytest.raises(ValidationError, match="mean_logprob"):
        ReferenceRewardOptions(aggregation="mean_logprob", debias=True)


def test_follows_published_weights(tmp_path: Path, tiny_qwen2: Path) -> None:
    scorer = ReferenceRewardScorer(ReferenceRewardSettings(model=tiny_qwen2, weights_dir=tmp_path))
    scorer.open()
    first = score(scorer, sample())[0]
    publish(tiny_qwen2, tmp_path, 4)
    # One request meets one version: new weights are taken up between requests, by the runtime.
    assert score(scorer, sample())[0] == first
    scorer.refresh()
    options = ReferenceRewardOptions()
    now, future = scorer.score(
        [ScoreJob(sample(), options, min_version=4), ScoreJob(sample(), options, min_version=5)]
    )
    assert (now.status, now.model_version, scorer.model_version) == (Status.OK, 4, 4)
    assert now.value != first.value
    assert (future.status, future.value) == (Status.UNAVAILABLE, None)
    assert (scorer.versions().current, [one.version for one in scorer.versions().versions]) == (4, [4])


async def test_an_item_that_waits_for_weights_holds_up_nobody(tmp_path: Path, tiny_qwen2: Path) -> None:
    scorer = ReferenceRewardScorer(
        ReferenceRewardSettings(model=tiny_qwen2, weights_dir=tmp_path, version_wait_s=240)
    )
    scorer.open()
    dispatcher = Dispatcher(scorer, RuntimeSettings(http=Address("127.0.0.1", 0)), Metrics())
    dispatcher.accept()
    early = asyncio.ensure_future(dispatcher.score(ScoreRequest(samples=[sample()], min_version=2)))
    for _ in range(3):
        assert (await dispatcher.score(ScoreRequest(samples=[sample()])))[0].model_version == 0
    assert not early.done()
    await asyncio.to_thread(publish, tiny_qwen2, tmp_path, 2)
    assert (await early)[0].model_version == 2
    scorer.version_wait_s = 0.1
    late = (await dispatcher.score(ScoreRequest(samples=[sample()], min_version=3)))[0]
    assert (late.status, late.value) == (Status.UNAVAILABLE, None)
    assert late.reason == "version 3 is not published, the latest is 2"
    await dispatcher.lane.idle()
    dispatcher.lane.stop()


def publish(model: Path, folder: Path, version: int) -> None:
    loaded = models.load(model)
    with torch.no_grad():
        next(loaded.model.parameters()).mul_(1.5)
    weights.publish(folder, version, lambda path: loaded.model.save_pretrained(path))


def test_tokens_counts_every_reference(scorer: ReferenceRewardScorer) -> None:
    each = Sample(prompt_token_ids=[1, 2], response_token_ids=[3, 4, 5], references=["7", "8"])
    assert scorer.tokens(ScoreJob(each, ReferenceRewardOptions())) == 10
