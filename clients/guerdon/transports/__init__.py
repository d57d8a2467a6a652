"""HTTP, gRPC and a Redis queue: three ways to the same service, chosen by the scheme of a URL."""

from urllib.parse import urlsplit

from guerdon.errors import InvalidRequest
from guerdon.transports.base import Operation, Streamed, Transport

__all__ = ["Operation", "Streamed", "Transport", "open_transport", "token_flaw"]


def open_transport(url: str, *, service: str | None = None, token: str | None = None) -> Transport:
    """The transport for a URL; nothing is connected before the first call.

    Raises:
        InvalidRequest: the scheme is unknown, the host or the name of a queue is missing, or a token cannot be sent.
    """
    # Libraries quote what they cannot send.
    if token and (flaw := token_flaw(token)):
        raise InvalidRequest(f"token: {flaw}")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise InvalidRequest(f"url: {error}") from error
    if not parts.hostname and parts.scheme not in ("redis", "rediss"):
        raise InvalidRequest(f"url: {url!r} has no host; expected something like http://127.0.0.1:8101")
    # Each transport brings its own library: importing all three would make every command line slower.
    match parts.scheme:
        case "http" | "https":
            from guerdon.transports.http import HttpTransport

            return HttpTransport(url, token=token)
        case "grpc" | "grpcs":
            from guerdon.transports.grpc import GrpcTransport

            return GrpcTransport(parts.netloc, secure=parts.scheme == "grpcs", token=token)
        case "redis" | "rediss":
            if not service:
                raise InvalidRequest("service: a queue needs the name of the service, as in service='math'")
            from guerdon.transports.queue import QueueTransport

            return QueueTransport(url, service)
        case scheme:
            known = "http, https, grpc, grpcs, redis or rediss"
            raise InvalidRequest(f"url: scheme {scheme!r} is none of {known}")


def token_flaw(token: str) -> str | None:
    """Why a bearer token cannot be sent in a header, without quoting it; None when it can."""
    if not token:
        return "is empty"
    return None if all("!" <= one <= "~" for one in token) else "must be printable ASCII without spaces"
