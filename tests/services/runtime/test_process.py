"""The life of a real process: signals, ports, crashes."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from guerdon import codec
from guerdon.queue import Producer, Reply
from guerdon.types import Result, ScoreRequest, Status


def score(url: str, *responses: str, timeout: float = 60) -> list[dict[str, Any]]:
    samples = [{"response": one} for one in responses]
    answer = httpx.post(f"{url}/v1/score", json={"samples": samples}, timeout=timeout, trust_env=False)
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


EXECUTING = 'guerdon_inflight_batches{operation="score"} 1.0'


def wait_until(child: Any, path: str, holds: Callable[[httpx.Response], bool]) -> None:
    end = time.monotonic() + 200
    while not holds(httpx.get(f"{child.http}{path}", trust_env=False, timeout=60)):
        assert time.monotonic() < end, child.log.read_text()
        time.sleep(0.02)


async def test_sigterm_under_load_loses_nothing_and_exits_zero(spawn: Any, until: Any) -> None:
    child = spawn("Echo", "max_items=1", log_format="json")
    child.wait_ready()
    async with httpx.AsyncClient(base_url=child.http, timeout=60, trust_env=False) as http:

        async def one() -> httpx.Response:
            return await http.post("/v1/score", json={"samples": [{"response": "sleep0.05"}] * 2})

        calls = [asyncio.ensure_future(one()) for _ in range(10)]

        async def admitted() -> bool:
            # A connection that is not accepted when its server stops listening is reset.
            text = (await http.get("/metrics")).text
            counts = [
                f'guerdon_{name}{{operation="score"'
                for name in ("items_total", "pending_items", "inflight_batches")
            ]
            lines = [line for line in text.splitlines() if line.startswith(tuple(counts))]
            return sum(float(line.split()[-1]) for line in lines) == 20

        await until(admitted)
        child.process.send_signal(signal.SIGTERM)
        answers = await asyncio.gather(*calls)
    assert await asyncio.to_thread(child.wait) == 0, child.log.read_text()
    for answer in answers:
        assert answer.status_code == 200
        assert [one["status"] for one in answer.json()["results"]] == ["ok", "ok"]
    events = [json.loads(line)["event"] for line in child.log.read_text().splitlines()]
    assert events == ["listening", "ready", "stopping", "draining", "closed"]


def test_a_second_signal_ends_at_once(spawn: Any) -> None:
    child = spawn("Echo", "max_items=1")
    child.wait_ready()
    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(score, child.http, "sleep30")
        wait_until(child, "/metrics", lambda answer: EXECUTING in answer.text)
        child.process.send_signal(signal.SIGTERM)
        wait_until(child, "/readyz", lambda answer: answer.status_code == 503)
        child.process.send_signal(signal.SIGTERM)
        assert child.wait(10) == 128 + signal.SIGTERM
        assert isinstance(lost.exception(), httpx.TransportError)


def test_work_that_outlasts_the_drain_is_unavailable_not_a_reward(spawn: Any) -> None:
    child = spawn("Echo", "max_items=1", drain_s=0.2)
    child.wait_ready()
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(score, child.http, "sleep30", "1")
        wait_until(child, "/metrics", lambda answer: EXECUTING in answer.text)
        child.process.send_signal(signal.SIGTERM)
        results = late.result(20)
    assert child.wait(20) == 1
    assert [(one["status"], one["value"]) for one in results] == [("unavailable", None)] * 2


def test_work_is_taken_while_load_balancers_learn_of_the_drain(spawn: Any) -> None:
    child = spawn("Echo", drain_delay_s=1.5)
    child.wait_ready()
    child.process.send_signal(signal.SIGTERM)
    wait_until(child, "/readyz", lambda answer: answer.status_code == 503)
    assert score(child.http, "1")[0]["value"] == 1.0
    assert child.wait() == 0


def test_ready_comes_after_open_and_alive_before(spawn: Any) -> None:
    child = spawn("Echo", "open_s=1.5")
    with httpx.Client(base_url=child.http, trust_env=False, timeout=60) as http:
        assert http.get("/healthz").status_code == 200
        starting = http.get("/readyz")
        refused = http.post("/v1/score", json={"samples": []})
        child.wait_ready()
        assert http.post("/v1/score", json={"samples": []}).status_code == 200
    assert (starting.status_code, starting.json()["status"]) == (503, "starting")
    assert (refused.status_code, refused.json()["detail"]) == (503, "the service is starting")
    child.process.send_signal(signal.SIGINT)
    assert child.wait() == 0


def test_sigterm_while_opening_exits_cleanly(spawn: Any) -> None:
    child = spawn("Echo", "open_s=1.0")
    child.process.send_signal(signal.SIGTERM)
    assert child.wait() == 0, child.log.read_text()


def test_a_taken_port_is_one_clear_line(spawn: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AssertionError, match=f"cannot listen on 127.0.0.1:{port}"):
            spawn("Echo", http=f"127.0.0.1:{port}")
        with pytest.raises(AssertionError, match=f"cannot listen on 127.0.0.1:{port}"):
            spawn("Echo", grpc=f"127.0.0.1:{port}")


def test_the_ready_file_of_an_earlier_life_is_gone_before_the_doors_open(spawn: Any, tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text('{"http": "http://127.0.0.1:1"}')
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(AssertionError, match="cannot listen"),
    ):
        spawn("Echo", http=f"127.0.0.1:{taken.getsockname()[1]}", ready_file=str(old))
    assert not old.exists()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("", "FileNotFoundError: no such model"),
        ("exit", "RuntimeError: SystemExit: no such model"),
        # asyncio cannot bring this one back from a thread: whoever waited would wait for ever.
        ("stop", "RuntimeError: StopIteration"),
    ],
)
def test_a_service_that_cannot_open_exits_with_one(spawn: Any, how: str, words: str) -> None:
    child = spawn("Broken", f"label={how}")
    assert child.wait() == 1
    assert words in child.log.read_text()
    assert "the service could not open" in child.log.read_text()


def test_streams_that_were_closed_before_the_start_are_nobody_elses(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    serve = [sys.executable, "-m", "guerdon", "serve", "rules", "--http", "127.0.0.1:0"]
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *serve, "--ready-file", str(ready)]
    with subprocess.Popen(command) as process:
        try:
            end = time.monotonic() + 120
            while not ready.exists():
                assert process.poll() is None
                assert time.monotonic() < end
                time.sleep(0.02)
            url = json.loads(ready.read_text())["http"]
            assert httpx.get(f"{url}/healthz", trust_env=False, timeout=60).status_code == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_a_service_that_cannot_open_says_so_even_when_it_was_told_to_stop(spawn: Any) -> None:
    child = spawn("Broken", "open_s=1.0")
    child.process.send_signal(signal.SIGTERM)
    assert child.wait() == 1
    assert "no such model" in child.log.read_text()
    assert "closed" not in child.log.read_text()


async def test_sigkill_mid_batch_loses_nothing(spawn: Any, redis_url: str, until: Any) -> None:
    options = {"queue": redis_url, "lease_s": 1.0}
    child = spawn("Echo", "max_items=4", **options)
    producer = Producer(redis_url, "echo")
    bodies = [
        codec.encode(ScoreRequest.model_validate({"samples": [{"id": str(index), "response": "sleep0.02"}]}))
        for index in range(60)
    ]
    futures = [await producer.submit("score", body) for body in bodies]
    for kills in range(3):
        # By completions, not by time: a kill before the first would test the start.
        await until(lambda kills=kills: sum(future.done() for future in futures) >= 10 * (kills + 1))
        os.kill(child.process.pid, signal.SIGKILL)
        child.wait()
        child = spawn("Echo", "max_items=4", **options)
    replies: list[Reply] = await asyncio.wait_for(asyncio.gather(*futures), 60)
    await producer.close()
    child.process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(child.wait) == 0
    results = [codec.decode(Result, reply.body) for reply in replies]
    assert [one.id for one in results] == [str(index) for index in range(60)]
    assert {one.status for one in results} == {Status.OK}


async def test_ports_are_chosen_and_the_service_is_opened_and_closed(serve: Any, scorers: ModuleType) -> None:
    service = scorers.Echo(scorers.EchoSettings())
    async with serve(service) as served:
        assert service.opened
        assert served.process.http.port > 0
        assert served.process.grpc.port > 0
        assert not service.closed
    assert service.closed
