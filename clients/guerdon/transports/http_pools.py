"""Connections for any number of requests at once.

httpcore looks at every request of a pool, and at every connection, whenever one begins or ends: a thousand at once in
one pool cost each several times what a few do. So a pool gets at most `_ROOM` requests, and further pools the rest.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

_ROOM = 16
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=_ROOM, keepalive_expiry=5.0)


@dataclass
class _Pool:
    client: httpx.AsyncClient
    requests: int = 0


class Pools:
    """HTTP clients that share their settings, which are those of `httpx.AsyncClient`."""

    def __init__(self, **settings: Any) -> None:
        # Certificates are read once for all.
        self._settings: dict[str, Any] = {"limits": _LIMITS, "verify": httpx.create_ssl_context(), **settings}
        self._pools = [self._opened()]

    @property
    def first(self) -> httpx.AsyncClient:
        """The one that is always there, to build requests with."""
        return self._pools[0].client

    @contextmanager
    def room(self) -> Generator[httpx.AsyncClient]:
        """A client that has room for a request, which lasts as long as the block."""
        pool = next((pool for pool in self._pools if pool.requests < _ROOM), None)
        if pool is None:
            pool = self._opened()
            self._pools.append(pool)
        pool.requests += 1
        try:
            yield pool.client
        finally:
            pool.requests -= 1

    async def aclose(self) -> None:
        """Close all connections."""
        for pool in self._pools:
            await pool.client.aclose()

    def _opened(self) -> _Pool:
        return _Pool(httpx.AsyncClient(**self._settings))
