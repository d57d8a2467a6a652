"""A verifier that is killed amid a batch: dying_verifier.py URL. It answers the first two samples, and dies of SIGKILL.

It prints "ready" when it takes work. The four samples are in its hand when it dies.
"""

import asyncio
import os
import signal
import sys

from guerdon import codec
from guerdon.queue import Consumer, Entry, Reply
from guerdon.types import Result, ScoreRequest, Status

IN_HAND, ANSWERED = 4, 2


async def main(url: str) -> None:
    consumer = Consumer(url, "math")
    await consumer.start()
    print("ready", flush=True)
    entries: list[Entry] = []
    while len(entries) < IN_HAND:
        entries += await consumer.take(IN_HAND - len(entries))
    samples = {entry.request_id: codec.decode(ScoreRequest, entry.body).samples[0] for entry in entries}
    in_order = sorted(entries, key=lambda entry: str(samples[entry.request_id].id))
    for entry in in_order[:ANSWERED]:
        sample = samples[entry.request_id]
        result = Result(id=sample.id, status=Status.OK, value=float(sample.response == "3"))
        await consumer.complete(entry, Reply(entry.request_id, Status.OK, "", codec.encode(result)))
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
