"""Keeps processes running: starts them, waits until they answer, restarts those that die, stops all.

No child outlives its supervisor. Each is started through a few lines of Python that ask the kernel to send it
SIGTERM when its parent dies (Linux, PR_SET_PDEATHSIG), whichever way that happens, and then become the command.
The kernel watches the *thread* that started the child, so one thread starts all and lives until they are gone.
Elsewhere than on Linux, `stop` at exit is all there is.

The second half reads the YAML file of `guerdon up`: which services to run, and where.
"""

import atexit
import difflib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import httpx
import yaml
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from guerdon.errors import InvalidRequest, Timeout, Unavailable

#: Seconds between a death and the restart: after the first in a row, and at most, doubling between.
BACKOFF_S = (0.1, 10.0)
#: Seconds after which a process counts as healthy, so that its next death is the first in a row again.
HEALTHY_AFTER_S = 30.0
#: Deaths in a row after which a process that was never ready counts as unable to start.
DEATHS_AT_START = 3
#: Seconds between two looks at the children.
POLL_S = 0.05
#: Seconds after which the queue entries of a service that died here are taken over: about what its restart takes.
LEASE_S = 10
#: Lines of a log that an error message ends with.
TAIL_LINES = 25

log = logging.getLogger("guerdon.supervisor")

_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]): sys.exit("the supervisor is gone")
os.execvp(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True)
class ProcessSpec:
    """One process to keep running.

    `env` is added to the supervisor's own environment. `ready_url` is http(s):// (ready when GET answers 200) or
    redis:// (ready when PING is answered); without it, a process that runs is ready.
    """

    name: str
    command: list[str]
    env: dict[str, str]
    log_path: Path
    ready_url: str | None = None


@dataclass
class _Child:
    """A process as it is now. Only the supervisor's thread changes it, save for `ready`."""

    spec: ProcessSpec
    process: "subprocess.Popen[bytes] | None" = None
    started: float = 0.0
    next_start: float = 0.0
    deaths_in_a_row: int = 0
    restarts: int = 0
    ready: bool = False


class Supervisor:
    """Runs processes, each in a process group of its own. A context manager: starts on entry, stops on exit."""

    def __init__(self, specs: Sequence[ProcessSpec]) -> None:
        self._children = [_Child(spec) for spec in specs]
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._stopping = threading.Event()
        self._stop_timeout_s = 10.0
        self._failure: OSError | None = None

    def start(self) -> None:
        """Start every process; does not wait until they are ready.

        Raises:
            OSError: a log cannot be written, or there is no such program.
        """
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure
        atexit.register(self.stop)

    def wait_ready(self, timeout_s: float) -> None:
        """Return when every process has been ready once.

        Raises:
            Unavailable: a process died several times without getting ready; ends with the tail of its log.
            Timeout: not all were ready in time; ends with the tail of a log.
        """
        deadline = time.monotonic() + timeout_s
        while waiting := [child for child in self._children if not self._check(child)]:
            for child in waiting:
                if child.deaths_in_a_row >= DEATHS_AT_START:
                    deaths = f"{child.spec.name} died {child.deaths_in_a_row} times at its start"
                    raise Unavailable(f"{deaths}; {_tail(child.spec.log_path)}")
            if time.monotonic() > deadline:
                names = ", ".join(child.spec.name for child in waiting)
                raise Timeout(f"not ready after {timeout_s:g} s: {names}; {_tail(waiting[0].spec.log_path)}")
            time.sleep(POLL_S)

    @property
    def restarts(self) -> dict[str, int]:
        """How often each process was restarted."""
        return {child.spec.name: child.restarts for child in self._children}

    @property
    def pids(self) -> dict[str, int]:
        """The process id of each process that runs."""
        running = ((child.spec.name, child.process) for child in self._children)
        return {name: process.pid for name, process in running if process is not None}

    def stop(self, timeout_s: float = 10.0) -> None:
        """SIGTERM to every process, after `timeout_s` SIGKILL to those that are left and to their children."""
        if self._thread is None:
            return
        self._stop_timeout_s = timeout_s
        self._stopping.set()
        self._thread.join()
        self._thread = None
        atexit.unregister(self.stop)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _check(self, child: _Child) -> bool:
        if not child.ready and child.process is not None:
            url = child.spec.ready_url
            child.ready = url is None or is_ready(url)
        return child.ready

    def _run(self) -> None:
        """The thread: start, watch, restart, stop."""
        try:
            for child in self._children:
                _spawn(child)
        except OSError as error:
            self._failure = error
            self._stopping.set()
        self._started.set()
        while not self._stopping.wait(POLL_S):
            now = time.monotonic()
            for child in self._children:
                if child.process is not None and child.process.poll() is not None:
                    _bury(child, now)
                elif child.process is None and now >= child.next_start:
                    _respawn(child, now)
        _stop_all(self._children, self._stop_timeout_s)


