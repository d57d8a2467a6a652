"""Follow published weights: a model that takes up each new version, and a scorer by such a model."""

import hashlib
import os
from pathlib import Path
from typing import Annotated, TypeVar

import structlog
from pydantic import BeforeValidator, Field
from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from guerdon import weights
from guerdon.mirrors import Follower
from guerdon.stores import is_url
from guerdon.types import ModelVersion, VersionsResponse
from guerdon_services.models.loading import (
    HalfRead,
    LanguageModel,
    WeightsMismatch,
    device_memory,
    load,
    read_weights,
    set_threads,
)
from guerdon_services.runtime.scorer import (
    Batching,
    NotReady,
    OptionsT,
    Scorer,
    ScorerSettings,
    Versioned,
)

_log = structlog.get_logger(__name__)

_NO_ADAPTERS = (
    "it holds a LoRA adapter, and only the rollout service's vLLM takes up adapters; publish merged weights"
)


def kept_versions(folder: Path) -> list[ModelVersion]:
    """What a weights folder holds, oldest first; a version that is just being removed is left out."""
    return [
        ModelVersion(version=one.version, path=str(one.path), created_unix_s=identity[-1] / 1e9)
        for one in weights.published(folder)
        if (identity := weights.identity(one)) is not None
    ]


def is_adapter(folder: Path) -> bool:
    """Whether a version is a LoRA adapter, to be put on another model."""
    return (folder / "adapter_config.json").is_file()


def _location(given: object) -> object:
    return Path(given) if isinstance(given, str) and not is_url(given) else given


#: Setting: a weights folder, or the URL of one (`guerdon.stores`).
WeightsLocation = Annotated[Path | str, BeforeValidator(_location)]


def weights_cache(url: str) -> Path:
    """The folder that versions from a URL are downloaded to; GUERDON_CACHE_DIR moves it to another disk."""
    cache = os.environ.get("GUERDON_CACHE_DIR") or Path.home() / ".cache" / "guerdon"
    return Path(cache) / "weights" / hashlib.sha256(url.encode()).hexdigest()[:32]


class FollowedFolder:
    """Which published weights serve; until something is published those of the model's own folder do, as version 0.

    `folder` is a plain Hugging Face folder, or itself a weights folder with versions. `weights_dir` is the
    folder to follow or the URL of one, by default `folder`. Versions at a URL are downloaded in the background.

    Raises:
        StoreError, OSError: nothing is known of the versions at the URL.
    """

    def __init__(self, folder: Path, weights_dir: Path | str | None = None) -> None:
        self._downloads: Follower | None = None
        if isinstance(weights_dir, str):
            url, weights_dir = weights_dir, weights_cache(weights_dir)
            self._downloads = Follower(url, weights_dir)
        self._followed = weights_dir or folder
        self._initial = folder
        self._look()

    def _look(self) -> None:
        """Begin with the latest version, or with the model's own folder where there is none."""
        first = weights.latest(self._followed)
        # Before loading: what is published anew meanwhile must be found to differ.
        self._loaded = weights.identity(first)
        self.version = first.version if first else 0
        #: The folder that the weights came from.
        self.path = first.path if first else self._initial

    def close(self) -> None:
        """Download no more."""
        if self._downloads is not None:
            self._downloads.close()

    def versions(self) -> VersionsResponse:
        """The version that serves, and those in the folder that is followed."""
        return VersionsResponse(current=self.version, versions=kept_versions(self._followed))


