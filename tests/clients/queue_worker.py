"""Forks worker processes for the crash tests on command (`tests/nurseries.py`).

Each has up to 16 requests in hand, writes the id of each that it begins to a log, and answers with that id. The body
says what to do: milliseconds to work, or "poison" to die on the spot. SIGTERM drains it. A file beside the log, with
the process id at its end, says that it is ready.
"""

import asyncio
import os
import signal
import sys
from typing import Any, NoReturn

from guerdon.queue import Consumer, Entry, Reply
from guerdon.types import Status
from tests.nurseries import become_a_service, obey

IN_HAND = 16


class Worker:
    def __init__(self, url: str, lease_s: float, max_deliveries: int, log: str) -> None:
        self.consumer = Consumer(url, "math", lease_s=lease_s, max_deliveries=max_deliveries)
        self.log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.ready = f"{log}.{os.getpid()}"
        self.stopping = asyncio.Event()
        self.tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.stopping.set)
        await self.consumer.start()
        os.close(os.open(self.ready, os.O_CREAT))
        while not self.stopping.is_set():
            if len(self.tasks) >= IN_HAND:
                await asyncio.wait(self.tasks, return_when=asyncio.FIRST_COMPLETED)
                continue
            taken = await self.consumer.take(IN_HAND - len(self.tasks))
            if self.stopping.is_set():
                await self.consumer.release(taken)
                break
            for entry in taken:
                task = asyncio.create_task(self.work(entry))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
        await asyncio.gather(*self.tasks)
        await self.consumer.close()

    async def work(self, entry: Entry) -> None:
        os.write(self.log, f"{entry.request_id}\n".encode())
        if entry.body == b"poison":
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(float(entry.body) / 1000)
        await self.consumer.complete(entry, Reply(entry.request_id, Status.OK, "", entry.request_id.encode()))


async def live(spec: dict[str, Any]) -> None:
    await Worker(**spec).run()


def work(spec: dict[str, Any]) -> NoReturn:
    """A worker's life; the keys of `spec` are the arguments of `Worker`."""
    become_a_service(output=sys.stderr.fileno(), errors=sys.stderr.fileno())
    asyncio.run(live(spec))
    os._exit(0)


if __name__ == "__main__":
    obey(work)
