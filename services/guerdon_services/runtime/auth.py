"""The bearer token: who may use a service that listens beyond loopback."""

import hmac

from guerdon.errors import Unauthorized


class TokenGuard:
    """Compares bearer tokens in constant time; without a token of its own it lets everyone in."""

    def __init__(self, token: str | None) -> None:
        self._expected = None if token is None else token.encode()

    def check(self, authorization: str | None) -> None:
        """Let the bearer of an `Authorization` value pass.

        Raises:
            Unauthorized: it is absent, of another scheme, or its token is wrong. The message holds no secret.
        """
        if self._expected is None:
            return
        if authorization is None:
            raise Unauthorized("this service wants a bearer token in the authorization header")
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthorized("the authorization header must have the form: Bearer TOKEN")
        if not hmac.compare_digest(token.strip().encode(), self._expected):
            raise Unauthorized("the bearer token is wrong")
