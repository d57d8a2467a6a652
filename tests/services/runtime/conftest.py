"""Services to serve, and ways to serve them: in this process on port 0, or as a process of its own."""

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import httpx
import pytest

from guerdon_services.runtime.process import Process, running
from guerdon_services.runtime.scorer import AnyService
from guerdon_services.runtime.settings import Address, RuntimeSettings

HERE = Path(__file__).parent
LOOPBACK = Address("127.0.0.1", 0)
#: Seconds after which something that should happen counts as never happening, on the slowest machine.
PATIENCE_S = 200.0


@pytest.fixture(scope="session")
def scorers() -> ModuleType:
    """The module scorers.py beside this file."""
    spec = importlib.util.spec_from_file_location("runtime_test_scorers", HERE / "scorers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Serve(Protocol):
    """Serves a service at all doors on loopback."""

    def __call__(self, service: AnyService, **settings: Any) -> AbstractAsyncContextManager["Served"]: ...


class Served:
    """A running process and an HTTP client for it."""

    def __init__(self, process: Process, http: httpx.AsyncClient) -> None:
        self.process = process
        self.http = http
        self.grpc = str(process.grpc)


@pytest.fixture
def serve() -> Serve:
    """Serve in this process, on this event loop."""

    @asynccontextmanager
    async def served(service: AnyService, **settings: Any) -> AsyncGenerator[Served]:
        everything = RuntimeSettings.model_validate(
            {"http": LOOPBACK, "grpc": LOOPBACK, "drain_s": 10.0, **settings}
        )
        async with running(service, everything) as process:
            assert process.url is not None
            async with httpx.AsyncClient(base_url=process.url, timeout=PATIENCE_S, trust_env=False) as http:
                yield Served(process, http)

    return served


class Child:
    """A service as a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes], addresses: dict[str, str | None], log: Path) -> None:
        self.process = process
        self.http = addresses["http"] or ""
        self.grpc = addresses["grpc"] or ""
        self.log = log

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """The exit code."""
        return self.process.wait(timeout_s)

    def wait_ready(self, timeout_s: float = PATIENCE_S) -> None:
        """Return once /readyz answers 200."""
        until = time.monotonic() + timeout_s
        with httpx.Client(trust_env=False, timeout=PATIENCE_S) as client:
            while client.get(f"{self.http}/readyz").status_code != 200:
                assert time.monotonic() < until, self.log.read_text()
                time.sleep(0.02)


class Spawn(Protocol):
    """Starts a class of scorers.py as a process; returns once its doors listen."""

    def __call__(self, kind: str, *assignments: str, **options: Any) -> Child: ...


@pytest.fixture
def spawn(tmp_path: Path) -> Generator[Spawn]:
    """Start processes that end with the test."""
    children: list[subprocess.Popen[bytes]] = []

    def start(kind: str, *assignments: str, **options: Any) -> Child:
        number = len(children)
        ready, log = tmp_path / f"ready{number}.json", tmp_path / f"log{number}.txt"
        options = {"http": "127.0.0.1:0", "grpc": "127.0.0.1:0", "ready_file": str(ready), **options}
        command = [sys.executable, str(HERE / "serve_scorer.py"), kind, json.dumps(options), *assignments]
        with log.open("wb") as output:
            child = subprocess.Popen(command, stdout=output, stderr=output, env=dict(os.environ))
        children.append(child)
        until = time.monotonic() + PATIENCE_S
        while not ready.exists():
            assert child.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.02)
        return Child(child, json.loads(ready.read_text()), log)

    yield start
    for child in children:
        if child.poll() is None:
            child.kill()
        child.wait()


class Until(Protocol):
    """Polls a condition until it holds."""

    def __call__(
        self, condition: Callable[[], bool | Awaitable[bool]], timeout_s: float = PATIENCE_S
    ) -> Awaitable[None]: ...


@pytest.fixture
def until() -> Until:
    """Wait for a condition instead of sleeping."""

    async def wait(condition: Callable[[], bool | Awaitable[bool]], timeout_s: float = PATIENCE_S) -> None:
        end = time.monotonic() + timeout_s
        while True:
            held = condition()
            if await held if isinstance(held, Awaitable) else held:
                return
            assert time.monotonic() < end, "the condition never held"
            await asyncio.sleep(0.005)

    return wait
