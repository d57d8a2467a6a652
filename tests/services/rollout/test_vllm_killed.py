"""`guerdon serve rollout` with vLLM as a process that is killed: `make test-vllm`. Elsewhere these tests skip."""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.services.rollout.processes import gone, until

pytest.importorskip("vllm", reason="vLLM is not installed here: make test-vllm")

pytestmark = [pytest.mark.timeout(1800), pytest.mark.filterwarnings("default")]


@contextmanager
def served(folder: Path, tmp_path: Path) -> Iterator[tuple[psutil.Process, Path]]:
    """`guerdon serve rollout` as a process, and the file that names its doors."""
    doors = ["--http", "127.0.0.1:0", "--ready-file", str(tmp_path / "ready.json")]
    settings = ["engine=vllm", f"model={folder}", "kv_cache_mb=64"]
    words = [sys.executable, "-m", "guerdon", "serve", "rollout", *doors, *settings]
    with (tmp_path / "log").open("wb") as log:
        service = subprocess.Popen(words, stdout=log, stderr=log)
        try:
            yield psutil.Process(service.pid), tmp_path / "ready.json"
        finally:
            service.kill()
            service.wait()


def words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # it ended between two looks, or is a zombie
        return ""


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
        until(ready.exists, minutes=10)
        url = json.loads(ready.read_text())["http"]
        until(lambda: httpx.get(f"{url}/readyz", trust_env=False).status_code == 200, minutes=10)
        body = {
            "samples": [{"id": str(number), "prompt_token_ids": [60]} for number in range(64)],
            "sampling": {"n": 8, "max_new_tokens": 500, "ignore_eos": True},
        }
        answer = pool.submit(httpx.post, f"{url}/v1/generate", json=body, timeout=600, trust_env=False)
        [worker] = [one for one in service.children(recursive=True) if "Worker" in one.name()]
        began = worker.cpu_times().user
        until(lambda: worker.cpu_times().user > began + 0.5, minutes=10)
        assert not answer.done()
        killed(service)
        assert isinstance(answer.exception(), httpx.TransportError)
