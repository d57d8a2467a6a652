"""prepare_policy: complete folders only, nothing done twice, nothing of others overwritten."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from transformers import AutoModelForCausalLM, AutoTokenizer

from guerdon_trainer.prepare import FolderPolicy, PolicyConfig, SmolLM2Policy, TinyPolicy, prepare_policy
from tests.waiting import PATIENCE_S

QUICK = TinyPolicy(warmup_steps=2, warmup_batch=4)


def quiet(_: str) -> None:
    """A progress callback that says nothing."""


def test_kind_decides_the_policy() -> None:
    adapter: TypeAdapter[object] = TypeAdapter(PolicyConfig)
    assert adapter.validate_python({"kind": "tiny", "layers": 3}) == TinyPolicy(layers=3)
    assert adapter.validate_python({"kind": "smollm2"}) == SmolLM2Policy()
    assert adapter.validate_python({"kind": "folder", "path": "x"}) == FolderPolicy(path="x")
    with pytest.raises(ValidationError, match="layer"):
        adapter.validate_python({"kind": "tiny", "layer": 3})


def test_reading_a_policy_imports_no_torch() -> None:
    code = (
        "import sys, guerdon_trainer.prepare; assert not {'torch', 'transformers', 'gguf'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)


def test_prepared_folder_is_left_alone_until_its_config_changes(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "policy"
    said: list[str] = []
    prepare_policy(QUICK, folder, seed=1, progress=said.append)
    first = (folder / "model.safetensors").stat()
    assert any("sloppy" in line for line in said)

    prepare_policy(QUICK, folder, seed=1, progress=said.append)
    assert (folder / "model.safetensors").stat().st_mtime_ns == first.st_mtime_ns
    assert "already prepared" in said[-1]

    prepare_policy(QUICK, folder, seed=2, progress=quiet)
    assert (folder / "model.safetensors").stat().st_ino != first.st_ino
    assert json.loads((folder / "prepared.json").read_text())["seed"] == 2
    assert [path.name for path in folder.parent.iterdir()] == ["policy"]


def test_foreign_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="not written by prepare"):
        prepare_policy(QUICK, tmp_path, seed=0, progress=quiet)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="safetensors"):
        prepare_policy(FolderPolicy(path=str(source)), tmp_path / "policy", seed=0, progress=quiet)
    with pytest.raises(FileNotFoundError, match="no folder"):
        prepare_policy(FolderPolicy(path="/nowhere/at/all"), tmp_path / "policy", seed=0, progress=quiet)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_folder_policy_gives_the_same_model(tmp_path: Path) -> None:
    prepare_policy(QUICK, tmp_path / "source", seed=0, progress=quiet)
    prepare_policy(FolderPolicy(path=str(tmp_path / "source")), tmp_path / "copy", seed=5, progress=quiet)
    record = json.loads((tmp_path / "copy" / "prepared.json").read_text())
    assert record == {"policy": {"kind": "folder", "path": str(tmp_path / "source")}, "seed": None}
    states = [
        AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict() for name in ("source", "copy")
    ]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert AutoTokenizer.from_pretrained(tmp_path / "copy")("1+1=").input_ids
