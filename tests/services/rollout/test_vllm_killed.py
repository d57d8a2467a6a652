"""`guerdon serve rollout` with vLLM as a process that is killed: `make test-vllm`. Elsewhere these tests skip."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from guerdon.client import AsyncClient
from guerdon.types import GenerateResult, GenerateSample, RolloutPiece, Sampling, Status
from tests.services.rollout.processes import gone, until

pytest.importorskip("vllm", reason="vLLM is not installed here: make test-vllm")

pytestmark = [pytest.mark.timeout(1800), pytest.mark.filterwarnings("default")]


@contextmanager
def served(folder: Path, tmp_path: Path) -> Iterator[tuple[psutil.Process, Path]]:
    """`guerdon serve rollout` as a process, and the file that names its doors."""
    doors = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--ready-file", str(tmp_path / "ready.json")]
    # Room for 4096 tokens.
    settings = ["engine=vllm", f"model={folder}", "kv_cache_mb=2"]
    words = [sys.executable, "-m", "guerdon", "serve", "rollout", *doors, *settings]
    with (tmp_path / "log").open("wb") as log:
        service = subprocess.Popen(words, stdout=log, stderr=log)
        try:
            yield psutil.Process(service.pid), tmp_path / "ready.json"
        finally:
            service.kill()
            service.wait()


def opened(ready: Path) -> dict[str, str]:
    """The doors of a service, once it takes work."""
    until(ready.exists, minutes=10)
    doors = json.loads(ready.read_text())
    url = doors["http"]
    until(lambda: httpx.get(f"{url}/readyz", trust_env=False).status_code == 200, minutes=10)
    return doors


def words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # it ended between two looks, or is a zombie
        return ""


def preemptions(url: str) -> float:
    """How often responses had to make room for others."""
    text = httpx.get(f"{url}/metrics", trust_env=False).text
    [value] = re.findall(r"^guerdon_rollout_preemptions_total (\S+)$", text, re.MULTILINE)
    return float(value)


def killed(service: psutil.Process) -> None:
    """Kill a service, and see that its processes end."""
    started = service.children(recursive=True)
    service.kill()
    until(lambda: all(gone(one) for one in [service, *started]), minutes=10)


def test_nothing_outlives_a_service_that_is_killed_while_it_starts(folder: Path, tmp_path: Path) -> None:
    with served(folder, tmp_path) as (service, _):
        # Before the engine's process has imported vLLM, or met its parent.
        until(lambda: any("spawn_main" in words(one) for one in service.children()), minutes=10)
        killed(service)


def test_nothing_outlives_a_service_that_is_killed_while_it_samples(folder: Path, tmp_path: Path) -> None:
    with served(folder, tmp_path) as (service, ready), ThreadPoolExecutor(1) as pool:
        url = opened(ready)["http"]
        body = {
            "samples": [{"id": str(number), "prompt_token_ids": [60]} for number in range(64)],
            "sampling": {"n": 8, "max_new_tokens": 500, "ignore_eos": True},
        }
        answer = pool.submit(httpx.post, f"{url}/v1/generate", json=body, timeout=600, trust_env=False)
        [worker] = [one for one in service.children(recursive=True) if "Worker" in one.name()]
        began = worker.cpu_times().user
        until(lambda: worker.cpu_times().user > began + 0.5, minutes=10)
        until(lambda: preemptions(url) > 0, minutes=10)
        assert not answer.done()
        killed(service)
        assert isinstance(answer.exception(), httpx.TransportError)


LONG = 480
ASKED = {
    "prompt": [60, 61, 62], "max_tokens": LONG, "ignore_eos": True, "logprobs": 1, "return_token_ids": True,
}  # fmt: skip
#: Streams that go on from what was given, and those that are drawn again and compared with it.
STREAMS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"seed": 5, "presence_penalty": 0.5},
    {"temperature": 0, "frequency_penalty": 0.5},
    {
        "temperature": 1.0,
        "repetition_penalty": 1.1,
        "min_tokens": 200,
        "stop": ["a stop string that never comes"],
    },
]


class Streamed:
    """A streamed completion, as far as it has come."""

    def __init__(self) -> None:
        self.choice: dict[str, Any] = {
            "text": "",
            "token_ids": [],
            "token_logprobs": [],
            "finish_reason": None,
        }
        self.begun = asyncio.Event()

    async def read(self, http: httpx.AsyncClient, body: dict[str, Any]) -> None:
        async with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
            async for data in events(response):
                [one] = data["choices"]
                assert self.choice["finish_reason"] is None
                self.choice["text"] += one["text"]
                self.choice["token_ids"] += one["token_ids"]
                self.choice["token_logprobs"] += one["logprobs"]["token_logprobs"]
                self.choice["finish_reason"] = one["finish_reason"]
                if len(self.choice["token_ids"]) > 20:
                    self.begun.set()


async def events(response: httpx.Response) -> AsyncIterator[Any]:
    async for line in response.aiter_lines():
        if line and line != "data: [DONE]":
            data = json.loads(line.removeprefix("data: "))
            assert "error" not in data, data
            yield data


async def rollouts(client: AsyncClient, begun: asyncio.Event) -> tuple[list[RolloutPiece], GenerateResult]:
    """A group over gRPC: what came ahead of its result, and that."""
    sampling = Sampling(n=12, max_new_tokens=LONG, ignore_eos=True, stop_token_ids=[30, 31])
    ahead: list[RolloutPiece] = []
    async for _, item in client.generate_stream(
        [GenerateSample(prompt_token_ids=[60])], sampling, each_rollout=True
    ):
        if isinstance(item, GenerateResult):
            return ahead, item
        ahead.append(item)
        begun.set()
    raise AssertionError("the stream has no end")


async def test_streams_outlive_an_engine_that_is_killed(folder: Path, tmp_path: Path) -> None:
    with served(folder, tmp_path) as (service, ready):
        doors = await asyncio.to_thread(opened, ready)
        async with (
            httpx.AsyncClient(base_url=doors["http"], timeout=600, trust_env=False) as http,
            AsyncClient(f"grpc://{doors['grpc']}", timeout_s=600) as client,
        ):
            wholes = [
                (await http.post("/v1/completions", json={**ASKED, **body})).json()["choices"][0]
                for body in STREAMS
            ]
            [engine] = [one for one in service.children() if "Engine" in one.name()]
            streams, begun = [Streamed() for _ in STREAMS], asyncio.Event()
            group = asyncio.create_task(rollouts(client, begun))
            reading = [
                asyncio.create_task(one.read(http, {**ASKED, **body}))
                for one, body in zip(streams, STREAMS, strict=True)
            ]
            async with asyncio.timeout(600):
                for event in (begun, *(one.begun for one in streams)):
                    await event.wait()
            engine.kill()
            given = [list(one.choice["token_ids"]) for one in streams]
            assert max(map(len, given)) < LONG
            assert not group.done()
            await asyncio.gather(*reading)
            ahead, result = await group
    assert gone(engine)
    for one, before, whole, body in zip(streams, given, wholes, STREAMS, strict=True):
        assert one.choice["token_ids"][: len(before)] == before
        assert len(one.choice["token_logprobs"]) == len(one.choice["token_ids"]) == LONG
        assert one.choice["finish_reason"] == "length"
        if body.get("temperature") == 0 or "seed" in body:
            assert one.choice["token_ids"] == whole["token_ids"]
            assert one.choice["text"] == whole["text"]
            logprobs = whole["logprobs"]["token_logprobs"]
            assert one.choice["token_logprobs"] == pytest.approx(logprobs, abs=1e-4)
    assert result.status is Status.OK
    assert len(result.rollouts) == 12
    for piece in ahead:
        assert piece.rollout == result.rollouts[piece.number]
