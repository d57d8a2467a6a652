"""One HTTP connection: uvicorn's, with an end to patience and to the size of what precedes a body.

uvicorn's parser keeps headers of any size, and waits for them for ever.
"""

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Literal

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from guerdon_services.runtime import problem

#: Bytes of a request line with its headers, or of trailers.
MAX_HEAD_BYTES = 64 * 1024
#: Bytes of a body that are read and dropped after its request was refused: enough for a client that writes all before
#: it reads the answer.
_DROPPED_BYTES = 256 * 1024 * 1024

#: What uvicorn says about clients' mistakes: anybody who reaches the port could fill a disk with it.
_ABOUT_CLIENTS = (
    "Invalid HTTP request received.",
    "Unsupported upgrade request.",
    "No supported WebSocket library detected.",
)


def quiet(record: logging.LogRecord) -> bool:
    """A filter for uvicorn's log: drops what counts in `guerdon_requests_total` already."""
    return not str(record.msg).startswith(_ABOUT_CLIENTS)


class Connection(HttpToolsProtocol):
    """As uvicorn's, but a head, or the first byte of a new connection, has `head_s` seconds to come.

    `refused(outcome)` is called for every request that ends before it has begun.
    """

    def __init__(self, *, refused: Callable[[str], None], head_s: float, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._refused = refused
        self._head_s = head_s
        self._head_bytes = 0
        self._dropped_bytes = 0
        self._state: Literal["idle", "head", "body"] = "idle"
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Wait for the first request."""
        super().connection_made(transport)
        self._expect_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what comes until it turns out to be the end of a head, or a piece of a body."""
        if self.transport.is_closing():
            return
        if self._state == "idle":
            self._state = "head"
            self._expect_soon()
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"larger than max ({MAX_HEAD_BYTES} bytes)"
            )

    def on_headers_complete(self) -> None:
        """The head is there; the body is the gate's concern."""
        self._arrived()
        self._state, self._head_bytes = "body", 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass a piece on, or drop it when its request is answered already."""
        self._head_bytes = 0
        if self.cycle.response_complete:
            self._dropped_bytes += len(body)
            if self._dropped_bytes > _DROPPED_BYTES:
                self.transport.close()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The next bytes begin another request."""
        self._arrived()
        self._state, self._head_bytes, self._dropped_bytes = "idle", 0, 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """A body that nobody reads any more has to end soon."""
        super().on_response_complete()
        if self._state == "body" and not self.transport.is_closing():
            self._expect_soon()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP."""
        self._refuse(HTTPStatus.BAD_REQUEST, msg)

    def _expect_soon(self) -> None:
        self._arrived()
        self._timer = self.loop.call_later(self._head_s, self._too_late)

    def _arrived(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_late(self) -> None:
        if self._state == "head":
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"not complete after {self._head_s:g} s")
        else:
            self.transport.close()

    def _refuse(self, status: HTTPStatus, detail: str) -> None:
        if self.transport.is_closing():
            return
        self._refused(_OUTCOMES[status])
        # An answer on its way must not be written into.
        if self.cycle is None or self.cycle.response_complete:  # pyright: ignore[reportUnnecessaryComparison]
            self.transport.write(problem.raw_response(status, f"request: {detail}"))
        self.transport.close()


_OUTCOMES = {
    HTTPStatus.BAD_REQUEST: "malformed",
    HTTPStatus.REQUEST_TIMEOUT: "slow",
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "too_large",
}
