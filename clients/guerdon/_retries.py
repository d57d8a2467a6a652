"""When a call is worth another attempt."""

import math
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

import stamina

from guerdon.errors import InvalidRequest, Overloaded, ServiceFailure

T = TypeVar("T")

#: Longest pause between two attempts, in seconds, unless the service itself asks for a longer one.
MAX_PAUSE_S = 2.0
#: A longer time is this one: gRPC takes very long deadlines for ones that have passed.
MAX_TIMEOUT_S = 1e8


class Attempts(Generic[T]):
    """One call, tried again after a `ServiceFailure` while attempts and time remain.

    `attempt` gets the seconds that are left. It waits as long as an `Overloaded` service asks for, else twice
    as long each time, up to `MAX_PAUSE_S`.

    Raises:
        InvalidRequest: `timeout_s` is no number.
    """

    def __init__(
        self, attempt: Callable[[float], Coroutine[Any, Any, T]], timeout_s: float, retries: int
    ) -> None:
        if math.isnan(timeout_s):
            raise InvalidRequest("timeout_s: must be a number of seconds, not nan")
        timeout_s = max(0.0, min(timeout_s, MAX_TIMEOUT_S))
        self._attempt = attempt
        self._timeout_s = timeout_s
        self._retries = retries
        self._previous: ServiceFailure | None = None
        self._ends = time.monotonic() + timeout_s
        # Short deadlines get short pauses, or they would never see a second attempt.
        self._max_pause_s = min(MAX_PAUSE_S, timeout_s / 10)

    async def run(self) -> T:
        """The result of the first attempt that succeeds; the last attempt's exception if none does."""
        try:
            return await self._once()
        except ServiceFailure as error:
            return await self._again(error)

    async def _again(self, first: ServiceFailure) -> T:
        """As `run`, after a first attempt: most calls never get here, which is where the time would go."""
        failed = [first]
        retries = stamina.retry_context(
            on=self._worth_another,
            attempts=self._retries + 1,
            timeout=self._timeout_s or None,  # with 0 it warns; no time is no second attempt anyway
            wait_initial=self._max_pause_s / 20,
            wait_max=self._max_pause_s,
            wait_jitter=self._max_pause_s / 20,
        )
        async for retry in retries:
            with retry:
                if failed:
                    raise failed.pop()
                return await self._once()
        raise AssertionError("stamina ends with a result or an exception")

    async def _once(self) -> T:
        try:
            return await self._attempt(max(0.0, self._ends - time.monotonic()))
        except ServiceFailure as error:
            # The last attempt often just runs out of time; what failed before it says more.
            if self._previous is not None:
                error.add_note(f"the attempt before: {type(self._previous).__name__}: {self._previous}")
            self._previous = error
            raise

    def _worth_another(self, error: Exception) -> bool | float:
        """Whether to try again, or after how many seconds."""
        if not isinstance(error, ServiceFailure):
            return False
        left_s = self._ends - time.monotonic()
        if isinstance(error, Overloaded):
            return error.retry_after_s if error.retry_after_s < left_s else False
        return left_s > self._max_pause_s
