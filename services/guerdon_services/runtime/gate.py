"""ASGI middleware around every route, a service's own included: bearer token, size and speed of bodies."""

import asyncio
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from guerdon import errors
from guerdon_services.runtime import problem
from guerdon_services.runtime.auth import TokenGuard

#: What load balancers and orchestrators ask without a token.
OPEN_PATHS = frozenset({"/healthz", "/readyz"})
#: A body may take `body_s` seconds, and a second more for so many bytes that came.
BODY_BYTES_PER_S = 1000


class Gate:
    """Lets a request pass when its token is right, and its body neither too large nor too slow.

    The size counts while the body is read: a missing or false content-length makes no difference. `refused(path,
    outcome)` is called for each request that does not get past the gate.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        guard: TokenGuard,
        max_body_bytes: int,
        refused: Callable[[str, str], None],
        body_s: float,
    ) -> None:
        self._app = app
        self._guard = guard
        self._limit = max_body_bytes
        self._refused = refused
        self._body_s = body_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            if scope["path"] not in OPEN_PATHS:
                self._guard.check(headers.get("authorization"))
            declared = headers.get("content-length", "0")
            if not declared.isascii() or not declared.isdigit() or int(declared) > self._limit:
                raise self._too_large()
        except errors.GuerdonError as error:
            self._refused(scope["path"], problem.outcome(error))
            await problem.problem_response(error)(scope, receive, send)
            return
        await self._app(scope, self._limited(receive), send)

    def _limited(self, receive: Receive) -> Receive:
        read, ends, whole = 0, asyncio.get_running_loop().time() + self._body_s, False

        async def limited() -> Message:
            nonlocal read, whole
            try:
                # Once the body is there, what is waited for is the client's leaving.
                async with asyncio.timeout_at(None if whole else ends + read / BODY_BYTES_PER_S):
                    message = await receive()
            except TimeoutError as error:
                raise problem.SlowBody(f"body: only {read} bytes came in time") from error
            if message["type"] == "http.request":
                read += len(message.get("body", b""))
                whole = not message.get("more_body", False)
                if read > self._limit:
                    raise self._too_large()
            return message

        return limited

    def _too_large(self) -> errors.TooLarge:
        return errors.TooLarge(f"body: larger than max ({self._limit} bytes)")
