"""What the queue promises when workers, clients and Redis itself die: real processes, real SIGKILL."""

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, cast

import pytest
from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from guerdon.queue import Producer, Reply, stats
from guerdon.queue import producer as producer_module
from guerdon.redis_server import redis_server
from guerdon.types import Status
from tests.nurseries import Nursery
from tests.waiting import PATIENCE_S, until

#: Seconds after which a worker counts as dead, where workers die.
LEASE_S = 1.0
#: The same where none dies: longer than a busy machine may hold up a live one.
LONG_LEASE_S = 60.0


class Workers:
    """Worker processes, replaced when they die."""

    def __init__(self, nursery: Nursery, url: str, log: Path) -> None:
        self._nursery = nursery
        self._spec: dict[str, Any] = {"url": url, "log": str(log)}
        self._log = log
        self._pids: list[int] = []
        self.exit_codes: list[int] = []

    def start(self, count: int, *, lease_s: float = LEASE_S, max_deliveries: int = 5) -> None:
        """So many workers, and what those are like that replace them."""
        self._spec |= {"lease_s": lease_s, "max_deliveries": max_deliveries}
        for _ in range(count):
            self._start()

    def _start(self) -> None:
        pid = self._nursery.ask({"spawn": self._spec})["pid"]
        self._pids.append(pid)
        until(Path(f"{self._log}.{pid}").exists)

    def signal(self, number: int) -> None:
        """Send a signal to the oldest worker, while it has work in hand; a new one takes its place."""
        self.exit_codes.append(self._nursery.ask({"signal": number, "pid": self._pids.pop(0)})["code"])
        self._start()

    def replace_dead(self) -> None:
        """Put new workers in the places of those that died by themselves."""
        for pid, code in self._nursery.ask({"buried": True})["codes"].items():
            self.exit_codes.append(code)
            self._pids.remove(int(pid))
            self._start()

    def begun(self) -> Counter[str]:
        """How often each request was begun."""
        return Counter(self._log.read_text().split())

    def close(self) -> None:
        """Kill all."""
        while self._pids:
            self._nursery.ask({"signal": signal.SIGKILL, "pid": self._pids.pop()})


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """The process that forks workers."""
    with closing(Nursery("tests.clients.queue_worker")) as made:
        yield made


@pytest.fixture
def workers(nursery: Nursery, redis_url: str, log: Path) -> Iterator[Workers]:
    """Workers at `redis_url`, none of which was started."""
    with closing(Workers(nursery, redis_url, log)) as made:
        yield made


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "begun.log"


@asynccontextmanager
async def producer(url: str, **settings: Any) -> AsyncIterator[Producer]:
    made = Producer(url, "math", **settings)
    try:
        yield made
    finally:
        await made.close()


async def replies(
    client: Producer,
    requests: dict[str, bytes],
    at_completion: Callable[[int], None] = lambda count: None,
    *,
    in_flight: int = 64,
) -> dict[str, Reply]:
    """Every reply by request id. Calls `at_completion` with the number of replies after each, while the workers are
    busy with the next."""
    received: dict[str, Reply] = {}
    slots = asyncio.Semaphore(in_flight)

    async def ask(request_id: str, body: bytes) -> None:
        async with slots:
            reply = await (await client.submit("score", body, request_id=request_id))
            assert reply.request_id not in received
            received[request_id] = reply
            at_completion(len(received))

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(ask(request_id, body) for request_id, body in requests.items()))
    return received


async def keys_left(url: str) -> dict[str, int]:
    """What the service has left in Redis, without results and the streams that stay."""
    client: Any = cast(Any, Redis).from_url(url)
    try:
        lengths = {f"q:{priority}": await client.xlen(f"{{math}}:q:{priority}") for priority in (0, 1)}
        return {**lengths, "dd": len(await client.keys("{math}:dd:*"))}
    finally:
        await client.aclose()


NOTHING_LEFT = {"q:0": 0, "q:1": 0, "dd": 0}


async def test_killed_workers_lose_and_duplicate_nothing(redis_url: str, workers: Workers) -> None:
    requests = {f"r{i}": b"20" for i in range(400)}
    workers.start(2)

    def kill(completed: int) -> None:
        if completed % 45 == 0:
            workers.signal(signal.SIGKILL)

    async with producer(redis_url) as client:
        received = await replies(client, requests, kill)
    assert workers.exit_codes == [-signal.SIGKILL] * 8
    assert received == {id: Reply(id, Status.OK, "", id.encode()) for id in requests}
    assert (await stats(redis_url, "math")).dead == 0
    assert await keys_left(redis_url) == NOTHING_LEFT
    # At least once is the promise. What a worker had in hand when it died was begun again, and no more.
    begun = workers.begun()
    assert begun.keys() == requests.keys()
    assert 400 < begun.total() <= 400 + 8 * 16


