"""A Redis queue: one entry per sample, so that every worker of the service may take a share of a batch."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, TypeVar, cast

from guerdon import codec, tracing
from guerdon.errors import GuerdonError, InternalError, InvalidRequest, Overloaded, error_of
from guerdon.queue import Producer, Reply
from guerdon.transports.base import Deadline, Operation, Streamed
from guerdon.types import (
    GenerateRequest,
    GenerateResult,
    Message,
    Result,
    ScoreRequest,
    Status,
)

M = TypeVar("M", bound=Message)

#: Submissions on their way to Redis at the same time.
_CONCURRENT_SUBMISSIONS = 32


class QueueTransport:
    """A service's queue.

    A batch is refused as a whole only while none of it is queued. After that every trouble of an item is the
    `status` of its result, and a batch that is larger than the queue's room goes in as room appears.
    """

    def __init__(self, url: str, service: str) -> None:
        self._producer = Producer(url, service)
        self._service = service
        self.client_id = self._producer.client_id

    async def call(
        self,
        operation: Operation,
        request: Message | None,
        response: type[M],
        timeout_s: float,
        key: str | None = None,
    ) -> M:
        """One entry, or one per sample; see `Transport.call`."""
        deadline = Deadline(timeout_s, f"the queue of {self._service}")
        if isinstance(request, ScoreRequest | GenerateRequest):
            results: list[Any] = [None] * len(request.samples)
            async for index, result in self._results(cast(Streamed, operation), request, deadline, key):
                results[index] = result
            return response.model_validate({"results": results})
        body = codec.encode(request) if request else b""
        trace = tracing.carrier().get("traceparent", "")
        reply = await (await self._producer.submit(operation, body, deadline_s=timeout_s, trace=trace))
        if reply.status is not Status.OK:
            raise error_of(reply.status, reply.reason).of_request(reply.request_id)
        try:
            return codec.decode(response, reply.body)
        except InvalidRequest as error:
            message = f"the answer is no {response.__name__}: {error}"
            raise InternalError(message).of_request(reply.request_id) from error

    async def stream(
        self, operation: Streamed, request: Message, item: type[M], timeout_s: float, key: str | None = None
    ) -> AsyncGenerator[M, None]:
        """The results in the order in which they come; see `Transport.stream`."""
        assert isinstance(request, ScoreRequest | GenerateRequest)
        if isinstance(request, GenerateRequest):
            # An entry has one answer, so that nothing comes ahead of it.
            request = request.model_copy(update={"each_rollout": None})
        deadline = Deadline(timeout_s, f"the queue of {self._service}")
        async with aclosing(self._results(operation, request, deadline, key)) as results:
            async for index, result in results:
                yield item.model_validate({"index": index, "result": result})

    async def aclose(self) -> None:
        """Withdraw what is not yet begun and disconnect."""
        await self._producer.close()

    async def _results(
        self,
        operation: Streamed,
        request: ScoreRequest | GenerateRequest,
        deadline: Deadline,
        key: str | None,
    ) -> AsyncGenerator[tuple[int, Result | GenerateResult], None]:
        if not request.samples:
            return
        apart = len(request.samples) > 1
        each = (
            [request.model_copy(update={"samples": [one]}) for one in request.samples] if apart else [request]
        )
        bodies = [codec.encode(one) for one in each]
        ids = [_request_id(key, operation, index, body) for index, body in enumerate(bodies)]
        # Read here: whoever asks for the next result may do so in another context.
        trace = tracing.carrier().get("traceparent", "")
        first = await self._producer.submit(
            operation, bodies[0], request_id=ids[0], deadline_s=deadline.left_s, trace=trace
        )
        kind = Result if isinstance(request, ScoreRequest) else GenerateResult
        slots = asyncio.Semaphore(_CONCURRENT_SUBMISSIONS)

        async def answer(index: int) -> tuple[int, Result | GenerateResult]:
            id = request.samples[index].id
            try:
                if index == 0:
                    return index, _result(kind, await first, id)
                future = await self._submit(operation, bodies[index], ids[index], deadline, slots, trace)
                return index, _result(kind, await future, id)
            except GuerdonError as error:
                return index, kind(id=id, status=error.status, reason=str(error))

        if not apart:
            # Whoever is cancelled here cancels `first` with it.
            yield await answer(0)
            return
        tasks = [asyncio.create_task(answer(index)) for index in range(len(bodies))]
        try:
            for task in asyncio.as_completed(tasks):
                yield await task
        finally:
            # Whatever is still queued is withdrawn when its future is cancelled.
            first.cancel()
            for task in tasks:
                task.cancel()

    async def _submit(
        self,
        operation: Streamed,
        body: bytes,
        request_id: str | None,
        deadline: Deadline,
        slots: asyncio.Semaphore,
        trace: str,
    ) -> asyncio.Future[Reply]:
        # The rest of this batch is already queued: its end waits for room, or for Redis, rather than undo that.
        while True:
            try:
                async with slots:
                    left_s = deadline.left_s
                    return await self._producer.submit(
                        operation,
                        body,
                        request_id=request_id,
                        deadline_s=left_s,
                        patience_s=left_s,
                        trace=trace,
                    )
            except Overloaded as error:
                if error.retry_after_s >= deadline.left_s:
                    raise
                await asyncio.sleep(error.retry_after_s)


def _request_id(key: str | None, operation: Streamed, index: int, body: bytes) -> str | None:
    """The name of one item of a batch. Its content is part of it: another sample must never get this one's reward."""
    if key is None:
        return None
    return f"{key}:{index}:{hashlib.sha256(operation.encode() + body).hexdigest()}"


def _result(
    kind: type[Result] | type[GenerateResult], reply: Reply, id: str | None
) -> Result | GenerateResult:
    if reply.status is not Status.OK:
        return kind(id=id, status=reply.status, reason=f"{reply.reason} (request {reply.request_id})")
    try:
        return codec.decode(kind, reply.body)
    except InvalidRequest as error:
        reason = f"the answer is no {kind.__name__}: {error} (request {reply.request_id})"
        return kind(id=id, status=Status.INTERNAL_ERROR, reason=reason)