def is_ready(url: str, timeout_s: float = 1.0) -> bool:
    """Whether the process behind a ready URL answers as it should."""
    if not url.startswith(("http://", "https://")):
        return _answers_ping(url, timeout_s)
    try:
        return httpx.get(url, timeout=timeout_s, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def _answers_ping(url: str, timeout_s: float) -> bool:
    client: Any = cast(Any, Redis).from_url(
        url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 0)
    )
    try:
        return bool(client.ping())
    except RedisError:
        return False
    finally:
        client.close()


def _spawn(child: _Child) -> None:
    spec = child.spec
    helper: list[str] = []
    if sys.platform == "linux":
        helper = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid())]
    spec.log_path.parent.mkdir(parents=True, exist_ok=True)
    with spec.log_path.open("ab") as log:
        child.process = subprocess.Popen(
            [*helper, *spec.command],
            env={**os.environ, **spec.env},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    child.started = time.monotonic()


def _respawn(child: _Child, now: float) -> None:
    child.restarts += 1
    try:
        _spawn(child)
    except OSError as error:
        # This thread's end would be the end of every other child: it counts as one more death instead.
        log.warning("%s cannot be started again: %s", child.spec.name, error)
        _plan_restart(child, now)


def _bury(child: _Child, now: float) -> None:
    """Clear away an ended process with whatever it left running, and plan its restart."""
    _clear(child)
    if now - child.started > HEALTHY_AFTER_S:
        child.deaths_in_a_row = 0
    _plan_restart(child, now)


def _plan_restart(child: _Child, now: float) -> None:
    first, longest = BACKOFF_S
    child.next_start = now + min(first * 2**child.deaths_in_a_row, longest)
    child.deaths_in_a_row += 1


def _clear(child: _Child) -> None:
    """Kill what is left of a process group."""
    assert child.process is not None
    with suppress(ProcessLookupError):
        os.killpg(child.process.pid, signal.SIGKILL)
    child.process.wait()
    child.process = None


def _stop_all(children: Sequence[_Child], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    running = [(child, child.process) for child in children if child.process is not None]
    # The leader alone gets SIGTERM: its own workers must go on while it finishes what it has begun.
    for _, process in running:
        process.terminate()
    for child, process in running:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        _clear(child)


def _tail(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines()[-TAIL_LINES:] if path.exists() else []
    return f"the end of {path}:\n" + "\n".join(lines)


class ServiceConfig(BaseModel):
    """One service of a services file; addresses that are not given are free loopback ports."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: Its name among the entry points `guerdon.services`; by default the key it stands under.
    service: str | None = None
    #: HOST:PORT
    http: str | None = None
    #: HOST:PORT
    grpc: str | None = None
    #: Name of its queue; by default the key it stands under.
    queue: str | None = None
    settings: dict[str, JsonValue] = {}
    env: dict[str, str] = {}
    #: Seconds without a sign of life after which it is replaced (`--stuck-after-s`); 0 means never.
    stuck_after_s: float = 900.0


class ServicesConfig(BaseModel):
    """A services file: the Redis server ("embedded" or a URL), and services by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    redis: str = "embedded"
    services: dict[str, ServiceConfig]


def load_services(path: str | Path) -> ServicesConfig:
    """Read a services file.

    Raises:
        InvalidRequest: it cannot be read, is no YAML, or has a wrong key or value; the message names it.
    """
    try:
        content = yaml.safe_load(Path(path).read_text())
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidRequest(f"{path} cannot be read: {error}") from error
    try:
        return ServicesConfig.model_validate(content)
    except ValidationError as error:
        raise InvalidRequest(f"{path}: " + "; ".join(_sentences(error))) from error


def with_addresses(config: ServicesConfig) -> ServicesConfig:
    """The same services, with a free loopback port wherever no address is given."""
    services = config.services.items()
    ports = iter(free_ports(2 * len(services)))

    def address(given: str | None) -> str:
        port = next(ports)
        return given or f"127.0.0.1:{port}"

    settled = {
        name: service.model_copy(
            update={
                "service": service.service or name,
                "queue": service.queue or name,
                "http": address(service.http),
                "grpc": address(service.grpc),
            }
        )
        for name, service in services
    }
    return config.model_copy(update={"services": settled})


def process_specs(config: ServicesConfig, redis_url: str, log_dir: Path) -> list[ProcessSpec]:
    """One process for each service; its log is `log_dir/NAME.log`."""
    return [
        ProcessSpec(
            name=name,
            command=_serve_command(service),
            # The environment, not the command line, which every user of the machine can read: it may hold a password.
            env={"PYTHONUNBUFFERED": "1", "GUERDON_QUEUE_URL": redis_url, **service.env},
            log_path=log_dir / f"{name}.log",
            ready_url=f"http://{_reachable(str(service.http))}/readyz",
        )
        for name, service in with_addresses(config).services.items()
    ]


def free_ports(count: int) -> list[int]:
    """Different loopback TCP ports that nobody listens on at the moment."""
    with ExitStack() as probes:
        sockets = [probes.enter_context(socket.socket()) for _ in range(count)]
        for probe in sockets:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in sockets]


def _serve_command(service: ServiceConfig) -> list[str]:
    addresses = ["--http", str(service.http), "--grpc", str(service.grpc)]
    queue = ["--queue-name", str(service.queue), "--lease-s", str(LEASE_S)]
    # Here a process that ends is started again, so one that is stuck had better end.
    manners = ["--exit-when-stuck", "--stuck-after-s", f"{service.stuck_after_s:g}"]
    settings = [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in service.settings.items()
    ]
    serve = [sys.executable, "-m", "guerdon", "serve", str(service.service)]
    return [*serve, *addresses, *queue, *manners, *settings]


def _reachable(address: str) -> str:
    """Where a service that listens on every interface can be asked from here."""
    host, _, port = address.rpartition(":")
    everywhere = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
    return f"{everywhere.get(host, host)}:{port}"


def _sentences(error: ValidationError) -> list[str]:
    """One for each mistake, naming the key and, for an unknown one, what was probably meant."""
    sentences: list[str] = []
    for mistake in error.errors():
        where = ".".join(str(part) for part in mistake["loc"]) or "the file"
        if mistake["type"] != "extra_forbidden":
            sentences.append(f"{where}: {mistake['msg']}")
            continue
        model = ServicesConfig if len(mistake["loc"]) == 1 else ServiceConfig
        meant = difflib.get_close_matches(str(mistake["loc"][-1]), model.model_fields, n=1)
        known = f"did you mean {meant[0]}?" if meant else f"known are {', '.join(model.model_fields)}"
        sentences.append(f"{where}: unknown key; {known}")
    return sentences
