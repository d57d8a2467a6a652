"""A worker process for the crash tests: queue_worker.py URL LEASE_S MAX_DELIVERIES LOG

It has up to 16 requests in hand, writes the id of each that it begins to LOG, and answers with that id. The body says
what to do: milliseconds to work, or "poison" to die on the spot. It prints "ready". SIGTERM drains it.
"""

import asyncio
import os
import signal
import sys

from guerdon.queue import Consumer, Entry, Reply
from guerdon.types import Status

IN_HAND = 16


class Worker:
    def __init__(self, url: str, lease_s: float, max_deliveries: int, log: int) -> None:
        self.consumer = Consumer(url, "math", lease_s=lease_s, max_deliveries=max_deliveries)
        self.log = log
        self.stopping = asyncio.Event()
        self.tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.stopping.set)
        await self.consumer.start()
        print("ready", flush=True)
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


async def main(url: str, lease_s: str, max_deliveries: str, log: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    await Worker(url, float(lease_s), int(max_deliveries), descriptor).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
