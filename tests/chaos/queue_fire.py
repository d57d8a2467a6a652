"""A Redis server to kill, worker processes to kill, and a client that keeps the books. Tests import this by name."""

import asyncio
import random
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from guerdon import codec
from guerdon.errors import Overloaded
from guerdon.queue import Producer, Reply
from guerdon.redis_server import server_binary
from guerdon.types import Result, Sample, ScoreRequest, Status
from tests.nurseries import Nursery
from tests.waiting import PATIENCE_S, until

HERE = Path(__file__).parent
#: Ports below those that systems give to outgoing connections: one of these could take a dead server's.
_PORTS = (15_000, 30_000)
QUEUE = "fire"


class Server:
    """A Redis server of one test, which dies and comes back at the same address with the same data."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._settings = [
            "bind 127.0.0.1",
            f'dir "{folder}"',
            'save ""',
            "appendonly yes",
            "maxmemory-policy noeviction",
            "enable-debug-command local",
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.client: Any = cast(Any, Redis).from_url(
            self.url, retry=Retry(NoBackoff(), 0), socket_timeout=60, decode_responses=True
        )

    def configure(self, *settings: str) -> None:
        """Add lines to its configuration, for the next start."""
        self._settings += settings

    def start(self) -> None:
        """Start it; returns when it has loaded its data."""
        config = self._folder / "redis.conf"
        config.write_text("\n".join([*self._settings, f"port {self.port}", ""]))
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen([str(server_binary()), str(config)], stdout=log, stderr=log)
        until(self._answers, said=self._said)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._said()
        with suppress(RedisError):
            return bool(self.client.ping())
        return False

    def _said(self) -> str:
        return (self._folder / "redis.log").read_text()

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End it for good."""
        self.client.close()
        self.kill()


def _free_port() -> int:
    while True:
        port = random.randrange(*_PORTS)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


class Fleet:
    """Worker processes of one test, replaced when they die. Keys of `settings`: `Spec` in queue_nursery.py."""

    def __init__(self, nursery: Nursery, folder: Path, url: str, **settings: Any) -> None:
        self.log = folder / "begun.log"
        self.log.touch()
        self._nursery = nursery
        files = {"log": str(self.log), "errors": str(folder / "errors.log")}
        self._spec = {"url": url, **files, **settings}
        self._random = random.Random(0)
        self.pids: list[int] = []
        self.deaths = 0

    def grow(self, count: int, **settings: Any) -> None:
        """Start more workers, maybe with settings of their own."""
        for _ in range(count):
            self.pids.append(self._nursery.ask({"spawn": {**self._spec, **settings}})["pid"])

    def replace(self, which: int, number: int) -> int:
        """Start another worker, send one a signal, and return how that one ended."""
        pid = self.pids.pop(which)
        self.grow(1)
        return self._nursery.ask({"signal": int(number), "pid": pid})["code"]

    def kill_one(self) -> None:
        """SIGKILL to a random worker."""
        assert self.replace(self._random.randrange(len(self.pids)), signal.SIGKILL) == -signal.SIGKILL
        self.deaths += 1

    def replace_dead(self) -> None:
        """Put new workers in the places of those that died by themselves."""
        dead = self._nursery.ask({"buried": True})["codes"]
        self.pids = [pid for pid in self.pids if str(pid) not in dead]
        self.deaths += len(dead)
        self.grow(len(dead))

    def begun(self) -> Counter[str]:
        """How often the execution of each sample was begun."""
        return Counter(self.log.read_text().split())

    def close(self) -> None:
        """Kill all."""
        while self.pids:
            self._nursery.ask({"signal": int(signal.SIGKILL), "pid": self.pids.pop()})


async def kill_every_second(workers: Fleet, enough: asyncio.Event) -> None:
    """A random worker, until it is enough."""
    while not enough.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(enough.wait(), 1)
            return
        await asyncio.to_thread(workers.kill_one)


def body(request_id: str, response: str, prompt: str | None = None) -> bytes:
    """A request for the score of one sample."""
    return codec.encode(ScoreRequest(samples=[Sample(id=request_id, prompt=prompt, response=response)]))


def numbers(count: int) -> dict[str, str]:
    """Responses by request id, each of another value."""
    return {f"r{i}": str(i / 8) for i in range(count)}


class Books:
    """What came of requests: each reply by request id, and how often the queue refused one at first."""

    def __init__(self, responses: dict[str, str]) -> None:
        self.responses = responses
        self.replies: dict[str, Reply] = {}
        self.refusals = 0
        self.last_refusal = ""

    def results(self) -> dict[str, Result]:
        """The result in each reply; a failure of the queue itself becomes one as in the client."""
        return {id: result_of(reply) for id, reply in self.replies.items()}

    def faults(self, *, doomed: Iterable[str] = ()) -> dict[str, list[str]]:
        """Requests without an answer, with a value that is not theirs, and without one where it should be."""
        results, doomed = self.results(), set(doomed)
        return {
            "lost": [id for id in self.responses if id not in results],
            "invented": [
                id
                for id, result in results.items()
                if result.value is not None and (id in doomed or result.value != float(self.responses[id]))
            ],
            "failed": [
                id for id, result in results.items() if (result.status is not Status.OK) != (id in doomed)
            ],
        }


async def eventually(ready: Callable[[], bool]) -> None:
    """Return once it is so; the client goes on meanwhile."""
    await asyncio.to_thread(until, ready)


NO_FAULTS: dict[str, list[str]] = {"lost": [], "invented": [], "failed": []}


def result_of(reply: Reply) -> Result:
    """The result in a reply."""
    if reply.status is Status.OK:
        return codec.decode(Result, reply.body)
    assert reply.body == b""
    return Result(status=reply.status, reason=reply.reason)


async def ask_all(
    client: Producer,
    responses: dict[str, str],
    *,
    in_flight: int = 64,
    at_answer: Callable[[int], None] = lambda count: None,
    books: Books | None = None,
    prompt: str | None = None,
    timeout_s: float = PATIENCE_S,
) -> Books:
    """Ask for every score, so many at a time. Waits where the queue is full or Redis away, and never asks twice."""
    books = books or Books(responses)
    waiting = iter(responses.items())

    async def ask(request_id: str, response: str) -> None:
        content = body(request_id, response, prompt)
        while True:
            try:
                future = await client.submit("score", content, request_id=request_id, patience_s=timeout_s)
                break
            except Overloaded as error:
                books.refusals += 1
                books.last_refusal = str(error)
                await asyncio.sleep(0.25)
        reply = await future
        assert request_id not in books.replies
        books.replies[request_id] = reply
        at_answer(len(books.replies))

    async def ask_on() -> None:
        for request_id, response in waiting:
            await ask(request_id, response)

    async with asyncio.timeout(timeout_s):
        await asyncio.gather(*(ask_on() for _ in range(in_flight)))
    return books


async def asked_again(url: str, responses: dict[str, str], timeout_s: float = PATIENCE_S) -> dict[str, Reply]:
    """What another client hears that asks for the same requests."""
    client = Producer(url, QUEUE)
    books = await ask_all(client, responses, timeout_s=timeout_s)
    await client.close()
    return books.replies


def left_in(server: Server) -> dict[str, int]:
    """What the service has left in Redis, without results and the streams that stay."""
    prefix = f"{{{QUEUE}}}:"
    lengths = {f"q:{priority}": server.client.xlen(f"{prefix}q:{priority}") for priority in (0, 1)}
    return {**lengths, "dd": len(server.client.keys(f"{prefix}dd:*"))}


NOTHING_LEFT = {"q:0": 0, "q:1": 0, "dd": 0}
