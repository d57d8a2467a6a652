import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from guerdon.types import Status
from guerdon_trainer import cli
from guerdon_trainer.config import RunConfig
from guerdon_trainer.distributed import DeviceMissing
from guerdon_trainer.launch import RUN_FAILURES, ensure_policy, finish
from guerdon_trainer.live import LiveView
from guerdon_trainer.run_folder import RunFolder, exclusive, is_finished, open_folder
from guerdon_trainer.service_stats import FailureBudgetExceeded
from guerdon_trainer.train import Run

Make = Callable[..., RunConfig]


def _command(*words: str) -> Any:
    app = typer.Typer()
    for name in ("prepare", "train", "run"):
        app.command(name)(getattr(cli, name))
    return CliRunner().invoke(app, list(words))


def _finish(config: RunConfig, services: Any) -> RunFolder:
    folder = open_folder(config)
    ensure_policy(config, folder, lambda text: None)
    view = LiveView("test", 1, Console(quiet=True))
    finish(Run(config, view), services.clients, view, lambda: {"math": 1})
    return folder


def test_a_finished_run_has_its_report_and_says_that_it_is_finished(
    make_config: Make, make_services: Any, tmp_path: Path
) -> None:
    config = make_config("training.steps=2")
    assert not is_finished(config, RunFolder(config.run_folder))
    folder = _finish(config, make_services(config.run_folder / "weights" / "policy"))
    assert is_finished(config, folder)
    assert json.loads(folder.services.read_text())["restarts"] == {"math": 1}
    assert "<html" in folder.report.read_text()

    said = _command("run", str(tmp_path / "unit.yaml"), f"folder={config.run_folder}", "training.steps=2")
    assert said.exit_code == 0
    assert "this run is finished already" in said.output
    assert "process_reward" in said.output
    assert "before" in said.output
    assert str(folder.report) in said.output


def test_more_steps_are_a_run_to_go_on_with(make_config: Make, make_services: Any) -> None:
    config = make_config("training.steps=1")
    services = make_services(config.run_folder / "weights" / "policy")
    folder = _finish(config, services)
    longer = make_config("training.steps=2")
    assert not is_finished(longer, folder)
    _finish(longer, services)
    assert is_finished(longer, folder)


def test_a_run_that_fails_leaves_a_report_of_how_far_it_got(make_config: Make, make_services: Any) -> None:
    config = make_config("failures.attempts=1")
    services = make_services(config.run_folder / "weights" / "policy")
    services.math.always = Status.INTERNAL_ERROR
    with pytest.raises(FailureBudgetExceeded):
        _finish(config, services)
    folder = RunFolder(config.run_folder)
    assert not folder.finished.exists()
    assert "internal_error: as told" in folder.report.read_text()


@pytest.mark.parametrize("command", ["prepare", "train", "run"])
def test_a_wrong_key_ends_a_command_with_one_sentence(
    make_config: Make, tmp_path: Path, command: str
) -> None:
    make_config()
    said = _command(command, str(tmp_path / "unit.yaml"), "loss.clip_lo=1")
    assert said.exit_code == 2
    assert said.output == "error: unknown key 'loss.clip_lo': did you mean 'loss.clip_low'?\n"


def test_a_gpu_that_is_not_there_is_one_sentence(make_config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    config = make_config("training.device=cuda:1")
    with (
        pytest.raises(DeviceMissing, match=r"training\.device is cuda:1, and torch finds 1 GPUs"),
        LiveView("unit", 1, Console(quiet=True)) as view,
    ):
        Run(config, view)
    assert DeviceMissing in RUN_FAILURES


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_gpu_that_torchrun_gives_and_is_not_there_is_one_sentence_of_every_rank(
    make_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str
) -> None:
    config = make_config()
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    for name, value in {"TORCHELASTIC_RUN_ID": "none", "RANK": rank, "LOCAL_RANK": rank}.items():
        monkeypatch.setenv(name, value)
    words = (str(tmp_path / "unit.yaml"), f"folder={config.run_folder}", "training.device=cuda")
    said = _command("train", *words)
    # Not 2: on another node there may be one.
    assert said.exit_code == 1
    assert said.output == "error: training.device is cuda, and torch finds 0 GPUs on this machine\n"


def test_prepare_stops_at_the_policy_and_fresh_starts_over(make_config: Make, tmp_path: Path) -> None:
    config = make_config()
    recipe, folder = str(tmp_path / "unit.yaml"), f"folder={config.run_folder}"
    said = _command("prepare", recipe, folder)
    assert said.exit_code == 0, said.output
    assert (config.run_folder / "policy" / "model.safetensors").exists()
    changed = _command("prepare", recipe, folder, "seed=1")
    assert (changed.exit_code, "seed was 0 and is now 1" in changed.output) == (2, True)
    assert _command("prepare", recipe, folder, "seed=1", "--fresh").exit_code == 0


def test_two_processes_never_run_in_one_folder(make_config: Make, tmp_path: Path) -> None:
    config = make_config()
    recipe, folder = str(tmp_path / "unit.yaml"), f"folder={config.run_folder}"
    with exclusive(open_folder(config)):
        for extra in ((), ("--fresh",)):
            said = _command("run", recipe, folder, *extra)
            # Not 2: when the other has ended, another attempt goes on.
            assert said.exit_code == 1
            assert f"error: another process is running in {config.run_folder}" in said.output
    assert config.run_folder.exists()
