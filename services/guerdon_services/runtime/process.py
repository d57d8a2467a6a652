"""The life of one process: bind, open, serve, drain, close."""

import asyncio
import gc
import json
import os
import resource
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import structlog
import uvloop

from guerdon_services.runtime.auth import TokenGuard
from guerdon_services.runtime.dispatch import Dispatcher
from guerdon_services.runtime.grpc import GrpcDoor
from guerdon_services.runtime.health import Health, State
from guerdon_services.runtime.http import build_app
from guerdon_services.runtime.metrics import Metrics
from guerdon_services.runtime.origin import HttpOrigins
from guerdon_services.runtime.scorer import AnyService
from guerdon_services.runtime.settings import Address, RuntimeSettings
from guerdon_services.runtime.watchdog import Watchdog
from guerdon_services.runtime.web import WebServer
from guerdon_services.runtime.worker import Worker

log = structlog.get_logger(__name__)

#: Connections that a process may hold at once, where the system lets it choose: the usual limit is 1024.
_DESCRIPTORS = 65_536
#: New objects after which the collector looks for cycles among them. A batch makes thousands, which live until it is
#: answered: at the default of 700 it would be looked through again and again, for nothing.
_COLLECT_AFTER = 20_000
#: Seconds that answers get to reach their clients once all work is done.
_FLUSH_S = 5.0


class Process:
    """One service behind its doors. `start`, then `open`; `drain`, then `close`."""

    def __init__(self, service: AnyService, settings: RuntimeSettings) -> None:
        self._service = service
        self._settings = settings
        self._state: State = "starting"
        self._clean = True
        self.metrics = Metrics()
        self.metrics.describe(service.name, service.version, service.device_memory)
        for collector in service.collectors():
            self.metrics.registry.register(collector)
        self.dispatcher = Dispatcher(service, settings, self.metrics)
        self._watchdog = Watchdog(
            lambda: self.dispatcher.lane.calls.silent_s,
            settings.stuck_after_s,
            ends_process=settings.exit_when_stuck,
        )
        self._worker = self._make_worker()
        self._web: WebServer | None = None
        self._rpc: GrpcDoor | None = None
        #: Where the doors listen; None for those that were not asked for.
        self.http: Address | None = None
        self.grpc: Address | None = None

    @property
    def _queue_name(self) -> str | None:
        settings = self._settings
        return (settings.queue_name or self._service.name) if settings.queue else None

    @property
    def url(self) -> str | None:
        """The base URL of the HTTP door."""
        scheme = "https" if self._settings.tls_cert else "http"
        return f"{scheme}://{self.http}" if self.http else None

    def health(self) -> Health:
        """What /readyz says."""
        return Health(self._state, self._worker.state if self._worker else "off", self._watchdog.stuck)

    async def start(self) -> None:
        """Listen at every door. Until `open` is done they answer, but refuse work.

        Raises:
            OSError: an address cannot be had.
        """
        settings = self._settings
        if settings.ready_file:
            # That of an earlier life names doors that are closed.
            settings.ready_file.unlink(missing_ok=True)
        token = settings.token.get_secret_value() if settings.token else None
        guard, tls = TokenGuard(token), _tls_files(settings)
        if settings.http:
            app = build_app(
                self.dispatcher, self.metrics, guard, self.health, body_s=settings.client_patience_s
            )
            self._web = WebServer(
                HttpOrigins(app),
                tls,
                refused=lambda outcome: self.metrics.refused("http", "other", outcome),
                head_s=settings.client_patience_s,
            )
            self.http = await self._web.start(settings.http)
        if settings.grpc:
            self._rpc = GrpcDoor(
                self.dispatcher, self.metrics, guard, max_message_bytes=settings.max_body_bytes
            )
            self.grpc = await self._rpc.start(settings.grpc, _grpc_credentials(tls))
        if settings.ready_file:
            _write_atomically(settings.ready_file, self._addresses())
        log.info("listening", **self._addresses(), queue=self._queue_name)

    async def open(self) -> None:
        """Open the service in a thread, then admit work."""
        began = time.monotonic()
        await self.dispatcher.lane.call(self._service.open)
        if self._state != "starting":
            return
        self._state = "ready"
        self._watchdog.start()
        self.dispatcher.accept()
        if self._rpc is not None:
            await self._rpc.set_serving(True)
        if self._worker is not None:
            self._worker.start()
        log.info("ready", open_s=round(time.monotonic() - began, 3))

    async def drain(self) -> bool:
        """Say not ready, refuse new work, finish what was admitted, close the doors.

        Returns False when work was left after `drain_s` seconds; it was answered with status unavailable, and
        queue entries were handed back.
        """
        settings, was_ready = self._settings, self._state == "ready"
        self._state = "draining"
        if self._web is not None:
            self._web.end_connections()
        if self._rpc is not None:
            await self._rpc.set_serving(False)
        # Queue entries need no notice: another worker takes what this one leaves.
        leaving = asyncio.create_task(self._leave_queue(settings.drain_s)) if was_ready else None
        if was_ready:
            await asyncio.sleep(settings.drain_delay_s)
        self.dispatcher.refuse("the service is stopping")
        log.info("draining", waiting=self.dispatcher.waiting)
        deadline = time.monotonic() + settings.drain_s
        if leaving is not None:
            await leaving
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await self.dispatcher.lane.idle()
        except TimeoutError:
            self._clean = False
            log.error("work was left when draining ended", drain_s=settings.drain_s)
            self.dispatcher.abandon("the service stopped before the item was done")
        doors = [door for door in (self._web, self._rpc) if door is not None]
        await asyncio.gather(*(door.stop(_FLUSH_S) for door in doors))
        return self._clean

    async def close(self) -> None:
        """Close the service in a thread, unless its threads hang."""
        self._watchdog.stop()
        if self._clean:
            await self.dispatcher.lane.call(self._service.close)
        self.dispatcher.lane.stop()
        log.info("closed")

    async def _leave_queue(self, grace_s: float) -> None:
        if self._worker is not None:
            await self._worker.stop(grace_s)

    def _make_worker(self) -> Worker | None:
        settings, queue_name = self._settings, self._queue_name
        if settings.queue is None or queue_name is None:
            return None
        return Worker(
            self.dispatcher,
            self.metrics,
            url=settings.queue,
            queue_name=queue_name,
            lease_s=settings.lease_s,
            max_deliveries=settings.max_deliveries,
        )

    def _addresses(self) -> dict[str, str | None]:
        return {"http": self.url, "grpc": str(self.grpc) if self.grpc else None}


