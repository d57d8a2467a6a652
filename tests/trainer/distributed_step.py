"""What every rank does that torchrun starts; run by its test.

    distributed_step.py FOLDER...

In each folder but the last two steps, a checkpoint, a publication and a third step on the batch of its `work.pkl`; in
the last the whole run of its `recipe.yaml`, with services that only rank 0 sees.
"""

import json
import pickle
import sys
from pathlib import Path

import torch
from rich.console import Console

from guerdon_trainer import checkpoint
from guerdon_trainer.batch import Batch
from guerdon_trainer.checkpoint import RunState
from guerdon_trainer.config import RunConfig, load_recipe
from guerdon_trainer.distributed import is_follower, process_group, rank, tell, whole
from guerdon_trainer.launch import ensure_policy, finish, follow_first
from guerdon_trainer.live import LiveView
from guerdon_trainer.objective import advantages_of
from guerdon_trainer.prepare import TinyPolicy
from guerdon_trainer.prepare.tiny import build_model, build_tokenizer
from guerdon_trainer.run_folder import open_folder
from guerdon_trainer.step import Learner, kl_in_reward, make_learner, optimise
from guerdon_trainer.train import Run
from guerdon_trainer.weights import publish_policy, save_policy

sys.path.insert(0, str(Path(__file__).parent))
import conftest


def learner_of(config: RunConfig) -> Learner:
    """A learner on a tiny model, always the same."""

    def model() -> torch.nn.Module:
        return build_model(TinyPolicy(hidden_size=16, layers=2, heads=2), build_tokenizer(), seed=1).eval()

    torch.manual_seed(0)  # adapters begin at random
    policy = model()
    initial = policy if config.optimizer.lora else model()
    return make_learner(policy, initial, config.optimizer)  # pyright: ignore[reportArgumentType]


def run(config: RunConfig, batch: Batch, folder: Path) -> None:
    """Write what happened to `folder`, from rank 0."""
    learner = learner_of(config)

    def step(learner: Learner, number: int) -> dict[str, float]:
        advantages = advantages_of(config, batch, kl_in_reward(learner, batch, config))
        return optimise(learner, batch, advantages, config, number)

    rows = [step(learner, number) for number in (1, 2)]
    trained = {name: tensor.clone() for name, tensor in whole(learner.policy.learned_state()).items()}
    checkpoint.save(folder / "checkpoints", learner, RunState(run_id="r", step=2), {}, keep_last=1)
    publish_policy(learner.policy, build_tokenizer(), folder / "weights", 2)
    save_policy(learner.policy, build_tokenizer(), folder / "final")
    rows.append(step(learner, 3))
    again = resume(config, folder)
    repeated = step(again, 3)
    ends = [whole(one.policy.learned_state()) for one in (learner, again)]
    if rank() == 0:
        same = all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
        torch.save(trained, folder / "trained.pt")
        (folder / "result.json").write_text(json.dumps({"rows": rows, "repeated": repeated, "same": same}))


def resume(config: RunConfig, folder: Path) -> Learner:
    """A learner that goes on from the checkpoint."""
    learner = learner_of(config)
    found = checkpoint.latest(folder / "checkpoints")
    assert found is not None
    found.restore(learner)
    return learner


def train(folder: Path) -> None:
    """A run as `guerdon train` starts it."""
    config = load_recipe(str(folder / "recipe.yaml"), [f"folder={folder / 'run'}"])
    if is_follower():
        follow_first(config)
        return
    opened = open_folder(config)
    with process_group("cpu"):
        ensure_policy(config, opened, lambda text: None)
        tell("ready")
        conftest.leave_plots_undrawn()
        view = LiveView("run", 1, Console(quiet=True))
        finish(Run(config, view), conftest.FakeServices(opened.weights).clients, view)


if __name__ == "__main__":
    torch.set_num_threads(1)
    *steps, whole_run = map(Path, sys.argv[1:])
    with process_group("cpu"):
        for folder in steps:
            config, batch = pickle.loads((folder / "work.pkl").read_bytes())
            run(config, batch, folder)
        train(whole_run)
