"""What a service author writes: one class. The runtime turns it into a process.

A scorer subclasses `Scorer` and implements `score`. A service that samples responses subclasses `Generator`;
one that also learns online subclasses `Learner`. Their methods are synchronous and run in threads of the
runtime, never on its event loop. One call gets at most `batching.max_items` jobs, maybe of several requests.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from guerdon.types import (
    GenerateResult,
    GenerateSample,
    Result,
    Sample,
    Sampling,
    UpdateRequest,
    UpdateResponse,
    VersionsResponse,
)
from guerdon_services.runtime.listening import Listener

if TYPE_CHECKING:
    from fastapi import APIRouter
    from prometheus_client.registry import Collector

    from guerdon_services.runtime.dispatch import Dispatcher


#: The version that the services of this distribution report with their results.
RELEASE = version("guerdon-services")


class Unscorable(Exception):
    """The sample itself is at fault; becomes status `invalid_input`. The message names the field."""


class NotReady(Exception):
    """The service cannot answer at the moment; becomes status `unavailable`."""


class ScorerSettings(BaseModel):
    """Base of a service's start-up settings (`guerdon serve NAME key=value`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ScorerOptions(BaseModel):
    """Base of a service's per-request options; /v1/info publishes the JSON Schema."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


SettingsT = TypeVar("SettingsT", bound=ScorerSettings)
OptionsT = TypeVar("OptionsT", bound=ScorerOptions)


class OutOfMemory(NotReady):
    """Memory is too short for one of the items; each of them is tried alone."""


@dataclass(frozen=True)
class Batching:
    """How the micro-batcher groups items: until `max_items` or `max_tokens`, or after `max_wait_ms`."""

    max_items: int = 64
    max_tokens: int = 16_384
    max_wait_ms: float = 2.0
    #: Batches that run at the same time, each in its own thread: 1 for a model, one per worker for verifiers.
    concurrency: int = 1
    #: Split a request only where it must be: when it alone is larger than a batch. Needs concurrency 1, and
    #: keeps the version of the weights the same throughout each request (`Versioned`).
    whole_requests: bool = False


@dataclass(frozen=True)
class ScoreJob(Generic[OptionsT]):
    """One sample with the options of the request it came in."""

    sample: Sample
    options: OptionsT
    min_version: int | None = None


@dataclass(frozen=True)
class GenerateJob:
    """One prompt with the sampling parameters of the request it came in.

    `listener` hears of the group while it is sampled, where somebody wants to; a service need not tell it anything.
    """

    sample: GenerateSample
    sampling: Sampling
    min_version: int | None = None
    listener: Listener | None = None


class Service(ABC, Generic[SettingsT]):
    """What every service has: a name, a version, settings, a life."""

    name: ClassVar[str]
    version: ClassVar[str]
    settings_type: ClassVar[type[ScorerSettings]] = ScorerSettings

    def __init__(self, settings: SettingsT) -> None:
        self.settings = settings
        self.batching = Batching()
        #: Seconds that an item whose `min_version` is still to come waits in line, holding up nobody, before
        #: the service's `unavailable` is its answer. The service is asked again and again meanwhile.
        self.version_wait_s = 0.0

    def open(self) -> None:
        """Load models and start workers; runs in a thread before the service reports ready."""

    def close(self) -> None:
        """Release what `open` took; runs after the last batch."""

    @property
    def model_version(self) -> int | None:
        """The version of the weights that answer now; None for services without a model."""
        return None

    def details(self) -> dict[str, str]:
        """What /v1/info should say beyond the obvious (model path, isolation profile ...)."""
        return {}

    def device_memory(self) -> dict[str, int]:
        """Bytes of the accelerator's memory by state (allocated, reserved, free); called at any time."""
        return {}

    def collectors(self) -> "Sequence[Collector]":
        """Prometheus metrics of the service's own, read at any time."""
        return ()

    def routes(self, dispatch: "Dispatcher") -> "APIRouter | None":
        """HTTP routes of the service's own; their work goes through `dispatch` like everybody's.

        Called once, before `open`. The runtime adds bearer token, body limit and problem documents.
        """
        return None


class Scorer(Service[SettingsT], Generic[SettingsT, OptionsT]):
    """Scores samples: the common case."""

    options_type: ClassVar[type[ScorerOptions]] = ScorerOptions
    #: Whether a sample's result depends on the sample and the options alone. Of the same samples in one request one is
    #: then scored, and the others, whatever their ids, have its result: a failure too, which may be retried.
    deterministic: ClassVar[bool] = False

    @abstractmethod
    def score(self, batch: Sequence[ScoreJob[OptionsT]]) -> list[Result]:
        """One result per job, in order.

        The runtime stamps id, scorer, versions and times. A sample at fault gets a result of its own
        (`guerdon.types.failed`): its neighbours are unharmed. After an exception the runtime tries the
        items of the batch one by one.
        """

    def tokens(self, job: ScoreJob[OptionsT]) -> int:
        """What the job counts against `Batching.max_tokens`; 0 where tokens do not matter.

        Runs in another thread while `score` may run: keep it to arithmetic.
        """
        return 0


class Generator(Service[SettingsT]):
    """Samples responses."""

    @abstractmethod
    def generate(self, batch: Sequence[GenerateJob]) -> list[GenerateResult]:
        """One result per job, in order; the same rules as `Scorer.score`."""


class Versioned(ABC):
    """What a service whose weights change is as well: it follows published versions, or it is their learner."""

    @property
    @abstractmethod
    def model_version(self) -> int | None:
        """The version of the weights that answer now."""

    @abstractmethod
    def versions(self) -> VersionsResponse:
        """The current version and those that can still be read; runs in another thread while batches run."""

    def refresh(self) -> None:  # noqa: B027  (a learner may have nothing to take up)
        """Take up newer weights, if there are any.

        Runs where batches run, never beside one: before each batch that continues no request, and now and then
        while there is no work.
        """


class Learner(Scorer[SettingsT, OptionsT], Versioned):
    """Scores samples and learns online. `update` and `score` never run at the same time."""

    @abstractmethod
    def update(self, request: UpdateRequest) -> UpdateResponse:
        """Apply one update. Applied once per `request.request_id`, however often it is called."""


AnyScorer = Scorer[Any, Any]
AnyService = Service[Any]
