"""The service class: scores, updates, idempotency, exact returns to older versions."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from guerdon import weights
from guerdon.types import Result, Sample, Status, UpdateRequest, UpdateResponse
from guerdon_services import models
from guerdon_services.process_reward.service import ProcessRewardScorer
from guerdon_services.process_reward.settings import ProcessRewardOptions
from guerdon_services.runtime.scorer import NotReady, ScoreJob
from guerdon_services.scoring import ScoredSequence, token_logprobs

Start = Callable[..., ProcessRewardScorer]


SAMPLES = [
    Sample(id="a", prompt="1+1=", response="2", outcome=1.0, group="q"),
    Sample(id="b", prompt="1+1=", response="3, I think", outcome=0.0, group="q"),
    Sample(id="c", prompt="2+3=", response_token_ids=[10, 20, 30], outcome=0.5, group="r"),
    Sample(id="d", prompt_token_ids=[5, 6, 7], response="five", outcome=1.0, group="r"),
]


def score(scorer: ProcessRewardScorer, *samples: Sample, **options: Any) -> list[Result]:
    chosen = ProcessRewardOptions(**options)
    return scorer.score([ScoreJob(sample, chosen) for sample in samples])


def request(name: str, samples: list[Sample] = SAMPLES, **given: Any) -> UpdateRequest:
    return UpdateRequest.model_validate({"request_id": name, "samples": samples, "order": "after"} | given)


def updated(scorer: ProcessRewardScorer, name: str, **given: Any) -> UpdateResponse:
    response = scorer.update(request(name, **given))
    assert response.status is Status.OK, response.reason
    return response


def state(scorer: ProcessRewardScorer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in scorer._trained.model.parameters()]


def assert_same_state(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_version_0_is_the_reference_and_rewards_nothing(start: Start) -> None:
    scorer = start()
    assert scorer.model_version == 0
    for result in score(scorer, *SAMPLES):
        assert (result.status, result.value) == (Status.OK, 0.0)
        assert set(result.token_rewards) == {0.0}
        assert (result.model_version, result.reference_version) == (0, 0)
        assert (result.temperature, result.update_order) == (1.0, "none")


def test_scores_are_beta_times_the_log_ratio_of_the_sampled_ids(start: Start, tiny_llama: Path) -> None:
    scorer = start(beta=0.3)
    updated(scorer, "u1")
    result = score(scorer, SAMPLES[2], temperature=0.8)[0]
    tokenizer = models.load(tiny_llama).tokenizer
    sequence = ScoredSequence(models.encode_prompt(tokenizer, "2+3="), [10, 20, 30])
    published = weights.latest(scorer.settings.weights_dir)
    assert published is not None
    prm, reference = models.load(published.path).model, models.load(tiny_llama).model
    expected = 0.3 * (
        token_logprobs(prm, [sequence], temperature=0.8)[0]
        - token_logprobs(reference, [sequence], temperature=0.8)[0]
    )
    assert result.token_ids == [10, 20, 30]
    torch.testing.assert_close(torch.tensor(result.token_rewards), expected, atol=1e-6, rtol=1e-4)
    assert result.value is not None
    assert math.isclose(result.value, sum(result.token_rewards), abs_tol=1e-6)
    assert result.model_version == 1


def test_options_apply_per_item_and_order_is_kept(start: Start) -> None:
    scorer = start()
    updated(scorer, "u1")
    options = [{}, {"beta": 0.1}, {"granularity": "response"}, {"temperature": 2.0}, {}]
    jobs = [ScoreJob(SAMPLES[1], ProcessRewardOptions(**given)) for given in options]
    plain, doubled, whole, warm, again = scorer.score(jobs)
    assert plain == again
    assert doubled.value == pytest.approx(2 * (plain.value or 0), rel=1e-5)
    assert whole.value == pytest.approx(plain.value, rel=1e-5)
    assert whole.token_rewards[-1] == pytest.approx(plain.value, rel=1e-5)
    assert set(whole.token_rewards[:-1]) == {0.0}
    assert warm.value != pytest.approx(plain.value, rel=1e-3)


def test_a_score_does_not_depend_on_its_neighbours(start: Start) -> None:
    scorer = start()
    updated(scorer, "u1")
    together = score(scorer, *SAMPLES)
    for sample, result in zip(SAMPLES, together, strict=True):
        alone = score(scorer, sample)[0]
        assert result.token_rewards == pytest.approx(alone.token_rewards, abs=1e-5)


def test_an_empty_response_is_worth_nothing(start: Start) -> None:
    result = score(start(), Sample(prompt="1+1=", response=""))[0]
    assert (result.status, result.value, result.token_rewards) == (Status.OK, 0.0, [])
    assert "empty" in result.reason


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (Sample(response="x"), "prompt: missing"),
        (Sample(prompt="", response="x"), "prompt: empty"),
        (Sample(prompt="x"), "response: missing"),
        (Sample(prompt="x", response_token_ids=[1, 999]), r"response_token_ids[1]: token id 999"),
        (Sample(prompt_token_ids=[2**31 - 1], response="x"), r"prompt_token_ids[0]: token id 2147483647"),
        (Sample(prompt="x", response="y" * 200), "response: 1 prompt and 200 response tokens"),
    ],
)
def test_samples_at_fault_are_named_and_their_neighbours_unharmed(
    start: Start, sample: Sample, reason: str
) -> None:
    good, bad, other = score(start(), SAMPLES[0], sample, SAMPLES[1])
    assert (good.status, other.status) == (Status.OK, Status.OK)
    assert (bad.status, bad.value) == (Status.INVALID_INPUT, None)
    assert bad.reason.startswith(reason)


def test_a_version_that_does_not_exist_yet_is_unavailable(start: Start) -> None:
    scorer = start()
    future, present = scorer.score(
        [
            ScoreJob(SAMPLES[0], ProcessRewardOptions(), min_version=1),
            ScoreJob(SAMPLES[0], ProcessRewardOptions(), min_version=0),
        ]
    )
    assert (future.status, present.status) == (Status.UNAVAILABLE, Status.OK)


def test_norm_is_refused_where_a_batch_has_no_meaning(start: Start) -> None:
    result = score(start(), SAMPLES[0], norm="batch")[0]
    assert result.status is Status.INVALID_INPUT
    assert "options.norm" in result.reason


def test_norm_divides_an_updates_rewards_by_their_largest_return(start: Start) -> None:
    scorer = start()
    plain = updated(scorer, "u1", order="before")
    scaled = updated(scorer, "u2", order="before", base_version=0, options={"norm": "batch"})
    largest = max(
        abs(sum(result.token_rewards[t:]))
        for result in plain.results
        for t in range(len(result.token_rewards))
    )
    for one, other in zip(plain.results, scaled.results, strict=True):
        expected = [reward / (largest + 1e-6) for reward in one.token_rewards]
        assert other.token_rewards == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_after_scores_with_the_weights_before_the_update(start: Start) -> None:
    scorer = start()
    updated(scorer, "u1")
    expected = [result.token_rewards for result in score(scorer, *SAMPLES)]
    response = updated(scorer, "u2")
    assert (response.version_before, response.version_after) == (1, 2)
    assert scorer.model_version == 2
    for result, rewards in zip(response.results, expected, strict=True):
        assert result.token_rewards == pytest.approx(rewards, abs=1e-6)
        assert (result.model_version, result.update_order) == (1, "after")


def test_before_scores_with_the_updated_weights(start: Start) -> None:
    scorer = start()
    response = updated(scorer, "u1", order="before")
    expected = [result.token_rewards for result in score(scorer, *SAMPLES)]
    for result, rewards in zip(response.results, expected, strict=True):
        assert any(result.token_rewards)
        assert result.token_rewards == pytest.approx(rewards, abs=1e-6)
        assert (result.model_version, result.update_order) == (1, "before")


def test_updates_learn_the_outcomes(start: Start) -> None:
    scorer = start(lr=1e-2, beta=0.5)
    binary = [sample for sample in SAMPLES if sample.outcome != 0.5]
    first = updated(scorer, "u0", samples=binary)
    last = [updated(scorer, f"u{number}", samples=binary) for number in range(1, 15)][-1]
    assert first.metrics["loss"] == pytest.approx(math.log(2), rel=1e-5)
    assert first.metrics["accuracy"] == 0.5
    assert last.metrics["loss"] < 0.1
    assert last.metrics["accuracy"] == 1.0
    right, wrong = (result.value or 0.0 for result in score(scorer, SAMPLES[0], SAMPLES[1]))
    assert right > 0 > wrong


def test_metrics_say_what_was_learnt_from(start: Start) -> None:
    metrics = updated(start(), "u1").metrics
    assert metrics["samples"] == 4
    assert metrics["tokens"] == len("2") + len("3, I think") + 3 + len("five")
    assert metrics["lr"] == 1e-3
    assert metrics["grad_norm"] > 0


def test_samples_that_cannot_be_learnt_from_are_left_out(start: Start) -> None:
    scorer = start()
    extra = [
        Sample(id="no label", prompt="1+1=", response="2"),
        Sample(id="bad id", prompt="1+1=", response_token_ids=[999], outcome=1.0),
        Sample(id="empty", prompt="1+1=", response="", outcome=0.0),
    ]
    response = updated(scorer, "u1", samples=[*extra, *SAMPLES])
    assert [result.status for result in response.results[:3]] == [
        Status.INVALID_INPUT,
        Status.INVALID_INPUT,
        Status.OK,
    ]
    assert response.results[0].reason.startswith("outcome: missing")
    mixed = state(scorer)
    updated(scorer, "u2", base_version=0)
    assert_same_state(mixed, state(scorer))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"samples": []}, "samples: none"),
        (
            {"samples": [Sample(prompt="x", response="y")]},
            "samples: none of them can be learnt from (outcome",
        ),
        ({"samples": [Sample(prompt="x", response="", outcome=1.0)]}, "samples: none"),
        ({"options": {"betta": 1}}, "options.betta: unknown field; did you mean beta?"),
        ({"options": {"beta": "0.1"}}, "options.beta: "),
        ({"options": {"temperature": True}}, "options.temperature: "),
        ({"base_version": 5}, "base_version: 5 is not kept; kept are [0]"),
    ],
)
def test_updates_that_cannot_be_made_change_nothing(start: Start, given: dict[str, Any], reason: str) -> None:
    scorer = start()
    before = state(scorer)
    response = scorer.update(request("u1", **given))
    assert response.status is Status.INVALID_INPUT
    assert response.reason.startswith(reason)
    assert (response.version_before, response.version_after) == (0, None)
    assert scorer.model_version == 0
    assert_same_state(before, state(scorer))


def test_an_id_is_applied_once_also_after_a_restart(start: Start) -> None:
    scorer = start()
    first = updated(scorer, "u1")
    after = state(scorer)
    assert scorer.update(request("u1")) == first
    scorer = start()
    assert scorer.model_version == 1
    assert scorer.update(request("u1")) == first
    assert_same_state(after, state(scorer))


def test_an_id_whose_answer_is_gone_is_not_applied_again(start: Start) -> None:
    scorer = start(keep_last=1)
    updated(scorer, "u1")
    updated(scorer, "u2")
    response = scorer.update(request("u1"))
    assert response.status is Status.INVALID_INPUT
    assert "applied as version 1" in response.reason
    assert scorer.model_version == 2


def test_an_id_given_to_other_contents_is_refused(start: Start) -> None:
    scorer = start()
    updated(scorer, "u1")
    response = scorer.update(request("u1", samples=SAMPLES[:2]))
    assert response.status is Status.INVALID_INPUT
    assert response.reason.startswith("request_id")


def test_a_restart_continues_exactly(start: Start) -> None:
    scorer = start()
    for number in range(3):
        updated(scorer, f"u{number}")
    straight = state(scorer)
    scorer = start(weights_dir=scorer.settings.weights_dir.parent / "other")
    for number in range(3):
        updated(scorer, f"u{number}")
        scorer = start(weights_dir=scorer.settings.weights_dir)
    assert_same_state(straight, state(scorer))


def test_base_version_returns_to_a_kept_version_bit_by_bit(start: Start) -> None:
    scorer = start(keep_last=3)
    updated(scorer, "u1")
    second = updated(scorer, "u2", order="before")
    after_second = state(scorer)
    updated(scorer, "u3", samples=SAMPLES[:2])
    again = updated(scorer, "u2 again", order="before", base_version=1)
    assert (again.version_before, again.version_after) == (1, 2)
    assert scorer.model_version == 2
    assert again.results == second.results
    assert again.metrics == second.metrics
    assert_same_state(after_second, state(scorer))


def test_returning_forgets_the_past_that_was_left(start: Start) -> None:
    scorer = start(keep_last=4)
    for name in ("u1", "u2", "u3"):
        updated(scorer, name)
    updated(scorer, "u2", samples=SAMPLES[:2], base_version=1)  # other contents, as after a crash
    assert [version.version for version in scorer.versions().versions] == [0, 1, 2]
    response = scorer.update(request("u9", base_version=3))
    assert response.status is Status.INVALID_INPUT
    assert updated(scorer, "u3").version_after == 3


def test_versions_lists_what_is_kept(start: Start) -> None:
    scorer = start(keep_last=2)
    for name in ("u1", "u2", "u3"):
        updated(scorer, name)
    versions = scorer.versions()
    assert versions.current == 3
    assert [version.version for version in versions.versions] == [2, 3]
    assert all(Path(version.path, "model.safetensors").is_file() for version in versions.versions)
    assert all(version.created_unix_s > 1.7e9 for version in versions.versions)


def test_a_version_that_cannot_be_published_is_not_served(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = start()
    updated(scorer, "u1")
    before = state(scorer)

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(weights, "publish", full)
        with pytest.raises(OSError, match="no space"):
            scorer.update(request("u2"))
    assert scorer.model_version == 1
    assert_same_state(before, state(scorer))
    assert updated(scorer, "u2").version_after == 2


def test_a_failure_after_publishing_does_not_apply_the_update_again(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new version is the latest, and only then an old one cannot be removed."""
    scorer = start(keep_last=1)

    def busy(path: Path) -> None:
        raise OSError(f"{path} is busy")

    with monkeypatch.context() as patch:
        patch.setattr(weights, "_remove", busy)
        with pytest.raises(OSError, match="busy"):
            scorer.update(request("u1"))
    after = state(scorer)
    assert updated(scorer, "u1").version_after == scorer.model_version == 1
    assert_same_state(after, state(scorer))


