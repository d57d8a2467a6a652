"""The learner's memory on disk: a weights folder whose versions also hold what an exact restart needs.

    v000000013/   Hugging Face model and tokenizer files
                  process_reward.json    what rewards are made with, for replicas: {"beta": 0.05}
                  optimizer.pt    the optimizer's state tensors
                  updates.json    [{"request_id", "digest", "version"}] of the updates that led here, 10,000 at most
                  response.json   the answer to the last of them (absent in version 0)
    .lock         held by the one learner that writes here

With a mirror, models and tokenizers also go to a URL (`guerdon.mirrors`), in the background: an update is done when
it is in the folder, whatever becomes of the mirror.

A version is complete or absent (`guerdon.weights`), so a learner killed at any instant restarts with the old
version or with the new one and its answer. Versions newer than `LATEST` belong to a past that was left.
"""

import fcntl
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from guerdon import weights
from guerdon.mirrors import Mirror
from guerdon.types import UpdateRequest, UpdateResponse
from guerdon_services.models import read_weights
from guerdon_services.runtime.scorer import NotReady

_LOCK = ".lock"
_OPTIMIZER, _UPDATES, _RESPONSE = "optimizer.pt", "updates.json", "response.json"
#: What only the learner needs; all of `lora.Adapters` is in the merged weights.
_OWN = (_OPTIMIZER, _UPDATES, _RESPONSE, "adapters.pt")
_REWARDS = "process_reward.json"
#: Updates that can be told from new ones; each version holds them all.
_REMEMBERED = 10_000


@dataclass(frozen=True)
class Applied:
    """An update that was applied: the version it made, and a digest of everything it asked for."""

    request_id: str
    digest: str
    version: int


def save_weights(model: PreTrainedModel, folder: Path) -> None:
    """Write a model as its class does."""
    model.save_pretrained(folder)


