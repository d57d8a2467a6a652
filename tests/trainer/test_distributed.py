"""Two processes that torchrun starts do what one does: losses, norms, weights, checkpoints, publications."""

import json
import os
import pickle
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from guerdon import weights
from guerdon_trainer.batch import Batch, make_batch
from guerdon_trainer.config import RunConfig
from guerdon_trainer.groups import Group
from guerdon_trainer.run_folder import RunFolder, read_lines

Make = Callable[..., RunConfig]
_WORKER = Path(__file__).parent / "distributed_step.py"
_PLAIN = (
    "rewards=[{service: math}]",
    "process_reward=null",
    "optimizer.lr=0.001",
    "optimizer.warmup_steps=0",
)
CASES = {
    "uneven parts": (
        "loss={name: ppo_clip, aggregation: token-mean}",
        "advantage={name: reinforce_pp, kl_coefficient: 0.1}",
        "optimizer.micro_batch_tokens=12",
    ),
    "mini-batches": (
        "loss={name: gspo}",
        "advantage={name: rloo}",
        "optimizer.mini_batches=2",
        "optimizer.gradient_checkpointing=true",
    ),
    "an idle rank": ("loss={name: ppo_clip}", "advantage={name: rloo}", "optimizer.mini_batches=2"),
    "adapters": ("loss={name: gspo_token}", "advantage={name: rloo}", "optimizer.lora={rank: 2, alpha: 4}"),
}


Groups = Callable[..., Group]


def works(make_config: Make, make_group: Groups) -> dict[str, tuple[RunConfig, Batch]]:
    groups = [
        make_group(0, {"1": 1.0, "12345": 0.0, "12": 0.5, "": 0.0}),
        make_group(1, {"+3": 1.0, "4444": 0.0, "7;": None}, prompt="1+2+3+4="),
    ]
    # Two mini-batches of one response each: whichever rank gets it, the other has nothing to learn from.
    two = [make_group(0, {"123": 1.0, "4": 0.0, "56": None})]
    return {
        name: (make_config(*_PLAIN, *words), make_batch(two if name == "an idle rank" else groups, None))
        for name, words in CASES.items()
    }


def launch(folders: list[Path]) -> None:
    """Two processes, for all of them."""
    command = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--local-addr",
        "127.0.0.1",
        "--nproc-per-node",
        "2",
    ]
    # Threads: torchrun would warn about choosing them; the interface: a machine's name may not resolve.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, *command, str(_WORKER), *map(str, folders)],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


@pytest.mark.timeout(1200)
@pytest.mark.skipif(
    sys.platform != "linux", reason="gloo is told to use the loopback interface by its Linux name"
)
def test_two_processes_do_what_one_does(
    make_config: Make, make_group: Groups, unit_recipe: dict[str, Any], tmp_path: Path
) -> None:
    folders: dict[str, tuple[Path, Path]] = {}
    run = runpy.run_path(str(_WORKER))["run"]
    for number, (name, work) in enumerate(works(make_config, make_group).items()):
        folders[name] = tmp_path / f"{number}-one", tmp_path / f"{number}-two"
        for folder in folders[name]:
            folder.mkdir()
        run(*work, folders[name][0])
        (folders[name][1] / "work.pkl").write_bytes(pickle.dumps(work))
    whole_run = tmp_path / "run"
    whole_run.mkdir()
    recipe = {**unit_recipe, "training": {"steps": 2, "checkpoint_every": 1}}
    (whole_run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    launch([*(two for _, two in folders.values()), whole_run])
    for name, (one, two) in folders.items():
        check_equal(name, one, two)
        check_published(one, two)
    check_run(RunFolder(whole_run / "run"))


def check_equal(name: str, *folders: Path) -> None:
    alone, together = map(result, folders)
    for mine, theirs in zip(alone["rows"], together["rows"], strict=True):
        assert mine["grad_norm"] > 0.01, name
        assert theirs == pytest.approx(mine, abs=1e-6, rel=1e-5), name
    trained = [torch.load(folder / "trained.pt", weights_only=True) for folder in folders]
    torch.testing.assert_close(trained[1], trained[0], atol=1e-6, rtol=0)
    for each in (alone, together):
        assert each["same"], name
        assert each["repeated"] == each["rows"][2], name


def check_published(*folders: Path) -> None:
    """What was published and left at the end loads with transformers alone, and is the same everywhere."""
    ids = torch.tensor([[3, 4, 5, 6]])
    logits: list[torch.Tensor] = []
    for folder in folders:
        published = weights.latest(folder / "weights")
        assert published is not None
        assert published.version == 2
        for path in (published.path, folder / "final"):
            load: Any = AutoModelForCausalLM.from_pretrained
            model, report = load(path, output_loading_info=True)
            assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
            logits.append(model.eval()(input_ids=ids).logits)
    for other in logits[1:]:
        torch.testing.assert_close(other, logits[0], atol=1e-5, rtol=0)


def check_run(folder: RunFolder) -> None:
    """A whole run, of which only rank 0 saw the services: it learned, kept checkpoints and left its model."""
    rows = read_lines(folder.metrics)
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["grad_norm"] > 0 for row in rows)
    assert json.loads(folder.finished.read_text())["step"] == 2
    assert [path.name for path in sorted(folder.checkpoints.iterdir())] == ["step-000001", "step-000002"]
    published = weights.latest(folder.weights)
    assert published is not None
    assert published.version == 2
    tensors = [load_file(path / "model.safetensors") for path in (published.path, folder.model)]
    torch.testing.assert_close(tensors[1], tensors[0], atol=0, rtol=0)
    AutoModelForCausalLM.from_pretrained(folder.model)
