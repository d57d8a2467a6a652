"""The policy as reference: followed as its trainer publishes it, one version at a time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from guerdon import weights
from guerdon.types import Sample, Status, UpdateRequest
from guerdon_services import models
from guerdon_services.models import LanguageModel
from guerdon_services.process_reward.service import ProcessRewardScorer
from guerdon_services.process_reward.settings import ProcessRewardOptions
from guerdon_services.runtime.scorer import ScoreJob
from guerdon_services.scoring import ScoredSequence, token_logprobs

Start = Callable[..., ProcessRewardScorer]

SAMPLES = [
    Sample(id="a", prompt_token_ids=[5, 6], response_token_ids=[10, 20, 30], outcome=1.0),
    Sample(id="b", prompt_token_ids=[5, 6], response_token_ids=[40, 50], outcome=0.0),
]


@pytest.fixture
def policy(tiny_llama: Path) -> LanguageModel:
    return models.load(tiny_llama)


def publish(policy: LanguageModel, folder: Path, version: int) -> None:
    """Another policy under the next version."""
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.05)

    def write(path: Path) -> None:
        policy.model.save_pretrained(path)
        policy.tokenizer.save_pretrained(path)

    weights.publish(folder, version, write)


def expected(scorer: ProcessRewardScorer, reference: Path, sample: Sample) -> torch.Tensor:
    sequence = ScoredSequence(sample.prompt_token_ids, sample.response_token_ids)
    prm = token_logprobs(scorer._trained.model, [sequence])[0]
    return 0.05 * (prm - token_logprobs(models.load(reference).model, [sequence])[0])


def assert_compared_with(scorer: ProcessRewardScorer, reference: Path, version: int) -> None:
    for sample, result in zip(SAMPLES, scores(scorer), strict=True):
        assert (result.status, result.reference_version) == (Status.OK, version)
        wanted = expected(scorer, reference, sample)
        torch.testing.assert_close(torch.tensor(result.token_rewards), wanted, atol=1e-6, rtol=1e-4)


def scores(scorer: ProcessRewardScorer) -> list[Any]:
    return scorer.score([ScoreJob(sample, ProcessRewardOptions()) for sample in SAMPLES])


def test_scores_compare_with_the_policys_newest_weights(
    start: Start, policy: LanguageModel, tiny_llama: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "policy"
    scorer = start(reference="policy", policy_weights_dir=folder)
    assert_compared_with(scorer, tiny_llama, 0)
    publish(policy, folder, 7)
    assert_compared_with(scorer, tiny_llama, 0)  # not before the batch that follows a refresh
    scorer.refresh()
    assert_compared_with(scorer, weights.version_path(folder, 7), 7)
    # A restart begins with the newest.
    publish(policy, folder, 8)
    scorer = start(reference="policy", policy_weights_dir=folder)
    assert_compared_with(scorer, weights.version_path(folder, 8), 8)


def test_an_update_takes_up_the_policy_first_and_keeps_it(
    start: Start, policy: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "policy"
    scorer = start(reference="policy", policy_weights_dir=folder)
    publish(policy, folder, 3)
    step = scorer._prm.step

    def interrupted(*args: Any, **given: Any) -> Any:
        done = step(*args, **given)
        publish(policy, folder, 4)  # while the update runs
        return done

    monkeypatch.setattr(scorer._prm, "step", interrupted)
    response = scorer.update(UpdateRequest(request_id="u1", samples=SAMPLES, order="before"))
    assert [result.reference_version for result in response.results] == [3, 3]
    for sample, result in zip(SAMPLES, response.results, strict=True):
        wanted = expected(scorer, weights.version_path(folder, 3), sample)
        torch.testing.assert_close(torch.tensor(result.token_rewards), wanted, atol=1e-6, rtol=1e-4)
    scorer.refresh()
    assert_compared_with(scorer, weights.version_path(folder, 4), 4)


def test_the_policy_is_never_trained(start: Start, policy: LanguageModel, tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    publish(policy, folder, 1)
    scorer = start(reference="policy", policy_weights_dir=folder)
    with scorer._reference.module() as module:
        before = [parameter.clone() for parameter in module.parameters()]
        scorer.update(UpdateRequest(request_id="u1", samples=SAMPLES, order="after"))
        assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
        assert not any(parameter.requires_grad for parameter in module.parameters())


def test_a_policy_with_another_vocabulary_is_refused(
    start: Start, policy: LanguageModel, tmp_path: Path
) -> None:
    policy.tokenizer.add_tokens(["<more>"])
    publish(policy, tmp_path / "policy", 1)
    with pytest.raises(ValueError, match=r"policy_weights_dir: .* another vocabulary"):
        start(reference="policy", policy_weights_dir=tmp_path / "policy")
