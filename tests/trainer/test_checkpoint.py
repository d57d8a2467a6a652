import resource
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from guerdon import weights
from guerdon_trainer import checkpoint
from guerdon_trainer.checkpoint import RunState
from guerdon_trainer.config import RunConfig
from guerdon_trainer.prepare import TinyPolicy
from guerdon_trainer.prepare.tiny import build_model, build_tokenizer
from guerdon_trainer.step import Learner, make_learner
from guerdon_trainer.weights import publish_policy


def _learner(config: RunConfig, seed: int) -> Learner:
    model = build_model(TinyPolicy(hidden_size=16, layers=1, heads=2), build_tokenizer(), seed=seed)
    return make_learner(model, None, config.optimizer)


def _train(learner: Learner) -> None:
    loss = learner.model(input_ids=torch.tensor([[3, 4, 5]]), labels=torch.tensor([[3, 4, 5]])).loss
    loss.backward()
    learner.optimizer.step()
    learner.schedule.step()
    learner.optimizer.zero_grad()


def test_a_restored_learner_goes_on_bit_for_bit(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = make_config()
    first = _learner(config, seed=0)
    _train(first)
    state = RunState(run_id="r", step=1, position=32, prm_version=7)
    checkpoint.save(tmp_path, first, state, {"math": {"final": {"ok": 3}}}, keep_last=2)
    random_numbers = torch.rand(3)
    _train(first)

    second = _learner(config, seed=1)
    found = checkpoint.latest(tmp_path)
    assert found is not None
    assert (found.state, found.services) == (state, {"math": {"final": {"ok": 3}}})
    found.restore(second)
    assert torch.equal(torch.rand(3), random_numbers)
    _train(second)
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(tensor, second.model.state_dict()[name]), name
    assert first.schedule.get_last_lr() == second.schedule.get_last_lr()


def test_only_the_newest_checkpoints_stay(make_config: Callable[..., RunConfig], tmp_path: Path) -> None:
    learner = _learner(make_config(), seed=0)
    for step in (1, 2, 10, 10):
        checkpoint.save(tmp_path, learner, RunState(run_id="r", step=step), {}, keep_last=2)
    assert sorted(path.name for path in tmp_path.iterdir() if "step" in path.name) == [
        "step-000002",
        "step-000010",
    ]


def test_a_full_disk_is_one_sentence_and_leaves_the_checkpoint_before(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    learner = _learner(make_config(), seed=0)
    checkpoint.save(tmp_path / "c", learner, RunState(run_id="r", step=1), {}, keep_last=1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(
            OSError, match=r"step-000002 could not be written; the checkpoint before it stands"
        ):
            checkpoint.save(tmp_path / "c", learner, RunState(run_id="r", step=2), {}, keep_last=1)
        with pytest.raises(OSError, match="could not be written; the last checkpoint stands"):
            publish_policy(learner.policy, build_tokenizer(), tmp_path / "w", 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    found = checkpoint.latest(tmp_path / "c")
    assert found is not None
    assert found.state.step == 1
    assert weights.latest(tmp_path / "w") is None


def test_half_a_checkpoint_is_none(tmp_path: Path) -> None:
    (tmp_path / ".tmp-123").mkdir()
    assert checkpoint.latest(tmp_path) is None
    assert checkpoint.latest(tmp_path / "absent") is None
