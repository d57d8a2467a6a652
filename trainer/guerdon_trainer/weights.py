"""Hands the policy's weights to the services that follow them, and to whoever loads a Hugging Face folder."""

import os
import shutil
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from guerdon import weights
from guerdon_trainer.distributed import rank
from guerdon_trainer.model import Policy


def publish_policy(policy: Policy, tokenizer: PreTrainedTokenizerBase, folder: Path, version: int) -> None:
    """Write the policy as a Hugging Face folder and make it the version to serve; every rank must call it."""
    state = policy.published_state()
    if rank() == 0:
        weights.publish(folder, version, lambda path: _write(policy, tokenizer, path, state))


def save_policy(policy: Policy, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write the policy where a run leaves it when it is finished; every rank must call it."""
    state = policy.published_state()
    if rank() == 0:
        temporary = folder.with_name(f".tmp-{folder.name}")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        _write(policy, tokenizer, temporary, state)
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(temporary, folder)


def _write(policy: Policy, tokenizer: PreTrainedTokenizerBase, path: Path, state: dict[str, Tensor]) -> None:
    try:
        policy.model.save_pretrained(path, state_dict=state)
    except SafetensorError as error:  # as safetensors says that a disk is full
        raise OSError(f"{path} could not be written; the last checkpoint stands: {error}") from error
    tokenizer.save_pretrained(path)
