"""The sides of the transport benchmark: each is both ends of one way to have texts scored."""

import importlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

#: Where the sides are defined.
_MODULES = ("transport_ours", "transport_bare", "transport_libraries")


@dataclass(frozen=True)
class Setting:
    """What both ends of a side need to know.

    `work_s` and `log` are those of the kill test: how long a text takes, and the file that says which were scored.
    """

    redis_url: str
    port: int
    concurrency: int = 64
    lease_s: float = 30.0
    work_s: float = 0.0
    log: str = ""

    def as_message(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


class Side(ABC):
    """One way. `serve` runs in the process of the worker; the rest in that of the client."""

    name: ClassVar[str]
    #: The file of `requirements` that it needs; None where the project's own packages are enough.
    packages: ClassVar[str | None] = None
    #: Whether work and results go through Redis.
    queued: ClassVar[bool] = False

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    @abstractmethod
    def serve(self) -> None:
        """Work until the process is ended."""

    @abstractmethod
    async def open(self) -> None:
        """Connect the client."""

    @abstractmethod
    async def call(self, texts: Sequence[str]) -> list[float]:
        """The value of each text, in one request where the side has such requests."""

    async def close(self) -> None:  # noqa: B027  (some have nothing to close)
        """Disconnect the client."""


def score(text: str, setting: Setting) -> float:
    """The work itself: none, or that of the kill test."""
    if setting.log:
        time.sleep(setting.work_s)
        note(text, setting)
    return 1.0


def note(text: str, setting: Setting) -> None:
    """Write down that a text was scored; its first word is its number."""
    log = os.open(setting.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, f"{text.partition(' ')[0]}\n".encode())
    os.close(log)


def text(number: int, length: int) -> str:
    """A text of its own of so many characters, as a model writes: words, lines, some LaTeX."""
    words = f"{number} so the sum is \\frac{{{number}}}{{4}} and, step by step,\nwe get x_{number % 7} = {number} "
    return (words * (length // len(words) + 1))[:length]


def sides() -> dict[str, type[Side]]:
    """Every side by its name. Their packages are imported when a side is made, not here."""
    found: dict[str, type[Side]] = {}
    for module in _MODULES:
        for value in vars(importlib.import_module(f"peers.{module}")).values():
            if isinstance(value, type) and issubclass(value, Side) and "name" in vars(value):
                found[value.name] = value
    return found
