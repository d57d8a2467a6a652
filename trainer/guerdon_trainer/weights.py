"""Hands the policy's weights to the services that follow them, and to whoever loads a Hugging Face folder."""

import os
import shutil
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from guerdon import weights
from guerdon_trainer.distributed import rank
from guerdon_trainer.model import Policy


def publish_policy(
    policy: Policy,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    version: int,
    send: Callable[[int, Mapping[str, Tensor]], object] | None = None,
) -> None:
    """Write the policy as a Hugging Face folder and make it the version to serve; every rank must call it.

    Before that `send(version, tensors)` may bring it to services by a shorter way.
    """
    state = policy.published_state()
    if rank() == 0:
        if send is not None:
            send(version, state)
        weights.publish(folder, version, lambda path: _write(policy, tokenizer, path, state))


def publish_adapters(policy: Policy, base: Path, folder: Path, version: int) -> None:
    """As `publish_policy`, with the policy's adapters alone; `base` holds the model that they are put on."""
    state, adapters = policy.published_adapters(), policy.adapters
    if rank() == 0 and adapters is not None:
        with _full_disks_said(folder):
            weights.publish(folder, version, lambda path: adapters.write(state, path, base))


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
    with _full_disks_said(path):
        policy.model.save_pretrained(path, state_dict=state)
    tokenizer.save_pretrained(path)


@contextmanager
def _full_disks_said(path: Path) -> Generator[None]:
    try:
        yield
    except SafetensorError as error:  # as safetensors says that a disk is full
        raise OSError(f"{path} could not be written; the last checkpoint stands: {error}") from error