def test_one_learner_per_weights_folder(start: Start) -> None:
    scorer = start()
    with pytest.raises(NotReady, match="another learner"):
        ProcessRewardScorer(scorer.settings).open()


def test_tokens_counts_prompt_and_response(start: Start) -> None:
    job = ScoreJob(Sample(prompt_token_ids=[1, 2], response_token_ids=[3, 4, 5]), ProcessRewardOptions())
    assert start().tokens(job) == 5


@pytest.mark.parametrize("beta", [5e-324, 1000.0])
@pytest.mark.parametrize("temperature", [1e-9, 1e9])
def test_rewards_and_updates_stay_finite_at_the_bounds_of_the_options(
    start: Start, beta: float, temperature: float
) -> None:
    scorer = start()
    options: dict[str, Any] = {"beta": beta, "temperature": temperature}
    for number in range(2):
        updated(scorer, f"u{number}", options=options)
    assert [result.status for result in score(scorer, *SAMPLES, **options)] == [Status.OK] * len(SAMPLES)


@pytest.mark.parametrize("given", [{"temperature": 1e-300}, {"temperature": 1e10}, {"beta": 1e300}])
def test_options_that_leave_fp32_are_refused(given: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=next(iter(given))):
        ProcessRewardOptions.model_validate(given)
