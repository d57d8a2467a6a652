"""LoRA: one base in memory, adapters that alone learn, versions that any loader reads, exact restarts."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from guerdon.types import Sample, Status, UpdateRequest, UpdateResponse
from guerdon_services import models
from guerdon_services.models import WeightsMismatch
from guerdon_services.process_reward.service import ProcessRewardScorer
from guerdon_services.process_reward.settings import ProcessRewardOptions
from guerdon_services.runtime.scorer import NotReady, ScoreJob
from guerdon_services.scoring import ScoredSequence, token_logprobs
from tests.waiting import PATIENCE_S

Start = Callable[..., ProcessRewardScorer]

pytest.importorskip("peft", reason="peft is not installed")

LORA = {"lora_rank": 4, "lora_alpha": 8.0, "lr": 1e-2}
SAMPLES = [
    Sample(id="a", prompt_token_ids=[5, 6], response_token_ids=[10, 20, 30], outcome=1.0),
    Sample(id="b", prompt_token_ids=[5, 6], response_token_ids=[40, 50], outcome=0.0),
]


def asked(name: str, **given: Any) -> UpdateRequest:
    return UpdateRequest.model_validate({"request_id": name, "samples": SAMPLES, "order": "before"} | given)


def updated(scorer: ProcessRewardScorer, name: str, **given: Any) -> UpdateResponse:
    response = scorer.update(asked(name, **given))
    assert response.status is Status.OK, response.reason
    return response


def state(scorer: ProcessRewardScorer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in scorer._trained.model.state_dict().items()}


def changed(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> set[str]:
    assert one.keys() == other.keys()
    return {name for name in one if not torch.equal(one[name], other[name])}


def test_prm_and_reference_are_one_base_in_memory(
    start: Start, monkeypatch: pytest.MonkeyPatch, tiny_llama: Path
) -> None:
    loads: list[Path] = []
    load = models.load

    def counted(folder: Path, **given: Any) -> models.LanguageModel:
        loads.append(folder)
        return load(folder, **given)

    monkeypatch.setattr(models, "load", counted)
    scorer = start(**LORA)
    assert loads == [tiny_llama]
    with scorer._reference.module() as reference:
        assert reference is scorer._prm.policy
        assert [id(p) for p in reference.parameters()] == [id(p) for p in scorer._prm.policy.parameters()]
    trained = {id(p) for group in scorer._prm.optimizer.param_groups for p in group["params"]}
    named = dict(scorer._trained.model.named_parameters())
    assert trained == {id(p) for name, p in named.items() if ".lora_" in name}


def test_a_step_changes_adapters_only_and_the_reference_stays(start: Start, tiny_llama: Path) -> None:
    scorer = start(**LORA)
    before = state(scorer)
    first = updated(scorer, "u0", order="after")
    assert [result.value for result in first.results] == pytest.approx([0.0, 0.0], abs=1e-6)
    values = [result.value or 0.0 for result in updated(scorer, "u1").results]
    assert values[0] > 0 > values[1]
    names = changed(before, state(scorer))
    assert names
    assert all(".lora_" in name for name in names)
    sequences = [ScoredSequence(s.prompt_token_ids, s.response_token_ids) for s in SAMPLES]
    plain = token_logprobs(models.load(tiny_llama).model, sequences)
    for ours, theirs in zip(scorer._prm._reference_logps(sequences, 1.0), plain, strict=True):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0)


@pytest.mark.parametrize("model", ["tiny_llama", "tiny_qwen2"])
def test_a_published_version_is_a_plain_model(
    start: Start, model: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(model)
    scorer = start(model=folder, **LORA)
    updated(scorer, "u1")
    version = scorer.versions().versions[-1]
    assert sorted(path.name for path in Path(version.path).glob("*.safetensors")) == ["model.safetensors"]
    # As a replica or a trainer reads it, on the spot and anew.
    merged, follower = models.load(Path(version.path)).model, models.load(folder).model
    models.read_weights(follower, Path(version.path))
    sequences = [ScoredSequence(s.prompt_token_ids, s.response_token_ids) for s in SAMPLES]
    ours = token_logprobs(scorer._trained.model, sequences)
    for theirs in (token_logprobs(merged, sequences), token_logprobs(follower, sequences)):
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_a_restart_and_a_return_continue_exactly(start: Start) -> None:
    scorer = start(**LORA, keep_last=5)
    for number in range(3):
        updated(scorer, f"u{number}")
    straight, folder = state(scorer), scorer.settings.weights_dir
    scorer = start(**LORA, weights_dir=folder.parent / "other", keep_last=5)
    for number in range(3):
        updated(scorer, f"u{number}")
        scorer = start(**LORA, weights_dir=scorer.settings.weights_dir, keep_last=5)
    assert changed(straight, state(scorer)) == set()
    updated(scorer, "u2 again", base_version=2)
    assert changed(straight, state(scorer)) == set()


_LEARNER = """
import os, signal, sys
from pathlib import Path
from guerdon.types import UpdateRequest
from guerdon_services.process_reward.service import ProcessRewardScorer
from guerdon_services.process_reward.settings import ProcessRewardSettings

