"""A pod is replaced behind a Service while clients ask: nobody is refused, and there is no preStop hook.

A pod that is deleted gets SIGTERM at once, while Services still send it connections: it takes them for `drainDelayS`.
"""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import httpx
import pods
import pytest

from guerdon import AsyncClient, Sample

#: Seconds until the last node has heard that the pod is no endpoint any more; drainDelayS is 5.
LAG_S = 2.0
SAMPLE = Sample(id="1", response=r"\boxed{7}", references=["7"])
BODY = {"samples": [{"response": r"\boxed{7}", "references": ["7"]}]}
HEADERS = {"Authorization": f"Bearer {pods.TOKEN}"}


class Service:
    """As kube-proxy does it: each connection goes to one endpoint, and stays there when the endpoint is removed."""

    def __init__(self, door: str) -> None:
        self._door = door
        self._turns = itertools.count()
        self.endpoints: list[pods.Pod] = []
        self.address = ""

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pod = self.endpoints[next(self._turns) % len(self.endpoints)]
        try:
            # A pod that listens no more refuses the connection, which the client sees as cut off.
            there = await asyncio.open_connection("127.0.0.1", pod.ports[self._door])
        except OSError:
            writer.close()
            return
        await asyncio.gather(self._copy(reader, there[1]), self._copy(there[0], writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def service(door: str) -> AsyncGenerator[Service]:
    made = Service(door)
    server = await asyncio.start_server(made.connect, "127.0.0.1", 0)
    made.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()


async def requests(over: asyncio.Event) -> AsyncGenerator[None]:
    """One after the other, and some more when the old pod has gone."""
    while not over.is_set():
        yield
        await asyncio.sleep(0.01)
    for _ in range(25):
        yield


async def plain_http(address: str, answers: Counter[str], over: asyncio.Event, *, fresh: bool) -> None:
    """A client that tries nothing again; with `fresh`, by a connection for each request."""
    headers = {**HEADERS, "Connection": "close"} if fresh else HEADERS
    async with httpx.AsyncClient(
        base_url=f"http://{address}", headers=headers, timeout=60, trust_env=False
    ) as client:
        async for _ in requests(over):
            try:
                answer = await client.post("/v1/score", json=BODY)
            except httpx.HTTPError as error:
                answers[f"http: {type(error).__name__}"] += 1
                continue
            answers[f"http {answer.status_code}"] += 1


async def ours(url: str, answers: Counter[str], over: asyncio.Event) -> None:
    async with AsyncClient(url, token=pods.TOKEN) as client:
        async for _ in requests(over):
            [result] = await client.score([SAMPLE])
            answers[f"{url[:4]} {result.status}"] += 1


async def replace(old: pods.Pod, new: pods.Pod, doors: tuple[Service, Service]) -> bool:
    """Whether endpoints changed when they should have: this machine may stand still longer than `drainDelayS`."""
    for one in doors:
        one.endpoints = [old, new]
    began = time.monotonic()
    old.process.terminate()
    await asyncio.sleep(LAG_S)
    for one in doors:
        one.endpoints = [new]
    in_time = time.monotonic() - began < LAG_S + 1
    assert await asyncio.to_thread(old.process.wait, pods.PATIENCE_S) == 0
    return in_time


async def replaced(cluster: pods.Cluster, old: pods.Pod) -> tuple[pods.Pod, Counter[str], bool]:
    """The new pod, what clients heard meanwhile, and whether endpoints changed in time."""
    answers, over = Counter[str](), asyncio.Event()
    async with service("http") as web, service("grpc") as rpc:
        web.endpoints, rpc.endpoints = [old], [old]
        clients = [
            asyncio.create_task(one)
            for one in (
                plain_http(web.address, answers, over, fresh=False),
                plain_http(web.address, answers, over, fresh=True),
                ours(f"http://{web.address}", answers, over),
                ours(f"grpc://{rpc.address}", answers, over),
            )
        ]
        new = await asyncio.to_thread(cluster.start, "math")
        await asyncio.to_thread(new.wait, "readinessProbe")
        in_time = await replace(old, new, (web, rpc))
        over.set()
        await asyncio.gather(*clients)
    return new, answers, in_time


@pytest.mark.timeout(1200)
async def test_a_pod_that_is_replaced_refuses_nobody() -> None:
    with pods.cluster("verifiers-only") as cluster:
        template = pods.workloads(cluster.items)["math"]["spec"]
        assert "lifecycle" not in template["containers"][0]
        redis = await asyncio.to_thread(cluster.start, "redis")
        pod = await asyncio.to_thread(cluster.start, "math")
        await asyncio.to_thread(pod.wait, "startupProbe")
        in_time, answers = False, Counter[str]()
        while not in_time:
            pod, answers, in_time = await replaced(cluster, pod)
        assert set(answers) == {"http 200", "http ok", "grpc ok"}, answers
        assert await asyncio.to_thread(pod.stop) == 0
        assert await asyncio.to_thread(redis.stop) == 0
