"""One HTTP connection: uvicorn's, with an end to patience and to the size of what precedes a body.

uvicorn's parser keeps headers of any size, and waits for them for ever.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Literal

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from guerdon_services.runtime import problem

#: Bytes of a request line with its headers, or of trailers.
MAX_HEAD_BYTES = 64 * 1024
#: Bytes of a body that are read and dropped after its request was refused: enough for a client that writes all before
#: it reads the answer.
_DROPPED_BYTES = 256 * 1024 * 1024


class Connection(HttpToolsProtocol):
    """As uvicorn's, but a head, or the first byte of a new connection, has `head_s` seconds to come.

    `refused(outcome)` is called for every request that ends before it has begun. While `ending` is true, each answer
    is the last one of its connection.
    """

    def __init__(
        self,
        *,
        refused: Callable[[str], None],
        head_s: float,
        ending: Callable[[], bool] = lambda: False,
        **uvicorn: Any,
    ) -> None:
        super().__init__(**uvicorn)
        self._refused = refused
        self._ending = ending
        self._head_s = head_s
        self._head_bytes = 0
        self._dropped_bytes = 0
        #: Whether the parser is given a head again, without what it must not see.
        self._head_again = False
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
        self._feed(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"larger than max ({MAX_HEAD_BYTES} bytes)"
            )

    def _feed(self, data: bytes) -> None:
        # Without uvicorn's lines in the log: anybody who reaches the port could fill a disk with them.
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._go_on(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def _go_on(self, data: bytes) -> None:
        """Stay with HTTP/1.1 when a client offers another protocol, as some do at first (`Upgrade: h2c`).

        The parser has taken the head, and leaves what follows to the other protocol: it is the request's body.
        """
        framing = [
            b"%s: %s" % (name, value)
            for name, value in self.headers
            if name in (b"content-length", b"transfer-encoding")
        ]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._head_again = True
        self._feed(b"\r\n".join([b"POST / HTTP/1.1", *framing, b"", b""]))
        self._head_again = False
        self._feed(data)

    def on_message_begin(self) -> None:
        """A request, unless its head is known."""
        if not self._head_again:
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Part of a head."""
        if not self._head_again:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Part of a head."""
        if not self._head_again:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is there; the body is the gate's concern."""
        if self._head_again:
            return
        self._arrived()
        self._state, self._head_bytes = "body", 0
        super().on_headers_complete()
        if self._ending():
            self.cycle.keep_alive = False

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
        if self.parser.should_upgrade():
            return
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
