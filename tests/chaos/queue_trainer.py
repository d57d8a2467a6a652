"""A trainer for tests to kill: asks for scores over the queue, and prints number and value of each as it comes.

queue_trainer.py URL QUEUE COUNT
"""

import asyncio
import sys

from guerdon import AsyncClient, Sample


async def main(url: str, queue: str, count: int) -> None:
    """Ask once for all, under a key that the next life of this process gives again."""
    samples = [Sample(id=f"r{i}", response=str(i / 8)) for i in range(count)]
    async with AsyncClient(url, service=queue, timeout_s=600) as client:
        async for index, result in client.score_stream(samples, key="run 7, step 3"):
            print(index, result.status, result.value, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