scorer = ProcessRewardScorer(ProcessRewardSettings.model_validate_json(sys.argv[1]))
scorer.open()
first, second = [UpdateRequest.model_validate_json(line) for line in Path(sys.argv[2]).read_text().splitlines()]
scorer.update(first)
rename = os.rename

def fatal(*args, **kwargs):
    rename(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)

os.rename = fatal
scorer.update(second)
"""


def test_a_kill_in_an_update_leaves_a_version_from_which_it_is_made_again(
    start: Start, tmp_path: Path
) -> None:
    scorer = start(**LORA)
    answers, states = [], []
    for name in ("first", "second"):
        answers.append(updated(scorer, name))
        states.append(state(scorer))
    settings = scorer.settings.model_copy(update={"weights_dir": tmp_path / "killed"})
    requests = tmp_path / "requests.jsonl"
    requests.write_text("\n".join(asked(name).model_dump_json() for name in ("first", "second")))
    learner = subprocess.run(
        [sys.executable, "-c", _LEARNER, settings.model_dump_json(), str(requests)],
        # Bits are compared: with as many threads as here.
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=PATIENCE_S,
    )
    assert learner.returncode == -signal.SIGKILL
    scorer = start(**LORA, weights_dir=settings.weights_dir)
    assert scorer.model_version == 1
    assert changed(states[0], state(scorer)) == set()
    assert scorer.update(asked("second")) == answers[1]
    assert changed(states[1], state(scorer)) == set()


def test_a_folder_of_another_kind_is_refused_by_name(start: Start, tmp_path: Path) -> None:
    start(**LORA)
    with pytest.raises(WeightsMismatch, match="another lora_rank"):
        start(**LORA | {"lora_rank": 2})
    start(weights_dir=tmp_path / "whole")
    with pytest.raises(WeightsMismatch, match="lora_rank=0"):
        start(**LORA, weights_dir=tmp_path / "whole")


def test_targets_choose_the_layers(start: Start) -> None:
    scorer = start(**LORA, lora_targets=r".*\.q_proj")
    adapted = {name.split(".lora_")[0] for name in state(scorer) if ".lora_" in name}
    assert all(name.endswith("q_proj") for name in adapted)
    assert len(adapted) == 2


def test_targets_that_match_nothing_are_refused(start: Start) -> None:
    with pytest.raises(ValueError, match="lora_targets"):
        start(**LORA, lora_targets="nothing")


def test_without_peft_the_setting_is_refused(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(NotReady, match="process-reward-lora"):
        start(**LORA)


def test_scores_and_steps_work_together(start: Start) -> None:
    scorer = start(**LORA)
    updated(scorer, "u1")
    step = scorer.score([ScoreJob(sample, ProcessRewardOptions(granularity="step")) for sample in SAMPLES])
    assert [result.status for result in step] == [Status.OK, Status.OK]
