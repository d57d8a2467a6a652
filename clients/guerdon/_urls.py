"""URLs as they may be shown."""

from urllib.parse import urlsplit


def without_credentials(url: str) -> str:
    """The URL without user, password and query, which may hold secrets too."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
