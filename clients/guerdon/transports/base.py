"""What a transport does: carry one operation to a service and bring its answer back, or say why not."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Literal, Protocol, TypeVar

from guerdon.errors import Timeout
from guerdon.types import Message

M = TypeVar("M", bound=Message)

Operation = Literal["score", "generate", "update", "versions", "info"]
#: The operations whose items can be had as each finishes.
Streamed = Literal["score", "generate"]

#: The largest message either side accepts, in bytes.
MAX_MESSAGE_BYTES = 64 * 2**20


#: The header, and gRPC metadata, that names a request to the service, which then calls it so in its log.
REQUEST_ID = "x-request-id"


def new_request_id() -> str:
    """A name for one request."""
    return os.urandom(8).hex()


class Transport(Protocol):
    """One way to a service. Nothing is retried here.

    Every failure is an exception of `guerdon.errors`; an answer that cannot be read is an `InternalError`.
    """

    async def call(
        self,
        operation: Operation,
        request: Message | None,
        response: type[M],
        timeout_s: float,
        key: str | None = None,
    ) -> M:
        """The whole answer, of type `response`; `request` is None where the operation needs none.

        A queue that knows a score or generate request with the same `key` does not have it done again. The other
        doors keep nothing to know it by.
        """
        ...

    def stream(
        self, operation: Streamed, request: Message, item: type[M], timeout_s: float, key: str | None = None
    ) -> AsyncGenerator[M, None]:
        """The items of the answer, each of type `item`, as they come; the deadline is that of the last one."""
        ...

    async def aclose(self) -> None:
        """Release connections."""
        ...


class Deadline:
    """The end of one call, shared by all its waits."""

    def __init__(self, timeout_s: float, url: str, request_id: str | None = None) -> None:
        self._ends = asyncio.get_running_loop().time() + timeout_s
        self._request_id = request_id
        self._message = f"{url} did not answer within {timeout_s:.3g} s"

    @property
    def left_s(self) -> float:
        """Seconds that remain, never below 0."""
        return max(0.0, self._ends - asyncio.get_running_loop().time())

    @asynccontextmanager
    async def enforced(self) -> AsyncGenerator[None, None]:
        """Cut the block off when the deadline passes, with `Timeout`.

        A generator must not yield inside: its consumer may resume it in another task.
        """
        try:
            async with asyncio.timeout_at(self._ends):
                yield
        except TimeoutError as error:
            raise self.passed() from error

    def passed(self) -> Timeout:
        """The exception that says so."""
        return Timeout(self._message).of_request(self._request_id)
