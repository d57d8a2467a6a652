"""One end of a side: `python -m peers.transport_process serve|drive|outlive` reads its work from stdin, as JSON.

`serve` is the worker, until it is ended. `drive` is the client that measures: it writes one JSON object to stdout, see
`Figures`. `outlive` is the client whose workers are killed: it writes how many texts were answered, as they are.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from itertools import count
from typing import Any

from peers.cpu import TreesClock
from peers.transport_sides import Setting, Side, sides, text

#: Seconds in which a worker must answer for the first time.
_START_S = 120.0
#: Seconds after which a text that nobody answers any more is lost.
_LOST_S = 45.0


def main() -> None:
    """Do one end's work."""
    work: dict[str, Any] = json.loads(sys.stdin.readline())
    side = sides()[work["side"]](Setting(**work["setting"]))
    if sys.argv[1] == "serve":
        side.serve()
        return
    reply = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    found = asyncio.run(_drive(side, work) if sys.argv[1] == "drive" else _outlive(side, work))
    reply.write(json.dumps(found) + "\n")
    reply.close()
    # A client library may leave threads that wait for ever.
    os._exit(0)


async def _drive(side: Side, work: dict[str, Any]) -> dict[str, Any]:
    await side.open()
    numbers = count()
    samples, length = work["samples"], work["length"]

    async def call() -> None:
        texts = [text(next(numbers), length) for _ in range(samples)]
        if await side.call(texts) != [1.0] * samples:
            raise RuntimeError("a wrong value")

    await _first(call)
    await _throughput(call, work["in_flight"], work["seconds"] / 2)
    clock = TreesClock(work["processes"])
    own_ns, others_ns, began = time.process_time_ns(), clock.read_ns(), time.perf_counter()
    done = await _throughput(call, work["in_flight"], work["seconds"])
    wall_s = time.perf_counter() - began
    own_ns = time.process_time_ns() - own_ns
    worker_ns, redis_ns = (now - then for now, then in zip(clock.read_ns(), others_ns, strict=True))
    latencies_ms = await _latencies(call, work["seconds"] / 2)
    await side.close()
    return {
        "requests": done,
        "wall_s": wall_s,
        "client_cpu_s": own_ns / 1e9,
        "worker_cpu_s": worker_ns / 1e9,
        "redis_cpu_s": redis_ns / 1e9,
        "latencies_ms": latencies_ms,
        "load": os.getloadavg()[0],
    }


async def _first(call: Callable[[], Any]) -> None:
    """Wait until the worker is there: a door that is closed refuses at once, a queue holds what it gets."""
    ends = time.monotonic() + _START_S
    while True:
        try:
            return await asyncio.wait_for(call(), _START_S)
        except Exception:
            if time.monotonic() > ends:
                raise
            await asyncio.sleep(0.1)


async def _throughput(call: Callable[[], Any], in_flight: int, seconds: float) -> int:
    """How many requests were answered: so many at any time, for so long, and until the last one is."""
    ends = time.perf_counter() + seconds
    done = 0

    async def one_after_another() -> None:
        nonlocal done
        while time.perf_counter() < ends:
            await call()
            done += 1

    await asyncio.gather(*(one_after_another() for _ in range(in_flight)))
    return done


async def _latencies(call: Callable[[], Any], seconds: float) -> list[float]:
    """Milliseconds of requests, one at a time."""
    ends, found = time.perf_counter() + seconds, list[float]()
    while time.perf_counter() < ends or len(found) < 5:
        began = time.perf_counter()
        await call()
        found.append(1000 * (time.perf_counter() - began))
    return found


async def _outlive(side: Side, work: dict[str, Any]) -> dict[str, Any]:
    await side.open()
    tasks = [
        asyncio.create_task(side.call([text(number, work["length"])])) for number in range(work["texts"])
    ]
    pending: set[asyncio.Task[list[float]]] = set(tasks)
    while pending:
        done, pending = await asyncio.wait(pending, timeout=_LOST_S, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            break
    failed = [task.exception() for task in tasks if task.done() and task.exception() is not None]
    return {"unanswered": len(pending), "failed": len(failed), "why": repr(failed[0]) if failed else ""}


if __name__ == "__main__":
    main()
