"""Which published weights a vLLM engine should serve, and whether a version is whole.

A version is a whole model, or a LoRA adapter on the model that the service was started with (setting `model`), whatever
was published in between.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog
from safetensors import SafetensorError, safe_open

from guerdon import weights
from guerdon_services.models import WeightsMismatch
from guerdon_services.models.following import FollowedFolder, is_adapter
from guerdon_services.rollout.engines import adapters
from guerdon_services.rollout.engines.held import HeldVersions

_log = structlog.get_logger(__name__)

#: What `Followed.check` raises over a version that must not be taken up.
Unfit = (WeightsMismatch, SafetensorError, OSError, ValueError)


@dataclass(frozen=True)
class Source:
    """Where weights are read: a whole model, and an adapter on it."""

    model: Path
    adapter: Path | None = None


@dataclass(frozen=True)
class Found:
    """A version to take up; `identity` tells it from another one of the same number."""

    version: int
    path: Path
    identity: tuple[int, ...]


class Followed(FollowedFolder):
    """Follows a weights folder, or the URL of one, without reading tensors.

    `path` is the folder that was read for what serves, or served before a trainer sent some: of a whole model, or of an
    adapter of at most `max_rank`. What serves is held: its publisher's pruning does not take it.

    Raises:
        FileNotFoundError: there is no model.
        WeightsMismatch, SafetensorError, ValueError: no version is whole and fits.
        StoreError, OSError: nothing is known of the versions at the URL.
    """

    def __init__(self, model: Path, weights_dir: Path | str | None, *, max_rank: int = 0) -> None:
        super().__init__(model, weights_dir)
        self._base = model
        self._max_rank = max_rank
        self._refused: set[tuple[int, ...]] = set()
        self._sent: int | None = None
        self._held = HeldVersions(self._followed)
        #: For people: what was wrong with the latest version when another had to take its place.
        self.refusal = ""
        try:
            self._begin()
        except BaseException:
            self.close()
            raise
        self._read_version = self.version

    @property
    def source(self) -> Source:
        """Where what serves is read."""
        return self.source_of(self.path)

    def source_of(self, path: Path) -> Source:
        """What a version's folder holds."""
        return Source(self._base, path) if is_adapter(path) else Source(path)

    def close(self) -> None:
        """Download no more, and hold nothing."""
        super().close()
        self._held.close()

    def newer(self) -> Found | None:
        """The latest version, if it is another one than serves and was not refused.

        Raises:
            ValueError, OSError: the folder cannot be read.
        """
        latest = weights.latest(self._followed)
        identity = weights.identity(latest)
        if latest is None or identity is None or identity == self._loaded or identity in self._refused:
            return None
        return Found(latest.version, latest.path, identity)

    def hold(self, found: Found) -> Found | None:
        """The same version where it stays until it is refused or superseded; None: it has been replaced."""
        path = self._held.hold(weights.Published(found.version, found.path), found.identity)
        return None if path is None else Found(found.version, path, found.identity)

    def check(self, found: Found) -> None:
        """See that a version is whole and fits the model: exactly its tensors, or adapters of some of them.

        Raises:
            WeightsMismatch: it has others. SafetensorError: a file is torn. OSError: one is not there.
            ValueError: an adapter's settings are not those of one that can be served.
        """
        if is_adapter(found.path):
            self._check_adapter(found.path)
            return
        shapes = tensor_shapes(found.path)
        odd = sorted(
            name for name in self._shapes.keys() | shapes.keys() if self._shapes.get(name) != shapes.get(name)
        )
        if odd:
            raise WeightsMismatch(
                f"{found.path}: {len(odd)} tensors are not those of the model, {odd[0]!r} first"
            )

    def was_read(self, found: Found) -> None:
        """See that what was read is one version: where it is not held, another may have taken its place meanwhile.

        Raises:
            ValueError: some files may be those of another publication of the same number.
        """
        lies_there = weights.Published(found.version, found.path)
        if not self._held.holds(found.path) and weights.identity(lies_there) not in (found.identity, None):
            raise ValueError(f"{found.path} was published anew while it was read")

    def taken_up(self, found: Found) -> None:
        """`found` serves from now on."""
        superseded = self.path
        self.version, self.path, self._loaded = found.version, found.path, found.identity
        self._read_version, self._sent = found.version, None
        self._held.release(superseded)

    def sent(self, version: int) -> None:
        """Weights that a trainer sent serve; they are in no folder yet."""
        self.version = self._sent = version

    def unsure(self) -> None:
        """Nobody knows whether the version that was sent will be published as it is."""
        self._sent = None

    def was_sent(self, found: Found) -> bool:
        """Whether `found` is what a trainer sent, which it has now written down as well: there is nothing to read."""
        return found.version == self._sent and not is_adapter(found.path)

    def fall_back(self) -> None:
        """Those that a trainer sent are lost: the folder's serve."""
        self.version, self._sent = self._read_version, None

    def settle(self) -> None:
        """Where the folder that served is gone, let the newest whole version take its place: for a new engine.

        One that was refused does not.

        Raises:
            FileNotFoundError: there is none.
        """
        if any((self.path / name).is_file() for name in ("config.json", adapters.CONFIG)):
            return
        for found in self._published():
            with suppress(*Unfit):
                self.check(found)
                self.taken_up(self.hold(found) or found)
                return
        raise FileNotFoundError(f"version {self.version} is gone, and no other that is there will do")

    def refuse(self, found: Found, *, for_good: bool = True) -> None:
        """Look at `found` no more if it is `for_good`; another version, or the same number anew, is looked at."""
        if for_good:
            self._refused.add(found.identity)
        self._held.release(found.path)

    def _begin(self) -> None:
        """Begin with the latest version, or the newest before it that is whole."""
        while True:
            self._hold_first()
            try:
                self._fits()
                return
            except Unfit as error:
                self._held.release(self.path)
                if self._loaded is not None:
                    self._refused.add(self._loaded)
                before = next(self._published(), None)
                if before is None:
                    raise
                why = f"version {self.version} was refused: {type(error).__name__}: {error}"
                self.refusal = self.refusal or why
                _log.warning(
                    "weights refused", version=self.version, instead=before.version, error=str(error)
                )
                self.version, self.path, self._loaded = before.version, before.path, before.identity

    def _published(self) -> Iterator[Found]:
        """Every version that is there and was not refused, newest first."""
        for one in reversed(weights.published(self._followed)):
            identity = weights.identity(one)
            if identity is not None and identity not in self._refused:
                yield Found(one.version, one.path, identity)

    def _hold_first(self) -> None:
        """Hold what the folder had when it was looked at, or what has come since."""
        while self._loaded is not None:
            held = self._held.hold(weights.Published(self.version, self.path), self._loaded)
            if held is not None:
                self.path = held
                return
            self._look()

    def _fits(self) -> None:
        if self.source.adapter is not None:
            self._can_adapt()
        if not (self.source.model / "config.json").is_file():
            raise FileNotFoundError(f"no model in {self.source.model}: it holds no config.json")
        self._shapes = tensor_shapes(self.source.model)
        if self.source.adapter is not None:
            self._check_adapter(self.source.adapter)

    def _check_adapter(self, path: Path) -> None:
        self._can_adapt()
        adapters.check(path, self._base, self._shapes, self._max_rank)

    def _can_adapt(self) -> None:
        if not self._max_rank:
            raise ValueError("it is an adapter, and the service was started without max_lora_rank")
        if not (self._base / "config.json").is_file():
            raise ValueError("it is an adapter, and the setting `model` names no single model to put it on")


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
