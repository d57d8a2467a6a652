"""How one process is reached and what it lets in."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from guerdon.transports import token_flaw


@dataclass(frozen=True)
class Address:
    """Where a door listens; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_address(text: str) -> Address:
    """`HOST:PORT`, `[IPV6]:PORT` or `:PORT` (loopback) as an address.

    Raises:
        ValueError: it is none of these.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"an address looks like 127.0.0.1:8101, not {text!r}")
    return Address(host, int(port))


class RuntimeSettings(BaseModel):
    """Doors, limits and manners of one process; the service has settings of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    http: Address | None = None
    grpc: Address | None = None
    queue: str | None = None
    queue_name: str | None = None
    token: SecretStr | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    max_pending: Annotated[int, Field(ge=1)] = 16_384
    max_request_items: Annotated[int, Field(ge=1)] = 10_000
    max_body_bytes: Annotated[int, Field(ge=1, lt=2**31)] = 32 * 1024 * 1024
    #: Seconds that a client may take to send a request's head; and a body, plus one for every kilobyte of it.
    client_patience_s: Annotated[float, Field(gt=0)] = 30.0
    #: Seconds that in-flight work gets after SIGTERM.
    drain_s: Annotated[float, Field(ge=0)] = 30.0
    #: Seconds that new work is still taken after readiness flipped, for load balancers to notice.
    drain_delay_s: Annotated[float, Field(ge=0)] = 0.0
    #: Seconds that a queue entry stays ours without a sign of life; what is handed back counts as a day old.
    lease_s: Annotated[float, Field(ge=0.1, lt=86_400)] = 30.0
    max_deliveries: Annotated[int, Field(ge=1)] = 5
    #: Seconds without a sign of life after which a batch, or the event loop, counts as stuck; 0 means never.
    stuck_after_s: Annotated[float, Field(ge=0, le=1e8)] = 900.0
    exit_when_stuck: bool = False
    #: Seconds of execution after which the items of a batch are logged as slow; 0 means never.
    slow_s: Annotated[float, Field(ge=0)] = 30.0
    ready_file: Path | None = None
    log_format: Literal["auto", "json", "console"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if not (self.http or self.grpc or self.queue):
            raise ValueError("a service needs at least one door: http, grpc or queue")
        if self.max_request_items > self.max_pending:
            raise ValueError(
                "max_request_items must not exceed max_pending: no such request could be admitted"
            )
        if self.queue is not None and (flaw := _queue_flaw(self.queue)):
            raise ValueError(f"queue: {flaw}; expected something like redis://127.0.0.1:6379/0")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together")
        if self.token is not None and (flaw := token_flaw(self.token.get_secret_value())):
            raise ValueError(f"the token {flaw}")
        for door in (self.http, self.grpc):
            if door is not None and not door.is_loopback and self.token is None:
                raise ValueError(
                    f"{door} is reachable from other machines: set GUERDON_TOKEN or --token-file, or bind to 127.0.0.1"
                )
        return self


def _queue_flaw(url: str) -> str | None:
    """Why the URL of a queue cannot be used, without quoting it: it may hold a password."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        return str(error)
    return None if parts.scheme in ("redis", "rediss", "unix") else f"the scheme {parts.scheme!r} is unknown"
