"""Processes with doors, and clients that are rude to them. Tests import this by name."""

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from tests.waiting import PATIENCE_S, until

HERE = Path(__file__).parent
#: Descriptors and threads of a service that may stay of any number of clients: gRPC keeps some for later.
KEPT = (16, 40)


class Service:
    """A service as a process of its own; `kept` and `grown_mb` compare it with how it was at `remember`."""

    def __init__(self, folder: Path, command: Sequence[str], env: dict[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.log = folder / "log"
        ready = folder / "ready.json"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env={**os.environ, **(env or {})},
            )
        until(lambda: ready.exists() or self.process.poll() is not None)
        assert ready.exists(), self.text
        addresses = json.loads(ready.read_text())
        self.http: str = addresses["http"] or ""
        self.grpc: str = addresses["grpc"] or ""
        self._as_it_was = psutil.Process(self.process.pid)
        self._before = (0, 0, 0)

    @property
    def text(self) -> str:
        """Its log."""
        return self.log.read_text(errors="replace")

    @property
    def executed(self) -> list[str]:
        """The ids of the samples that were finished."""
        path = self.folder / "executed"
        return path.read_text().split() if path.exists() else []

    def open_gate(self) -> None:
        """Let the samples "gate" go on."""
        (self.folder / "gate").touch()

    def wait_ready(self, verify: Any = True) -> None:
        """Return once it takes work."""
        until(lambda: self._get("/readyz", verify) == 200, said=lambda: self.text)

    def counter(self, name: str) -> float:
        """The sum over all labels that start as `name` does, from /metrics."""
        text = httpx.get(f"{self.http}/metrics", trust_env=False, timeout=60).text
        lines = [line for line in text.splitlines() if line.startswith(name)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def remember(self) -> None:
        """What it holds now is what it should hold at the end."""
        self._before = self._holds()

    @property
    def forgot_its_clients(self) -> bool:
        """Whether it holds about as much as at `remember`."""
        return all(now <= allowed for now, allowed in zip(self.kept, KEPT, strict=True))

    @property
    def kept(self) -> tuple[int, int]:
        """Descriptors and threads more than at `remember`."""
        now = self._holds()
        return now[0] - self._before[0], now[1] - self._before[1]

    @property
    def grown_mb(self) -> float:
        """Memory more than at `remember`."""
        return (self._holds()[2] - self._before[2]) / 2**20

    def terminate(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        """End it if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def _holds(self) -> tuple[int, int, int]:
        process = self._as_it_was
        return process.num_fds(), process.num_threads(), process.memory_info().rss

    def _get(self, path: str, verify: Any) -> int:
        assert self.process.poll() is None, self.text
        try:
            return httpx.get(f"{self.http}{path}", verify=verify, trust_env=False, timeout=60).status_code
        except httpx.TransportError:
            return 0


def door_service(folder: Path, *assignments: str, **options: Any) -> Service:
    """`door_service.py` as a process, ready."""
    options = {
        "http": "127.0.0.1:0",
        "grpc": "127.0.0.1:0",
        "ready_file": str(folder / "ready.json"),
        "log_format": "json",
        **options,
    }
    command = [sys.executable, str(HERE / "door_service.py"), json.dumps(options)]
    service = Service(folder, [*command, f"folder={folder}", *assignments])
    service.wait_ready()
    return service


def guerdon_serve(folder: Path, name: str, *words: str, env: dict[str, str] | None = None) -> Service:
    """`guerdon serve NAME` as a process, its doors listening."""
    doors = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--ready-file", str(folder / "ready.json")]
    return Service(folder, [sys.executable, "-m", "guerdon", "serve", name, *doors, *words], env)


def need_descriptors(count: int) -> None:
    """Let this process hold so many connections, or skip the test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        if hard != resource.RLIM_INFINITY and hard < count:
            pytest.skip(f"the limit on open files is {hard}, this test needs {count}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def request(body: bytes, path: str = "/v1/score", headers: Sequence[str] = ()) -> bytes:
    """The bytes of a POST."""
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def score_body(*responses: str, id: str = "a") -> bytes:
    """The JSON of a score request; the samples are called `id`."""
    return json.dumps({"samples": [{"id": id, "response": one} for one in responses]}).encode()


class Wire:
    """One raw HTTP connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, data: bytes) -> tuple[int, bytes]:
        """Send bytes and read one answer."""
        self.writer.write(data)
        return await self.answer()

    async def answer(self) -> tuple[int, bytes]:
        """The status and body of the next answer; (0, b"") when the connection ends without one."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").lower().split("\r\n")
            lengths = [int(line.partition(":")[2]) for line in lines if line.startswith("content-length:")]
            body = await self.reader.readexactly(lengths[0]) if lengths else await self.reader.read()
            return int(head.split(b" ", 2)[1]), body
        except (asyncio.IncompleteReadError, ConnectionError):
            return 0, b""

    async def ended(self) -> bytes:
        """What comes until the other side closes."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""

    def leave(self) -> None:
        """Hang up without a word."""
        self.writer.transport.abort()


class Wires:
    """Raw connections, all of which end with the `async with` block."""

    def __init__(self) -> None:
        self._all: list[Wire] = []

    async def open(self, url: str) -> Wire:
        """Connect to the host of a URL."""
        parts = urlsplit(url)
        self._all.append(Wire(*await asyncio.open_connection(parts.hostname, parts.port, limit=2**26)))
        return self._all[-1]

    async def __aenter__(self) -> "Wires":
        return self

    def leave(self) -> None:
        """Hang up on every one."""
        for wire in self._all:
            wire.leave()

    async def __aexit__(self, *_: object) -> None:
        self.leave()
        for wire in self._all:
            with suppress(OSError):
                await wire.writer.wait_closed()