@asynccontextmanager
async def running(service: AnyService, settings: RuntimeSettings) -> AsyncGenerator[Process]:
    """A whole process inside the current one, on the running event loop: for tests and notebooks."""
    process = Process(service, settings)
    await process.start()
    try:
        await process.open()
        yield process
    finally:
        await process.drain()
        await process.close()


def run(service: AnyService, settings: RuntimeSettings) -> int:
    """Serve until SIGTERM or SIGINT; the exit code. A second signal ends the process at once."""
    _raise_descriptor_limit()
    return uvloop.run(_serve(service, settings))


async def _serve(service: AnyService, settings: RuntimeSettings) -> int:
    stopping = asyncio.Event()
    _handle_signals(stopping)
    process = Process(service, settings)
    try:
        await process.start()
    except OSError as error:
        log.error("cannot start", error=str(error))
        return 1
    opening = asyncio.create_task(process.open())
    stopped = asyncio.create_task(stopping.wait())
    await asyncio.wait([opening, stopped], return_when=asyncio.FIRST_COMPLETED)
    _spare_the_collector()
    if not (opening.done() and opening.exception()):
        await stopped
    clean = await process.drain()
    await asyncio.wait([opening], timeout=settings.drain_s)
    if not clean or not opening.done():
        # A thread that hangs would keep the interpreter from ending.
        log.error("ended with work undone")
        os._exit(1)
    if (failure := opening.exception()) is not None:
        log.error("the service could not open", exc_info=failure)
        return 1
    await process.close()
    return 0


def _spare_the_collector() -> None:
    """Have the garbage collector pass over what lives as long as the process: modules, models, doors."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _handle_signals(stopping: asyncio.Event) -> None:
    def received(number: signal.Signals) -> None:
        if stopping.is_set():
            os._exit(128 + number)
        log.info("stopping", signal=number.name)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, received, number)


def _tls_files(settings: RuntimeSettings) -> tuple[Path, Path] | None:
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return settings.tls_cert, settings.tls_key


def _grpc_credentials(tls: tuple[Path, Path] | None) -> grpc.ServerCredentials | None:
    if tls is None:
        return None
    certificate, key = tls
    return grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])


def _write_atomically(path: Path, value: object) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(value))
    os.replace(temporary, path)
