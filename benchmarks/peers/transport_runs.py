"""Passes of the transport benchmark: a fresh Redis, a fresh worker and a fresh client for each."""

import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import redis

from guerdon.redis_server import redis_server
from guerdon.supervisor import free_ports
from peers.runs import BENCHMARKS, Unavailable
from peers.transport_sides import Setting, sides

#: Seconds that one pass may take beyond what it measures.
_LIMIT_S = 300.0


@dataclass(frozen=True)
class Load:
    """What a pass does: requests of so many samples of so many characters, so many in flight, for so long."""

    samples: int
    in_flight: int
    seconds: float
    length: int = 2048


@dataclass(frozen=True)
class Pass:
    """One side under one load; `load` is the machine's load average at the end."""

    requests: int
    wall_s: float
    client_cpu_s: float
    worker_cpu_s: float
    redis_cpu_s: float
    latencies_ms: list[float]
    load: float

    @property
    def per_s(self) -> float:
        """Requests per second."""
        return self.requests / self.wall_s

    @property
    def cpu_us(self) -> float:
        """CPU microseconds of client and worker per request."""
        return 1e6 * (self.client_cpu_s + self.worker_cpu_s) / self.requests


@dataclass(frozen=True)
class Speed:
    """Medians over passes; CPU times in microseconds per request."""

    per_s: float
    p50_ms: float
    p99_ms: float
    client_us: float
    worker_us: float
    both_us: float
    redis_us: float


@dataclass(frozen=True)
class Loss:
    """What became of texts whose workers were killed."""

    texts: int
    unanswered: int
    failed: int
    never_run: int
    run_twice: int
    why: str


def run_pass(side: str, load: Load, packages: Path | None) -> Pass:
    """One side under one load.

    Raises:
        Unavailable: one of its processes ended too early, or too late.
    """
    with _redis(side) as (url, redis_pid):
        setting = Setting(url, free_ports(1)[0])
        with _running("serve", side, setting, {}, packages) as worker:
            work = {"processes": [worker.pid, redis_pid], **asdict(load)}
            with _running("drive", side, setting, work, packages) as client:
                return Pass(**_answer(client, 3 * load.seconds + _LIMIT_S))


def run_kills(side: str, texts: int, kills: int, packages: Path | None) -> Loss:
    """Have texts of 50 ms each scored by a worker that is killed again and again, and count.

    Raises:
        Unavailable: its client ended too early, or too late.
    """
    with _redis(side) as (url, _), tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        log.touch()
        setting = Setting(url, free_ports(1)[0], concurrency=4, lease_s=5, work_s=0.05, log=str(log))
        with _running("outlive", side, setting, {"texts": texts, "length": 2048}, packages) as client:
            for kill in range(kills):
                enough = (kill + 1) * texts // (kills + 1)
                with _running("serve", side, setting, {}, packages):
                    _until(lambda enough=enough: len(log.read_text().split()) >= enough, client)
            with _running("serve", side, setting, {}, packages):
                reply = _answer(client, _LIMIT_S)
        ran = Counter(log.read_text().split())
    return Loss(
        texts=texts,
        never_run=sum(ran[str(number)] == 0 for number in range(texts)),
        run_twice=sum(times > 1 for times in ran.values()),
        **reply,
    )


def speed(passes: Sequence[Pass]) -> Speed:
    """The figures of a side."""
    latencies = [sorted(one.latencies_ms) for one in passes]
    return Speed(
        per_s=statistics.median(one.per_s for one in passes),
        p50_ms=statistics.median(_percentile(one, 0.50) for one in latencies),
        p99_ms=statistics.median(_percentile(one, 0.99) for one in latencies),
        client_us=statistics.median(1e6 * one.client_cpu_s / one.requests for one in passes),
        worker_us=statistics.median(1e6 * one.worker_cpu_s / one.requests for one in passes),
        both_us=statistics.median(one.cpu_us for one in passes),
        redis_us=statistics.median(1e6 * one.redis_cpu_s / one.requests for one in passes),
    )


def ratio(passes: Sequence[Pass], others: Sequence[Pass], figure: Callable[[Pass], float]) -> float:
    """How many times the other side's figure: the median over pairs of passes."""
    return statistics.median(figure(one) / figure(other) for one, other in zip(passes, others, strict=True))


@contextmanager
def _redis(side: str) -> Generator[tuple[str, int | None]]:
    """The URL and process of an empty Redis that writes its log every second; none for a side that needs none."""
    if not sides()[side].queued:
        yield "", None
        return
    with redis_server() as url:
        with redis.Redis.from_url(url) as client:
            # A server that somebody gave us holds what earlier passes left.
            client.flushdb()
            info: Any = client.info("server")
        yield url, int(info["process_id"])


@contextmanager
def _running(
    end: str, side: str, setting: Setting, work: dict[str, Any], packages: Path | None
) -> Generator[subprocess.Popen[str]]:
    """One end in a process group of its own, which is killed at the end of the block."""
    paths = [str(packages)] if packages else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, str(BENCHMARKS)])}
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "peers.transport_process", end],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL if end == "serve" else subprocess.PIPE,
            stderr=None if os.environ.get("GUERDON_BENCHMARK_VERBOSE") else subprocess.DEVNULL,
            cwd=folder,
            env=environment,
            text=True,
            start_new_session=True,
        )
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps({"side": side, "setting": setting.as_message(), **work}) + "\n")
            process.stdin.flush()
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def _answer(client: subprocess.Popen[str], limit_s: float) -> dict[str, Any]:
    try:
        said, _ = client.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"no end after {limit_s:.0f} s") from None
    if not said:
        raise Unavailable(f"its client ended with status {client.returncode} and said nothing")
    return json.loads(said)


def _until(condition: Callable[[], bool], client: subprocess.Popen[str]) -> None:
    """Wait for the moment of a kill; a side that has lost too much never gets there, and its client gives up."""
    while not condition() and client.poll() is None:
        time.sleep(0.005)


def _percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
