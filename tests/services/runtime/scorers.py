"""Services that do as the response says. Tests load them by the `scorers` fixture; scripts, as a sibling."""

import math
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel

from guerdon.types import (
    GenerateResult,
    ModelVersion,
    Result,
    Rollout,
    Sample,
    ScoreRequest,
    Status,
    UpdateRequest,
    UpdateResponse,
    VersionsResponse,
    failed,
)
from guerdon_services.runtime.dispatch import Dispatcher
from guerdon_services.runtime.scorer import (
    Batching,
    GenerateJob,
    Generator,
    Learner,
    NotReady,
    ScoreJob,
    Scorer,
    ScorerOptions,
    ScorerSettings,
    Unscorable,
)


class EchoSettings(ScorerSettings):
    """Batching, so that tests can choose it."""

    max_items: int = 8
    max_tokens: int = 16_384
    max_wait_ms: float = 1.0
    concurrency: int = 1
    label: str = ""
    open_s: float = 0.0


class EchoOptions(ScorerOptions):
    """A number, an integer and a choice."""

    scale: float = 1.0
    shift: int = 0
    mode: Literal["plain", "fancy"] = "plain"


class Echo(Scorer[EchoSettings, EchoOptions]):
    """The response is the value, or one of the words that `_one` knows."""

    name = "echo"
    version = "0.0.1"
    settings_type = EchoSettings
    options_type = EchoOptions

    def __init__(self, settings: EchoSettings) -> None:
        super().__init__(settings)
        self.batching = Batching(
            settings.max_items, settings.max_tokens, settings.max_wait_ms, settings.concurrency
        )
        self.batches: list[list[str]] = []
        self.gate = threading.Event()
        self.held = threading.Event()
        self.opened = self.closed = False

    def open(self) -> None:
        """Take as long as told."""
        time.sleep(self.settings.open_s)
        self.opened = True

    def close(self) -> None:
        """Remember it."""
        self.closed = True

    def score(self, batch: Sequence[ScoreJob[EchoOptions]]) -> list[Result]:
        """One result per job, unless a response says otherwise."""
        self.batches.append([job.sample.response or "" for job in batch])
        if any(job.sample.response == "short" for job in batch):
            return []
        return [self._one(job) for job in batch]

    def _one(self, job: ScoreJob[EchoOptions]) -> Result:
        word = job.sample.response or ""
        if word == "poison":
            raise RuntimeError("this sample is poison")
        if word == "unsayable":
            raise ValueError("not text: \udcff")
        if word == "unwritable":
            return Result(status=Status.OK, value=1.0, token_rewards=[1e39], token_ids=[1])
        if word == "copied":
            return Result(status=Status.OK, value=1.0).model_copy(update={"status": Status.TIMEOUT})
        if word == "constructed":
            return Result.model_construct(status=Status.OK, value=math.nan)
        if word == "typed":
            return Result.model_construct(status=Status.OK, value="7")
        if word == "statusless":
            return Result.model_construct(value=1.0)
        if word == "half":
            return Result(status=Status.OK, value=1.0, reason="half a pair: \ud800")
        if word == "mute":
            raise _MuteError
        if word == "exit":
            raise SystemExit(3)
        if word == "unscorable":
            raise Unscorable("response: cannot be scored")
        if word == "not_ready":
            raise NotReady("the weights are loading")
        if word == "bad":
            return failed(Status.INVALID_INPUT, "references: one is needed")
        if word == "hold":
            self.held.set()
            assert self.gate.wait(60)
            return Result(status=Status.OK, value=0.0)
        if word.startswith("sleep"):
            time.sleep(float(word.removeprefix("sleep")))
            return Result(status=Status.OK, value=0.0)
        value = float(word) * job.options.scale + job.options.shift
        return Result(status=Status.OK, value=value, reason=f"echo of {word}")


class _MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError("what this exception says cannot be said")


class Counting(Echo):
    """Counts the characters of a response as its tokens."""

    name = "counting"

    def tokens(self, job: ScoreJob[EchoOptions]) -> int:
        """The length of the response."""
        if job.sample.response is None:
            raise Unscorable("response: is needed")
        return len(job.sample.response)


