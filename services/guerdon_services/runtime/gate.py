"""ASGI middleware around every route, a service's own included: bearer token and body limit."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from guerdon import errors
from guerdon_services.runtime.auth import TokenGuard
from guerdon_services.runtime.problem import problem_response

#: What load balancers and orchestrators ask without a token.
OPEN_PATHS = frozenset({"/healthz", "/readyz"})


class Gate:
    """Lets a request pass when its token is right and its body is not too large.

    The size counts while the body is read: a missing or false content-length makes no difference.
    """

    def __init__(self, app: ASGIApp, *, guard: TokenGuard, max_body_bytes: int) -> None:
        self._app = app
        self._guard = guard
        self._limit = max_body_bytes

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
            await problem_response(error)(scope, receive, send)
            return
        await self._app(scope, self._counting(receive), send)

    def _counting(self, receive: Receive) -> Receive:
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            if message["type"] == "http.request":
                read += len(message.get("body", b""))
                if read > self._limit:
                    raise self._too_large()
            return message

        return counted

    def _too_large(self) -> errors.TooLarge:
        return errors.TooLarge(f"body: larger than max ({self._limit} bytes)")
