"""The client for code that does not await: it drives an `AsyncClient` on a background event loop."""

import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Literal, Self, TypeVar, overload

from anyio.from_thread import start_blocking_portal

from guerdon.client import AsyncClient
from guerdon.types import (
    GenerateResult,
    GenerateSample,
    Options,
    Result,
    RolloutPiece,
    Sample,
    Sampling,
    ServiceInfo,
    UpdateRequest,
    UpdateResponse,
    VersionsResponse,
)

T = TypeVar("T")


class Client:
    """`AsyncClient` for code that does not await: the same names and arguments, each blocking until done.

    May be used by several threads at once; their calls run side by side. Make it after any fork, for its event
    loop lives in a thread. Close it, or use it in `with`.
    """

    def __init__(
        self,
        url: str,
        *,
        service: str | None = None,
        token: str | None = None,
        timeout_s: float = 60.0,
        retries: int = 3,
    ) -> None:
        self._client = AsyncClient(url, service=service, token=token, timeout_s=timeout_s, retries=retries)
        release = ExitStack()
        self._portal = release.enter_context(start_blocking_portal("asyncio"))
        release.callback(self._portal.call, self._client.aclose)
        # Also runs when nobody closes this client, which would otherwise keep the interpreter from ending.
        self._release = weakref.finalize(self, release.close)

    def score(
        self,
        samples: Sequence[Sample],
        *,
        options: Options | None = None,
        min_version: int | None = None,
        timeout_s: float | None = None,
        key: str | None = None,
    ) -> list[Result]:
        """See `AsyncClient.score`."""
        return self._wait(
            lambda: self._client.score(
                samples, options=options, min_version=min_version, timeout_s=timeout_s, key=key
            )
        )

    def score_stream(
        self,
        samples: Sequence[Sample],
        *,
        options: Options | None = None,
        min_version: int | None = None,
        timeout_s: float | None = None,
        key: str | None = None,
    ) -> Generator[tuple[int, Result], None, None]:
        """See `AsyncClient.score_stream`; leaving the loop early cancels what has not come."""
        stream = self._client.score_stream(
            samples, options=options, min_version=min_version, timeout_s=timeout_s, key=key
        )
        return self._iterate(stream)

    def generate(
        self,
        samples: Sequence[GenerateSample],
        sampling: Sampling,
        *,
        min_version: int | None = None,
        timeout_s: float | None = None,
        key: str | None = None,
    ) -> list[GenerateResult]:
        """See `AsyncClient.generate`."""
        return self._wait(
            lambda: self._client.generate(
                samples, sampling, min_version=min_version, timeout_s=timeout_s, key=key
            )
        )

    @overload
    def generate_stream(
        self,
        samples: Sequence[GenerateSample],
        sampling: Sampling,
        *,
        min_version: int | None = None,
        timeout_s: float | None = None,
        key: str | None = None,
        each_rollout: Literal[False] = False,
    ) -> Generator[tuple[int, GenerateResult], None, None]: ...

    @overload
    def generate_stream(
        self,
        samples: Sequence[GenerateSample],
        sampling: Sampling,
        *,
        min_version: int | None = None,
        timeout_s: float | None = None,
        key: str | None = None,
        each_rollout: bool,
    ) -> Generator[tuple[int, GenerateResult | RolloutPiece], None, None]: ...

    def generate_stream(
        self,
        samples: Sequence[GenerateSample],
        sampling: Sampling,
        *,
        min_version: int | None = None,
        timeout_s: float | None = None,
        key: str | None = None,
        each_rollout: bool = False,
    ) -> Generator[tuple[int, GenerateResult | RolloutPiece], None, None]:
        """See `AsyncClient.generate_stream`."""
        stream = self._client.generate_stream(
            samples,
            sampling,
            min_version=min_version,
            timeout_s=timeout_s,
            key=key,
            each_rollout=each_rollout,
        )
        return self._iterate(stream)

    def update(self, request: UpdateRequest, *, timeout_s: float | None = None) -> UpdateResponse:
        """See `AsyncClient.update`."""
        return self._wait(lambda: self._client.update(request, timeout_s=timeout_s))

    def versions(self) -> VersionsResponse:
        """See `AsyncClient.versions`."""
        return self._wait(self._client.versions)

    def wait_for_version(self, version: int, *, timeout_s: float | None = None) -> VersionsResponse:
        """See `AsyncClient.wait_for_version`."""
        return self._wait(lambda: self._client.wait_for_version(version, timeout_s=timeout_s))

    def info(self) -> ServiceInfo:
        """See `AsyncClient.info`."""
        return self._wait(self._client.info)

    def ping(self) -> float:
        """See `AsyncClient.ping`."""
        return self._wait(self._client.ping)

    def close(self) -> None:
        """Release connections and end the background thread."""
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _iterate(self, stream: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        while (item := self._wait(lambda: anext(stream, None))) is not None:
            try:
                yield item
            except BaseException:
                # Left early; a client that was closed has ended the stream already.
                if self._release.alive:
                    self._wait(stream.aclose)
                raise

    def _wait(self, begin: Callable[[], Awaitable[T]]) -> T:
        """Run a call to its end; whatever interrupts the waiting (Ctrl-C) cancels the call."""
        future = self._portal.start_task_soon(begin)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise
