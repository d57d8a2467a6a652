import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from guerdon_trainer.config import RunConfig
from guerdon_trainer.run_folder import FolderRefused, cut_after, exclusive, open_folder, write_whole

Make = Callable[..., RunConfig]


def test_other_settings_in_the_same_folder_are_refused_by_name(make_config: Make) -> None:
    open_folder(make_config())
    open_folder(
        make_config("training.steps=9", "training.keep_last=5", "failures.attempts=9", "services.x={}")
    )
    with pytest.raises(FolderRefused, match=r"loss.clip_low was 0.0003 and is now 0.001\. Give --fresh"):
        open_folder(make_config("loss.clip_low=1e-3"))
    folder = open_folder(make_config("loss.clip_low=1e-3"), fresh=True)
    assert yaml.safe_load(folder.config.read_text())["loss"]["clip_low"] == 1e-3


def test_a_run_that_goes_on_keeps_its_settings(make_config: Make) -> None:
    folder = open_folder(make_config())
    before = folder.config.read_text()
    with exclusive(folder), pytest.raises(FolderRefused, match="another process is running"):
        open_folder(make_config("training.steps=9"))
    assert folder.config.read_text() == before


@pytest.mark.parametrize(
    "elsewhere",
    [
        "rollout.push={{urls: ['http://{0}:1'], master_address: '{0}'}}",
        "process_reward.replicas={{url: 'http://{0}:1'}}",
        "weights.mirror_url=file:///{0}/policy",
    ],
)
def test_a_run_may_go_on_on_other_machines(make_config: Make, elsewhere: str) -> None:
    open_folder(make_config(elsewhere.format("10.0.0.1")))
    open_folder(make_config(elsewhere.format("10.0.0.2")))
    open_folder(make_config())


@pytest.mark.parametrize("config_yaml", [None, "name: mine\n", "{", "- 1\n"])
def test_fresh_removes_no_folder_that_holds_no_run(
    make_config: Make, tmp_path: Path, config_yaml: str | None
) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    if config_yaml is not None:
        (tmp_path / "config.yaml").write_text(config_yaml)
    config = make_config(f"folder={tmp_path}")
    with pytest.raises(FolderRefused, match="holds no run, so --fresh does not remove it"):
        open_folder(config, fresh=True)
    assert (tmp_path / "precious.txt").read_text() == "mine"
    if config_yaml is not None:
        with pytest.raises(FolderRefused, match=r"config\.yaml is not that of a run"):
            open_folder(config)


def test_lines_of_later_steps_and_half_lines_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(6)) + '{"step": 6, "rew')
    cut_after(path, 3)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [0, 1, 2, 3]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "finished.json"
    write_whole(path, "old")

    def killed(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            write_whole(path, "new")
    assert path.read_text() == "old"
    write_whole(path, "new")
    assert [(left.name, left.read_text()) for left in tmp_path.iterdir()] == [("finished.json", "new")]
