"""Guerdon's three doors, each behind the client that a trainer uses."""

from collections.abc import Sequence
from typing import Any, ClassVar

from peers.transport_sides import Setting, Side, score

#: The service's name, and that of its queue.
NAME = "noop"


def _scorer(setting: Setting) -> Any:
    from guerdon.types import Result, Status
    from guerdon_services.runtime.scorer import Batching, ScoreJob, Scorer, ScorerOptions, ScorerSettings

    class Noop(Scorer[ScorerSettings, ScorerOptions]):
        """Every response is worth 1; batches as large as the others', none of which waits for one to fill."""

        name = NAME
        version = "1"

        def __init__(self, settings: ScorerSettings) -> None:
            super().__init__(settings)
            self.batching = Batching(max_items=setting.concurrency, max_wait_ms=0)

        def score(self, batch: Sequence[ScoreJob[ScorerOptions]]) -> list[Result]:
            values = [score(job.sample.response or "", setting) for job in batch]
            return [Result(status=Status.OK, value=value) for value in values]

    return Noop(ScorerSettings())


class _Ours(Side):
    scheme: ClassVar[str]

    def serve(self) -> None:
        """The service with this one door."""
        from guerdon_services.runtime import launch

        options = {**self._door(), "lease_s": self.setting.lease_s, "log_level": "warning"}
        launch.run(_scorer(self.setting), launch.runtime_settings(options))

    async def open(self) -> None:
        """The asynchronous client."""
        from guerdon import AsyncClient, Sample

        self._sample = Sample
        service = NAME if self.queued else None
        self._client = AsyncClient(self._url(), service=service, timeout_s=300)

    async def call(self, texts: Sequence[str]) -> list[float]:
        """One request with all texts."""
        results = await self._client.score([self._sample(response=text) for text in texts])
        return [result.value or 0.0 for result in results]

    async def close(self) -> None:
        """Disconnect."""
        await self._client.aclose()

    def _door(self) -> dict[str, str]:
        return {self.scheme: f"127.0.0.1:{self.setting.port}"}

    def _url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.setting.port}"


class Queue(_Ours):
    """The queue."""

    name = "guerdon queue"
    queued = True

    def _door(self) -> dict[str, str]:
        return {"queue": self.setting.redis_url}

    def _url(self) -> str:
        return self.setting.redis_url


class Http(_Ours):
    """JSON over HTTP."""

    name = "guerdon http"
    scheme = "http"


class Grpc(_Ours):
    """protobuf over gRPC, unary."""

    name = "guerdon grpc"
    scheme = "grpc"