class Miscounting(Echo):
    """Counts wrongly."""

    name = "miscounting"

    def tokens(self, job: ScoreJob[EchoOptions]) -> Any:
        """No number, or no answer."""
        match job.sample.response:
            case "none":
                return None
            case "half":
                return 0.5
            case "exit":
                sys.exit(3)
            case _:
                return 1


class Tally(Learner[EchoSettings, EchoOptions]):
    """Its weights are the number of updates it saw."""

    name = "tally"
    version = "0.0.2"
    settings_type = EchoSettings
    options_type = EchoOptions

    def __init__(self, settings: EchoSettings) -> None:
        super().__init__(settings)
        self.batching = Batching(settings.max_items, concurrency=4)
        self.count = 0
        self.running = 0
        self.most_running = 0

    @property
    def model_version(self) -> int | None:
        """How many updates there were."""
        return self.count

    def score(self, batch: Sequence[ScoreJob[EchoOptions]]) -> list[Result]:
        """The number of updates, as often as asked."""
        with self._alone():
            return [Result(status=Status.OK, value=float(self.count)) for _ in batch]

    def update(self, request: UpdateRequest) -> UpdateResponse:
        """Count one more."""
        with self._alone():
            if any(sample.outcome is None for sample in request.samples):
                raise Unscorable("samples: each needs an outcome")
            self.count += 1
            return UpdateResponse(
                request_id=request.request_id,
                status=Status.OK,
                results=[Result(status=Status.OK, value=1.0) for _ in request.samples],
                version_before=self.count - 1,
                version_after=self.count,
                metrics={"loss": 0.5},
            )

    def versions(self) -> VersionsResponse:
        """Only the current one; none before the first update."""
        if not self.count:
            raise NotReady("nothing was learned yet")
        return VersionsResponse(
            current=self.count, versions=[ModelVersion(version=self.count, path="/x", created_unix_s=1.0)]
        )

    def _alone(self) -> "_Alone":
        return _Alone(self)


class _Alone:
    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def __enter__(self) -> None:
        self._tally.running += 1
        self._tally.most_running = max(self._tally.most_running, self._tally.running)
        time.sleep(0.002)

    def __exit__(self, *_: object) -> None:
        self._tally.running -= 1


class Parrot(Generator[EchoSettings]):
    """Says the prompt again, `n` times."""

    name = "parrot"
    version = "0.0.3"
    settings_type = EchoSettings

    def generate(self, batch: Sequence[GenerateJob]) -> list[GenerateResult]:
        """One group per prompt."""
        return [self._one(job) for job in batch]

    def _one(self, job: GenerateJob) -> GenerateResult:
        if job.sample.prompt is None:
            raise Unscorable("prompt: is needed")
        said = Rollout(
            response=str(job.sample.prompt),
            token_ids=[1, 2],
            logprobs=[-0.5, -0.25],
            finish_reason="stop",
            model_version=7,
        )
        return GenerateResult(status=Status.OK, rollouts=[said] * job.sampling.n, prompt_token_ids=[5])


class Words(BaseModel):
    """The body of a route of the service's own."""

    words: list[str]


class Chatty(Echo):
    """Has a route of its own."""

    name = "chatty"

    def routes(self, dispatch: Dispatcher) -> APIRouter:
        """POST /words: the values of several words."""
        router = APIRouter()

        async def values(body: Words) -> list[float | None]:
            samples = [Sample(response=word) for word in body.words]
            results = await dispatch.score(ScoreRequest(samples=samples))
            return [result.value for result in results]

        router.add_api_route("/words", values, methods=["POST"])
        return router


class Broken(Echo):
    """Cannot open."""

    name = "broken"

    def open(self) -> None:
        """Fail, after as long as told."""
        super().open()
        match self.settings.label:
            case "exit":
                sys.exit("no such model")
            case "stop":
                next(iter(()))
            case _:
                raise FileNotFoundError("no such model")
