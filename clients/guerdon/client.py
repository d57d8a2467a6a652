"""The client over HTTP, gRPC or a Redis queue, whichever the URL says; it behaves the same on each.

What concerns one item is the `status` of its result; what concerns the whole request is an exception of
`guerdon.errors`. `guerdon.blocking` has the same for code that does not await.
"""

import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

from guerdon import tracing
from guerdon._answers import built, check_answers, check_id
from guerdon._retries import Attempts
from guerdon._urls import without_credentials
from guerdon.errors import InternalError
from guerdon.transports import Operation, Streamed, open_transport
from guerdon.types import (
    GenerateRequest,
    GenerateResponse,
    GenerateResult,
    GenerateSample,
    IndexedGeneration,
    IndexedResult,
    Message,
    Options,
    Result,
    RolloutPiece,
    Sample,
    Sampling,
    ScoreRequest,
    ScoreResponse,
    ServiceInfo,
    UpdateRequest,
    UpdateResponse,
    VersionsRequest,
    VersionsResponse,
)

M = TypeVar("M", bound=Message)
T = TypeVar("T")
ItemT = TypeVar("ItemT", IndexedResult, IndexedGeneration)

#: Missing items that an error message lists.
_LISTED = 10


class AsyncClient:
    """A service, reached over HTTP (`http://`, `https://`), gRPC (`grpc://`, `grpcs://`) or Redis (`redis://`).

    A queue also needs `service`, the name under which its workers take work. `token` is the bearer token of a
    service that asks for one. `timeout_s` bounds every call as a whole, retries included. A call whose service
    failed (`ServiceFailure`) is tried up to `retries` times more, as long as time remains; every operation may
    be repeated, an update because the service applies each `request_id` once. To wait out a restart of the
    service, give many `retries` and let `timeout_s` end them.

    TLS trusts the usual public authorities; name others in SSL_CERT_FILE (https) or
    GRPC_DEFAULT_SSL_ROOTS_FILE_PATH (grpcs).

    Runs on asyncio. Connects on first use; close it, or use it in `async with`.

    Raises:
        InvalidRequest: the URL cannot be used.
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
        self._transport = open_transport(url, service=service, token=token)
        self._shown = without_credentials(url)
        self._timeout_s = timeout_s
        self._retries = retries

    @property
    def client_id(self) -> str | None:
        """The queue's name for this client, by which `guerdon.queue.withdraw` knows it; None at the other doors."""
        return getattr(self._transport, "client_id", None)

    async def score(
        self,
        samples: Sequence[Sample],
        *,
        options: Options | None = None,
        min_version: int | None = None,
        timeout_s: float | None = None,
        key: str | None = None,
    ) -> list[Result]:
        """One result per sample, in the order of the samples.

        With a `key`, a process that was restarted finds over the queue what an earlier one has asked for under the
        same key: the same samples, in the same order, within ten minutes, are not scored again. Never use a key for
        a second opinion. The other doors score again.

        Raises:
            GuerdonError: there is no answer to the request as a whole.
        """
        request = built(ScoreRequest, samples=list(samples), options=options, min_version=min_version)
        response = await self._call("score", request, ScoreResponse, timeout_s, key)
        check_answers(samples, response.results)
        return response.results

    async def score_stream(
        self,
        samples: Sequence[Sample],
        *,
        options: Options | None = None,
        min_version: int | None = None,
        timeout_s: float | None = None,
        key: str | None = None,
    ) -> AsyncGenerator[tuple[int, Result], None]:
        """Each sample's number and result as soon as it is there, in any order.

        An attempt that fails before its first result is repeated as in `score`. When the stream breaks later,
        the results that came have been yielded, and the error is raised: those samples have no result.

        Raises:
            GuerdonError: the stream could not begin, or broke.
        """
        request = built(ScoreRequest, samples=list(samples), options=options, min_version=min_version)
        async for index, item in self._stream("score", request, IndexedResult, samples, timeout_s, key):
            yield index, item.result

    async def generate(
        self,
        samples: Sequence[GenerateSample],
        sampling: Sampling,
        *,
        min_version: int | None = None,
        timeout_s: float | None = None,
        key: str | None = None,
    ) -> list[GenerateResult]:
        """The group of rollouts of each prompt, in the order of the prompts; raises as `score` does."""
        request = built(GenerateRequest, samples=list(samples), sampling=sampling, min_version=min_version)
        response = await self._call("generate", request, GenerateResponse, timeout_s, key)
        check_answers(samples, response.results)
        return response.results

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
    ) -> AsyncGenerator[tuple[int, GenerateResult], None]: ...

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
    ) -> AsyncGenerator[tuple[int, GenerateResult | RolloutPiece], None]: ...

    async def generate_stream(
        self,
        samples: Sequence[GenerateSample],
        sampling: Sampling,
        *,
        min_version: int | None = None,
        timeout_s: float | None = None,
        key: str | None = None,
        each_rollout: bool = False,
    ) -> AsyncGenerator[tuple[int, GenerateResult | RolloutPiece], None]:
        """Each prompt's number and group as soon as it is there; breaks off as `score_stream` does.

        With `each_rollout`, HTTP and gRPC also give each rollout of a group as it finishes, ahead of the group.
        Such a piece is provisional: use what is made of it only if the group's result, which has the same
        rollouts, is ok. All were begun by one version.
        """
        request = built(
            GenerateRequest,
            samples=list(samples),
            sampling=sampling,
            min_version=min_version,
            each_rollout=each_rollout or None,
        )
        async for index, item in self._stream(
            "generate", request, IndexedGeneration, samples, timeout_s, key
        ):
            answer = item.result if item.piece is None else item.piece
            assert answer is not None
            yield index, answer

    async def update(self, request: UpdateRequest, *, timeout_s: float | None = None) -> UpdateResponse:
        """Have the service learn from outcomes; raises as `score` does."""
        response = await self._call("update", request, UpdateResponse, timeout_s)
        if response.request_id != request.request_id:
            raise InternalError(f"update {request.request_id!r} was answered as {response.request_id!r}")
        if response.results:
            check_answers(request.samples, response.results)
        return response

    async def versions(self) -> VersionsResponse:
        """The versions of the service's weights; raises as `score` does."""
        return await self._call("versions", None, VersionsResponse, None)

    async def wait_for_version(self, version: int, *, timeout_s: float | None = None) -> VersionsResponse:
        """The versions of the service's weights, once it serves `version` or a newer one.

        Raises:
            Timeout: it did not in `timeout_s` seconds, the client's own where absent.
            GuerdonError: as `score`.
        """

        async def attempt(left_s: float) -> VersionsResponse:
            # The service gives up a little earlier, so that its own words arrive: which version it is at.
            least_s = left_s - min(1.0, left_s / 4)
            request = built(VersionsRequest, wait_for=version, timeout_s=least_s)
            return await self._transport.call("versions", request, VersionsResponse, left_s)

        response = await self._attempts(attempt, timeout_s).run()
        if response.current < version:
            raise InternalError(f"asked for version {version}, the service answered with {response.current}")
        return response

    async def info(self) -> ServiceInfo:
        """What the service is and what it accepts; raises as `score` does."""
        return await self._call("info", None, ServiceInfo, None)

    async def ping(self) -> float:
        """Seconds that one round trip to the service takes. Never retried; raises as `score` does."""
        begun = time.perf_counter()
        await self._transport.call("info", None, ServiceInfo, self._timeout_s)
        return time.perf_counter() - begun

    async def aclose(self) -> None:
        """Release connections; a queue withdraws what no worker has begun."""
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _call(
        self,
        operation: Operation,
        request: Message | None,
        response: type[M],
        timeout_s: float | None,
        key: str | None = None,
    ) -> M:
        async def attempt(left_s: float) -> M:
            return await self._transport.call(operation, request, response, left_s, key)

        items = len(getattr(request, "samples", ()))
        with tracing.call_span(operation, self._shown, items) as span, tracing.current(span):
            return await self._attempts(attempt, timeout_s).run()

    async def _stream(
        self,
        operation: Streamed,
        request: Message,
        kind: type[ItemT],
        samples: Sequence[Sample | GenerateSample],
        timeout_s: float | None,
        key: str | None,
    ) -> AsyncGenerator[tuple[int, ItemT], None]:
        async def attempt(left_s: float) -> tuple[AsyncGenerator[ItemT, None], ItemT | None]:
            stream = self._transport.stream(operation, request, kind, left_s, key)
            return stream, await anext(stream, None)

        attempts, missing = self._attempts(attempt, timeout_s), set(range(len(samples)))
        with tracing.call_span(operation, self._shown, len(samples)) as span:
            with tracing.current(span):
                stream, item = await attempts.run()
            try:
                while item is not None:
                    if item.index not in missing:
                        raise InternalError(
                            f"the service answered sample {item.index}, which was not awaited"
                        )
                    if item.result is not None:
                        missing.remove(item.index)
                        check_id(item.index, samples[item.index], item.result)
                    yield item.index, item
                    item = await anext(stream, None)
            finally:
                await stream.aclose()
            if missing:
                listed = ", ".join(str(index) for index in sorted(missing)[:_LISTED])
                raise InternalError(f"the stream ended without {len(missing)} results (samples {listed} ...)")

    def _attempts(
        self, attempt: Callable[[float], Coroutine[Any, Any, T]], timeout_s: float | None
    ) -> Attempts[T]:
        return Attempts(attempt, self._timeout_s if timeout_s is None else timeout_s, self._retries)