def published_beta(folder: Path) -> float | None:
    """The learner's beta, as a version's folder tells it; None where it is not said, or the folder is gone."""
    try:
        return float(json.loads((folder / _REWARDS).read_text())["beta"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


class VersionStore:
    """Writes and reads the versions of one learner; only one process can hold it."""

    def __init__(
        self, folder: Path, *, keep_last: int, beta: float = 0.05, mirror_url: str | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._keep_last = keep_last
        self._beta = beta
        self._lock = _lock(folder)
        try:
            self._check_latest()
        except Exception:
            os.close(self._lock)
            raise
        for leftover in folder.glob(".tmp-*"):
            shutil.rmtree(leftover)
        self._drop_after_latest()
        self.applied = self._read_applied()
        self._mirror = Mirror(folder, mirror_url, keep_last=keep_last, leave_out=_OWN) if mirror_url else None

    def close(self) -> None:
        """Let another learner have the folder."""
        if self._mirror is not None:
            self._mirror.close()
        os.close(self._lock)

    @property
    def mirrored(self) -> str:
        """How far the mirror is, in words; empty without one."""
        return self._mirror.state if self._mirror is not None else ""

    @property
    def current(self) -> weights.Published | None:
        """The latest version; None in a new folder."""
        return weights.latest(self.folder)

    def kept(self) -> list[weights.Published]:
        """The versions that can still be returned to, oldest first."""
        return weights.published(self.folder)

    def find(self, request_id: str) -> Applied | None:
        """The update with this id, if it is part of the current version's past."""
        return next((update for update in reversed(self.applied) if update.request_id == request_id), None)

    def response(self, update: Applied) -> UpdateResponse | None:
        """The stored answer to an update; None when its version is no longer kept."""
        path = weights.version_path(self.folder, update.version) / _RESPONSE
        return UpdateResponse.model_validate_json(path.read_text()) if path.is_file() else None

    def publish(
        self,
        version: int,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        optimizer: torch.optim.Optimizer,
        update: tuple[UpdateRequest, UpdateResponse] | None = None,
        save: Callable[[PreTrainedModel, Path], None] = save_weights,
    ) -> None:
        """Write a version with the update that made it, and make it the latest.

        `save` writes a Hugging Face model folder, and what `read` of `restore` wants besides.
        """
        self._hold()
        applied = list(self.applied)
        if update is not None:
            applied.append(Applied(update[0].request_id, digest(update[0]), version))
        applied = applied[-_REMEMBERED:]

        def write(path: Path) -> None:
            save(model, path)
            tokenizer.save_pretrained(path)
            (path / _REWARDS).write_text(json.dumps({"beta": self._beta}))
            torch.save(optimizer.state_dict()["state"], path / _OPTIMIZER)
            (path / _UPDATES).write_text(json.dumps([asdict(entry) for entry in applied]))
            if update is not None:
                (path / _RESPONSE).write_text(update[1].model_dump_json())

        try:
            weights.publish(self.folder, version, write, keep_last=self._keep_last)
        finally:
            self._notify()  # also after a version was published and an old one could not be removed
        self.applied = applied

    def restore(
        self,
        model: PreTrainedModel,
        optimizer: torch.optim.Optimizer,
        read: Callable[[PreTrainedModel, Path], None] = read_weights,
    ) -> int:
        """Give model, optimizer and `applied` the state of the latest version, bit by bit; returns its number.

        `read` copies the weights in a version's folder into the model.

        Learning rate and the like stay those of `optimizer`: they belong to the settings of this start.
        """
        current = self.current
        if current is None:
            raise FileNotFoundError(f"no version in {self.folder}")
        read(model, current.path)
        state: dict[int, dict[str, Tensor]] = torch.load(current.path / _OPTIMIZER, weights_only=True)
        groups: list[dict[str, Any]] = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
        optimizer.zero_grad()
        self.applied = self._read_applied()
        return current.version

    def go_back(self, version: int) -> None:
        """Make a kept version the latest, for `restore`, and drop the newer ones: they will be made anew."""
        self._hold()
        weights.set_latest(self.folder, version)
        self._drop_after_latest()
        self._notify()

    def _hold(self) -> None:
        """Lock the folder again if it was removed and another one stands in its place.

        Raises:
            NotReady: another learner has locked that.
        """
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(self.folder / _LOCK), os.fstat(self._lock)):
                return
        self.folder.mkdir(parents=True, exist_ok=True)
        held, self._lock = self._lock, _lock(self.folder)
        os.close(held)

    def _notify(self) -> None:
        if self._mirror is not None:
            self._mirror.notify()

    def _check_latest(self) -> None:
        """Refuse to begin anew where much was learnt; without `LATEST` only a killed beginning lies here.

        Raises:
            ValueError: there are versions, and `LATEST` names none of them.
        """
        kept = [published.version for published in self.kept()]
        if self.current is None and kept not in ([], [0]):
            raise ValueError(
                f"{self.folder / 'LATEST'} names none of the versions {kept} that lie there; "
                "write the number of the one to go on with into it, or choose another weights_dir"
            )

    def _drop_after_latest(self) -> None:
        current = self.current
        for published in self.kept():
            if current is None or published.version > current.version:
                doomed = self.folder / f".tmp-{uuid.uuid4().hex}"
                os.rename(published.path, doomed)
                shutil.rmtree(doomed)

    def _read_applied(self) -> list[Applied]:
        current = self.current
        if current is None:
            return []
        return [Applied(**entry) for entry in json.loads((current.path / _UPDATES).read_text())]


def _lock(folder: Path) -> int:
    """A descriptor that holds the folder until it is closed.

    Raises:
        NotReady: another learner holds it.
    """
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise NotReady(f"another learner writes to {folder}") from None
    return descriptor


def digest(request: UpdateRequest) -> str:
    """Tells whether two updates ask for the same thing."""
    return hashlib.sha256(request.model_dump_json().encode()).hexdigest()