class FollowedModel(FollowedFolder):
    """A model that follows a weights folder; until something is published there it is the initial one.

    A version that cannot be read leaves the old one serving; one at a URL is taken up once it is complete. Arguments
    and errors are those of `FollowedFolder`.
    """

    def __init__(self, folder: Path, weights_dir: Path | str | None = None, *, device: str = "cpu") -> None:
        super().__init__(folder, weights_dir)
        self._refused: tuple[int, ...] | None = None
        self.language_model = self._load(device)
        self._half_read = False
        #: For people: what is wrong with the latest version; empty where it serves.
        self.refusal = ""

    def _load(self, device: str) -> LanguageModel:
        """The newest version; one that is removed while it is read, as newer ones came, gives way to the newest."""
        while True:
            if is_adapter(self.path):
                raise FileNotFoundError(f"no model in {self.path}: {_NO_ADAPTERS}")
            try:
                return load(self.path, device=device)
            except Exception:
                tried = self._loaded
                self._look()
                if self._loaded == tried:
                    raise
                _log.info("the weights that were being read are gone", instead=self.version)

    @property
    def model(self) -> PreTrainedModel:
        """The module; the same object in every version."""
        return self.language_model.model

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the first version loaded."""
        return self.language_model.tokenizer

    def refresh(self) -> bool:
        """Take up the latest published version, if it is another one; call before each batch.

        Raises:
            NotReady: reading broke off half-way; the next call tries again.
        """
        taken_up = self._take_up()
        if self._half_read:
            raise NotReady("the weights are half read; they will be read again")
        return taken_up

    def _take_up(self) -> bool:
        try:
            latest = weights.latest(self._followed)
            identity = weights.identity(latest)
        except (ValueError, OSError) as error:
            self._warn("unknown", error)
            return False
        if latest is None or identity is None or identity == self._refused:
            return False
        if identity == self._loaded and not self._half_read:
            return False
        try:
            if is_adapter(latest.path):
                raise WeightsMismatch(_NO_ADAPTERS)
            read_weights(self.model, latest.path)
            if weights.identity(latest) not in (identity, None):
                raise HalfRead(f"{latest.path} was published anew meanwhile: some files may be the old ones")
        except HalfRead:
            self._half_read = True
            _log.exception("weights half read", version=latest.version)
            return False
        except (WeightsMismatch, SafetensorError, OSError) as error:
            self._warn(str(latest.version), error)
            if not isinstance(error, OSError):
                self._refused = identity  # damaged for good, whereas a file system may recover
            return False
        self.version, self._loaded, self._half_read = latest.version, identity, False
        self.path = latest.path
        self.refusal = ""
        _log.info("weights taken up", version=latest.version)
        return True

    def _warn(self, version: str, error: Exception) -> None:
        """Say it once: the next look is a fraction of a second away."""
        refusal = f"version {version} was refused: {type(error).__name__}: {error}"
        if refusal != self.refusal:
            _log.warning("weights refused", version=version, serving=self.version, error=str(error))
        self.refusal = refusal


class FollowerSettings(ScorerSettings):
    """What every scorer by followed weights is started with."""

    #: Hugging Face folder of the model that answers until something is published, or a weights folder to follow.
    model: Path
    #: Weights folder, or the URL of one, to follow from `model` on.
    weights_dir: WeightsLocation | None
    #: How long an item that asks for a newer version than is published waits before it is `unavailable`.
    version_wait_s: Annotated[float, Field(ge=0)] = 2.0
    #: Rows x length of one forward.
    max_tokens: Annotated[int, Field(ge=1)] = 16_384
    threads: Annotated[int, Field(ge=1)] = 1
    device: str = "cpu"
    #: Jinja text for chat prompts, where the tokenizer has none or another one.
    chat_template: str | None = None


SettingsT = TypeVar("SettingsT", bound=FollowerSettings)


class FollowingScorer(Scorer[SettingsT, OptionsT], Versioned):
    """A scorer by a model that follows published weights; all items of a request are scored by one version."""

    def __init__(self, settings: SettingsT) -> None:
        super().__init__(settings)
        self.batching = Batching(
            max_items=64, max_tokens=settings.max_tokens, concurrency=1, whole_requests=True
        )
        self.version_wait_s = settings.version_wait_s

    def open(self) -> None:
        """Load the newest version there is."""
        settings = self.settings
        set_threads(settings.threads)
        self._followed = FollowedModel(settings.model, settings.weights_dir, device=settings.device)

    def close(self) -> None:
        """Download no more."""
        self._followed.close()

    @property
    def model_version(self) -> int | None:
        """The version of the weights that answer now."""
        return self._followed.version

    def versions(self) -> VersionsResponse:
        """The version that answers now, and those in the folder that is followed."""
        return self._followed.versions()

    def device_memory(self) -> dict[str, int]:
        """Of the device that the model is on."""
        return device_memory(self.settings.device)
