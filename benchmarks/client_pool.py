"""A thousand calls at once of one sample each: our client beside plain httpx, against a running service.

    guerdon serve rules --http 127.0.0.1:8103 &
    python benchmarks/client_pool.py http://127.0.0.1:8103 [--calls 1000] [--repeats 1] [--limit-s 60]

Sides take turns; figures are medians in seconds for all calls. `lost` are calls without a reward, in all passes; all
of them where a side is not done within the limit. httpx
posts the same JSON with its pool as it comes (100 connections, five seconds to wait for one) and with room for all.
"""

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable

import httpx

from guerdon import AsyncClient, Sample
from guerdon.bulk import Bulk
from guerdon.types import Options

OPTIONS: Options = {"rules": [{"rule": "exact"}]}
Side = Callable[[str, list[Sample]], Awaitable[int]]


async def main() -> None:
    """Run the sides in turns and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url")
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=60.0)
    arguments = parser.parse_args()
    samples = [Sample(response=str(n), references=[str(n)]) for n in range(arguments.calls)]
    seconds: dict[str, list[float]] = {name: [] for name in SIDES}
    lost = dict.fromkeys(SIDES, 0)
    for _ in range(arguments.repeats):
        for name, side in SIDES.items():
            begun = time.perf_counter()
            lost[name] += len(samples) - await _within(arguments.limit_s, side(arguments.url, samples))
            seconds[name].append(time.perf_counter() - begun)
    print(f"{arguments.calls} calls, {arguments.repeats} passes, load average {os.getloadavg()[0]:.1f}")
    for name, times in seconds.items():
        print(f"{name:22} {statistics.median(times):7.2f} s   lost {lost[name]}")


async def _within(limit_s: float, done: Awaitable[int]) -> int:
    try:
        return await asyncio.wait_for(done, limit_s)
    except TimeoutError:
        return 0


async def bulk(url: str, samples: list[Sample]) -> int:
    """`Bulk`: calls share requests."""
    async with AsyncClient(url, retries=0) as client:
        shared = Bulk(client, options=OPTIONS)
        results = await shared.score(samples)
        await shared.aclose()
    return sum(result.value == 1.0 for result in results)


async def client(url: str, samples: list[Sample]) -> int:
    """`AsyncClient`: a request per call."""
    async with AsyncClient(url) as one:
        calls = (one.score([sample], options=OPTIONS) for sample in samples)
        answers = await asyncio.gather(*calls, return_exceptions=True)
    return sum(not isinstance(answer, BaseException) and answer[0].value == 1.0 for answer in answers)


async def httpx_as_it_comes(url: str, samples: list[Sample]) -> int:
    """httpx with its own limits."""
    async with httpx.AsyncClient(trust_env=False) as http:
        return await _posted(http, url, samples)


async def httpx_with_room(url: str, samples: list[Sample]) -> int:
    """httpx with a minute for each answer and a connection for every call."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(trust_env=False, timeout=60.0, limits=limits) as http:
        return await _posted(http, url, samples)


async def _posted(http: httpx.AsyncClient, url: str, samples: list[Sample]) -> int:
    async def post(sample: Sample) -> bool:
        body = {"samples": [sample.model_dump(exclude_defaults=True)], "options": OPTIONS}
        answer = await http.post(f"{url}/v1/score", json=body)
        return answer.status_code == 200 and answer.json()["results"][0]["value"] == 1.0

    answers = await asyncio.gather(*map(post, samples), return_exceptions=True)
    return sum(answer is True for answer in answers)


SIDES: dict[str, Side] = {
    "guerdon Bulk": bulk,
    "guerdon AsyncClient": client,
    "httpx as it comes": httpx_as_it_comes,
    "httpx with room": httpx_with_room,
}

if __name__ == "__main__":
    asyncio.run(main())
