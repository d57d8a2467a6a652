"""A dry run tries everything, says what it found, and leaves the run's folder alone."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from rich.console import Console
from typer.testing import CliRunner

from guerdon.types import Status
from guerdon_trainer import cli, dry_run
from guerdon_trainer.config import RunConfig
from guerdon_trainer.memory import available_memory, estimate_memory
from guerdon_trainer.prepare import TinyPolicy
from guerdon_trainer.prepare.tiny import build_model, build_tokenizer
from guerdon_trainer.run_folder import open_folder

Make = Callable[..., RunConfig]


def _command(*words: str) -> Any:
    app = typer.Typer()
    for name in ("train", "run"):
        app.command(name)(getattr(cli, name))
    return CliRunner().invoke(app, list(words))


@pytest.fixture
def tried(make_services: Any, make_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A dry run of `guerdon train` with fake services: whether all was well, and the table's text."""

    def try_out(services: Any, *overrides: str) -> tuple[bool, str]:
        make_config()
        monkeypatch.setattr(dry_run, "connect", lambda config, redis: services.clients)
        monkeypatch.setattr(dry_run, "check_queues", lambda config, redis: None)
        console = Console(width=200, record=True, file=io.StringIO())
        words = [f"folder={tmp_path / 'run'}", *overrides]
        passed = dry_run.dry_run(str(tmp_path / "unit.yaml"), words, "redis://nowhere", console)
        return passed, console.export_text()

    return try_out


def _texts(sample: Any) -> list[str]:
    return ["1", "+", "2", "3"]


def test_everything_is_tried_and_nothing_is_kept(tried: Any, make_services: Any, tmp_path: Path) -> None:
    services = make_services(tmp_path, _texts)
    passed, table = tried(services)
    assert passed, table
    assert "40 questions, training; 16 questions, held out" in table
    assert "16 responses to 4 prompts" in table
    assert "16 rewards from 0 to 1, mean 0.750" in table
    assert "token rewards of 16 responses, version 0" in table
    # The PRM that runs already has learnt nothing of it.
    assert services.process_reward.requests == []
    assert not (tmp_path / "run").exists()


def test_a_service_that_fails_is_named_with_its_reason(
    tried: Any, make_services: Any, tmp_path: Path
) -> None:
    services = make_services(tmp_path, _texts)
    services.math.always = Status.INTERNAL_ERROR
    passed, table = tried(services, "failures.window=1000")
    assert not passed
    assert "no response got a reward: internal_error: as told" in table
    # What comes after a failure is not tried.
    assert "process_reward 1" in table
    assert "token rewards" not in table


def test_settings_of_another_run_are_found_out_before_anything_is_prepared(
    tried: Any, make_services: Any, make_config: Make, tmp_path: Path
) -> None:
    folder = open_folder(make_config())
    before = folder.config.read_bytes()
    passed, table = tried(make_services(tmp_path, _texts), "seed=7")
    assert not passed
    assert "seed was 0 and is now 7" in table
    assert folder.config.read_bytes() == before
    assert sorted(path.name for path in folder.path.iterdir()) == ["config.yaml", "lock"]


def test_too_little_memory_is_said_before_services_are_asked(
    tried: Any, make_services: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_run, "available_memory", lambda device: 1000)
    passed, table = tried(make_services(tmp_path, _texts))
    assert not passed
    assert "try fewer optimizer.micro_batch_tokens" in table


def test_redis_that_is_not_there_fails_the_command(make_config: Make, tmp_path: Path) -> None:
    config = make_config()
    words = [str(tmp_path / "unit.yaml"), f"folder={config.run_folder}", "--redis", "redis://127.0.0.1:1/0"]
    said = _command("train", *words, "--dry-run")
    assert said.exit_code == 1
    assert "FAILED" in said.output
    assert "cannot be reached" in " ".join(said.output.replace("│", " ").split())
    assert not config.run_folder.exists()


def test_redis_that_is_not_there_is_one_sentence_before_anything_is_prepared(
    make_config: Make, tmp_path: Path
) -> None:
    config = make_config()
    words = [
        str(tmp_path / "unit.yaml"),
        f"folder={config.run_folder}",
        "--redis",
        "redis://:secret@127.0.0.1:1/0",
    ]
    said = _command("train", *words)
    assert said.exit_code == 1
    assert said.output.startswith("error: Redis at redis://127.0.0.1:1/0 cannot be reached")
    assert len(said.output.splitlines()) == 1
    assert not (config.run_folder / "policy").exists()


def test_adapters_are_tried_too(tried: Any, make_services: Any, tmp_path: Path) -> None:
    passed, table = tried(make_services(tmp_path, _texts), "optimizer.lora={rank: 2, targets: [q_porj]}")
    assert not passed
    assert (
        "optimizer.lora.targets: no module of this policy is called q_porj; its linear layers are down_proj"
        in table
    )


@pytest.mark.parametrize("command", ["train", "run"])
def test_a_wrong_key_is_one_sentence(make_config: Make, tmp_path: Path, command: str) -> None:
    make_config()
    said = _command(command, str(tmp_path / "unit.yaml"), "loss.clip_lo=1", "--dry-run")
    assert said.exit_code == 2
    assert said.output == "error: unknown key 'loss.clip_lo': did you mean 'loss.clip_low'?\n"


def test_the_memory_estimate_counts_what_there_is(make_config: Make) -> None:
    model = build_model(TinyPolicy(hidden_size=16, layers=2, heads=2), build_tokenizer(), seed=0)
    count = sum(parameter.numel() for parameter in model.parameters())
    plain = estimate_memory(model, make_config("optimizer.micro_batch_tokens=100"))
    assert (plain.parameters, plain.weights, plain.gradients) == (count, 4 * count, 4 * count)
    assert (plain.optimizer, plain.initial) == (8 * count, 4 * count)
    inner = model.config.intermediate_size
    assert plain.activations == 100 * 4 * 2 * (9 * 16 + 4 * inner)
    small = estimate_memory(
        model,
        make_config("optimizer={micro_batch_tokens: 100, gradient_checkpointing: true, precision: bf16}",
                    "training.kl_to_initial=false"),
    )  # fmt: skip
    assert small.activations == 100 * 2 * (2 * 16 + 9 * 16 + 4 * inner)
    assert small.initial == 0
    assert small.total == 16 * count + small.activations
    assert available_memory(torch.device("cpu")) > 0
