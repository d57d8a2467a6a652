"""Which published weights a vLLM engine should serve, and whether a version is whole."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from guerdon import weights
from guerdon_services.models import WeightsMismatch
from guerdon_services.models.following import FollowedFolder

#: What `Followed.check` raises over a version that must not be taken up.
Unfit = (WeightsMismatch, SafetensorError, OSError, ValueError)


@dataclass(frozen=True)
class Found:
    """A version to take up; `identity` tells it from another one of the same number."""

    version: int
    path: Path
    identity: tuple[int, ...]


class Followed(FollowedFolder):
    """Follows a weights folder, or the URL of one, without reading tensors.

    `path` is the folder whose weights serve, or served before a trainer sent some.

    Raises:
        FileNotFoundError: there is no model.
        StoreError, OSError: nothing is known of the versions at the URL.
    """

    def __init__(self, model: Path, weights_dir: Path | str | None) -> None:
        super().__init__(model, weights_dir)
        self._read_version = self.version
        if not (self.path / "config.json").is_file():
            raise FileNotFoundError(f"no model in {self.path}: it holds no config.json")
        self._shapes = tensor_shapes(self.path)

    def newer(self) -> Found | None:
        """The latest version, if it is another one than serves and was not refused.

        Raises:
            ValueError, OSError: the folder cannot be read.
        """
        latest = weights.latest(self._followed)
        identity = weights.identity(latest)
        if latest is None or identity is None or identity in (self._loaded, self._refused):
            return None
        return Found(latest.version, latest.path, identity)

    def check(self, found: Found) -> None:
        """See that a version is whole and has exactly the model's tensors.

        Raises:
            WeightsMismatch: it has others. SafetensorError: a file is torn. OSError: one is not there.
        """
        shapes = tensor_shapes(found.path)
        odd = sorted(
            name for name in self._shapes.keys() | shapes.keys() if self._shapes.get(name) != shapes.get(name)
        )
        if odd:
            raise WeightsMismatch(
                f"{found.path}: {len(odd)} tensors are not those of the model, {odd[0]!r} first"
            )

    def taken_up(self, found: Found) -> None:
        """`found` serves from now on."""
        self.version, self.path, self._loaded = found.version, found.path, found.identity
        self._read_version = found.version

    def sent(self, version: int) -> None:
        """Weights that a trainer sent serve; they are in no folder."""
        self.version = version

    def fall_back(self) -> None:
        """Those that a trainer sent are lost: the folder's serve."""
        self.version = self._read_version

    def settle(self) -> None:
        """Where the folder that served is gone, let the newest whole version take its place: for a new engine."""
        if (self.path / "config.json").is_file():
            return
        for one in reversed(weights.published(self._followed)):
            identity = weights.identity(one)
            if identity is None:
                continue
            found = Found(one.version, one.path, identity)
            with suppress(*Unfit):
                self.check(found)
                self.taken_up(found)
                return

    def refuse(self, found: Found) -> None:
        """Look at `found` no more; another version, or the same number published anew, is looked at."""
        self._refused = found.identity


def tensor_shapes(folder: Path) -> Mapping[str, tuple[int, ...]]:
    """The shape of every tensor in a folder's safetensors, without a head that is the embedding itself.

    Raises:
        WeightsMismatch: there is no such file.
        SafetensorError: a file is torn.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise WeightsMismatch(f"no safetensors file in {folder}")
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        with safe_open(file, framework="numpy") as handle:
            shapes |= {name: tuple(handle.get_slice(name).get_shape()) for name in handle.keys()}  # noqa: SIM118
    if json.loads((folder / "config.json").read_text()).get("tie_word_embeddings"):
        shapes.pop("lm_head.weight", None)
    return shapes