async def test_poison_is_given_up_and_its_neighbours_are_answered(redis_url: str, workers: Workers) -> None:
    poison = {f"p{i}": b"poison" for i in range(3)}
    requests = {f"r{i}": b"5" for i in range(60)} | poison | {f"s{i}": b"5" for i in range(60)}
    workers.start(2, max_deliveries=3)
    async with producer(redis_url) as client:
        answers = asyncio.create_task(replies(client, requests, in_flight=200))
        while not answers.done():
            workers.replace_dead()
            await asyncio.wait([answers], timeout=0.05)
        received = await answers
    assert {id for id, reply in received.items() if reply.status is Status.INTERNAL_ERROR} == poison.keys()
    assert {reply.status for id, reply in received.items() if id not in poison} == {Status.OK}
    assert (await stats(redis_url, "math")).dead == len(poison)
    assert await keys_left(redis_url) == NOTHING_LEFT
    begun = workers.begun()
    # Three deliveries each; a poison that was delivered but not begun when another one struck counts too.
    assert all(1 <= begun[id] <= 3 for id in poison)


async def test_drained_workers_fail_and_repeat_nothing(redis_url: str, workers: Workers) -> None:
    requests = {f"r{i}": b"20" for i in range(240)}
    workers.start(2, lease_s=LONG_LEASE_S)

    def drain(completed: int) -> None:
        if completed % 40 == 0 and completed < 240:
            workers.signal(signal.SIGTERM)

    async with producer(redis_url) as client:
        received = await replies(client, requests, drain)
    assert workers.exit_codes == [0] * 5
    assert {reply.status for reply in received.values()} == {Status.OK}
    assert workers.begun() == Counter(requests.keys())


@pytest.fixture
def own_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server of this test alone, which may be killed; it is started again by itself."""
    monkeypatch.delenv("GUERDON_REDIS_URL", raising=False)
    with redis_server(folder=tmp_path / "redis") as url:
        yield url


def server_pid(url: str) -> int:
    with cast(Any, BlockingRedis).from_url(url) as client:
        return client.info("server")["process_id"]


async def test_a_killed_redis_loses_nothing(own_server: str, nursery: Nursery, log: Path) -> None:
    requests = {f"r{i}": b"20" for i in range(240)}
    with closing(Workers(nursery, own_server, log)) as workers:
        workers.start(2)
        pids: list[int] = []

        def kill(completed: int) -> None:
            if completed in (60, 150):
                pids.append(server_pid(own_server))
                os.kill(pids[-1], signal.SIGKILL)

        async with producer(own_server) as client:
            received = await replies(client, requests, kill)
        assert len({*pids, server_pid(own_server)}) == 3
        assert received == {id: Reply(id, Status.OK, "", id.encode()) for id in requests}
        assert await keys_left(own_server) == NOTHING_LEFT


async def test_a_redis_that_lost_everything_gets_it_again(
    redis_url: str, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_module, "PROBE_EVERY_S", 0.5)
    # Long enough for the worker to be seen at work, however late this process looks.
    requests = {f"r{i}": b"200" for i in range(100)}
    server: Any = cast(Any, Redis).from_url(redis_url)
    workers.start(1)
    async with producer(redis_url) as client:
        answers = asyncio.create_task(replies(client, requests))
        while (await stats(redis_url, "math")).pending == 0:
            assert not answers.done()
        await server.flushall()
        await server.script_flush()
        received = await answers
    assert received == {id: Reply(id, Status.OK, "", id.encode()) for id in requests}
    await server.aclose()


CLIENT = """
import asyncio, sys
from guerdon.queue import Producer

async def main(url: str) -> None:
    client = Producer(url, "math", client_id="trainer")
    futures = [await client.submit("score", b"30", request_id=f"r{i}") for i in range(120)]
    for next_reply in asyncio.as_completed(futures):
        print((await next_reply).request_id, flush=True)
    await client.close()

asyncio.run(main(sys.argv[1]))
"""


async def test_a_restarted_client_gets_every_result(redis_url: str, workers: Workers) -> None:
    workers.start(1, lease_s=LONG_LEASE_S)
    for _ in range(3):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CLIENT, redis_url, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(20):
                await process.stdout.readline()
        process.kill()
        await process.communicate()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, redis_url, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    received = output.decode().split()
    assert process.returncode == 0
    assert sorted(received) == sorted(f"r{i}" for i in range(120))
    assert workers.begun() == Counter(f"r{i}" for i in range(120))
