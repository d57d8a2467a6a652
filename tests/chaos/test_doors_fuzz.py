"""Whatever comes in at a door: no crash, no server error but honest overload, nothing kept."""

import asyncio
import importlib.util
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import grpc.aio
import pytest
from door_fuzz import grpc_bytes, http_bytes, json_body, proto_body, several
from doors import Service, Wire, Wires, door_service, guerdon_serve, request

from tests.waiting import PATIENCE_S, until

IN_FULL = "in full only: make chaos"
TESTS = Path(__file__).parent.parent
#: Inputs on their way at the same time.
AT_ONCE = 24
#: Seconds until a client gives up what may rightly be waited for: the rest of a body, say.
GIVE_UP_S = 0.5
GROWN_MB = 50
#: Answers in which a server says that it is at fault, or overloaded.
HONEST = {429, 503}
FINE = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}

Seen = Counter[str]
Figures = Callable[..., None]


async def each(inputs: Sequence[bytes], use: Callable[[bytes], Awaitable[str]]) -> Seen:
    """Use every input, several at a time; what came back, counted."""
    left, seen = iter(inputs), Seen()

    async def worker() -> None:
        for data in left:
            seen[await use(data)] += 1

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return seen


def check_http(status: int, data: bytes) -> str:
    assert status < 500 or status in HONEST, (status, data)
    return str(status)


async def http_bodies(url: str, inputs: Sequence[bytes]) -> Seen:
    """Bodies in requests that are right."""
    async with Wires() as wires:
        free = [await wires.open(url) for _ in range(AT_ONCE)]

        async def use(data: bytes) -> str:
            wire = free.pop()
            status, _ = await wire.ask(request(data))
            assert status, data
            free.append(wire)
            return check_http(status, data)

        return await each(inputs, use)


async def raw_http(url: str, inputs: Sequence[bytes]) -> Seen:
    """Whole requests, on a connection each."""

    async def use(data: bytes) -> str:
        async with Wires() as wires:
            wire = await wires.open(url)
            try:
                async with asyncio.timeout(GIVE_UP_S):
                    status, _ = await wire.ask(data)
            except (TimeoutError, ValueError):
                return "waits"
            return check_http(status, data)

    return await each(inputs, use)


async def grpc_bodies(target: str, inputs: Sequence[bytes]) -> Seen:
    """Messages of calls that are right."""
    wrong: list[tuple[grpc.aio.AioRpcError, bytes]] = []
    async with grpc.aio.insecure_channel(target) as channel:
        unary: Any = channel.unary_unary("/guerdon.v1.RewardService/Score")
        stream: Any = channel.unary_stream("/guerdon.v1.RewardService/ScoreStream")

        async def use(data: bytes) -> str:
            try:
                if len(data) % 2:
                    await unary(data, timeout=PATIENCE_S)
                else:
                    async for _ in stream(data, timeout=PATIENCE_S):
                        pass
            except grpc.aio.AioRpcError as error:
                wrong.extend([] if error.code() in FINE else [(error, data)])
                return error.code().name
            return "OK"

        seen = await each(inputs, use)
    assert wrong == []
    return seen


async def raw_grpc(target: str, inputs: Sequence[bytes]) -> Seen:
    """Bytes on a connection each; whatever the library does with them, it must live on."""

    async def use(data: bytes) -> str:
        async with Wires() as wires:
            wire: Wire = await wires.open(f"http://{target}")
            wire.writer.write(data)
            try:
                async with asyncio.timeout(GIVE_UP_S):
                    await wire.ended()
            except TimeoutError:
                return "waits"
            return "ended"

    return await each(inputs, use)


async def all_doors(service: Service, name: str, count: int, seed: int) -> Seen:
    """So many inputs, four tenths each as bodies, one tenth each as bytes."""
    seen = Seen()
    seen += await http_bodies(service.http, several(json_body, name, 4 * count // 10, seed))
    seen += await grpc_bodies(service.grpc, several(proto_body, name, 4 * count // 10, seed + 1))
    seen += await raw_http(service.http, several(http_bytes, name, count // 10, seed + 2))
    seen += await raw_grpc(service.grpc, several(grpc_bytes, name, count // 10, seed + 3))
    return seen


@pytest.fixture
def service(name: str, tmp_path: Path, full: bool) -> Iterator[Service]:
    """A service that takes every sample for a number, or one that people use."""
    if not full and name != "doors":
        pytest.skip(IN_FULL)
    if name == "doors":
        made = door_service(tmp_path)
    else:
        made = guerdon_serve(tmp_path, name, "workers=1")
        made.wait_ready()
    yield made
    made.close()


@pytest.mark.parametrize("name", ["doors", "math", "rules"])
async def test_any_bytes(service: Service, name: str, full: bool, figures: Figures) -> None:
    count = 33_400 if full else 500
    # What is made once, and what grows to its size, is there after a first round.
    seen = await all_doors(service, name, count // 10, seed=1)
    service.remember()
    seen += await all_doors(service, name, count, seed=2)
    assert service.process.poll() is None, service.text
    await asyncio.to_thread(until, lambda: service.forgot_its_clients)
    grown_mb = service.grown_mb
    assert grown_mb < GROWN_MB
    doors = ("http", "grpc")
    wrong = [
        f'guerdon_requests_total{{door="{door}",operation="score",outcome="internal"}}' for door in doors
    ]
    assert [await asyncio.to_thread(service.counter, name) for name in wrong] == [0, 0]
    await asyncio.to_thread(until, lambda: service.counter("guerdon_pending_items") == 0)
    # Some of it gets as far as the scorer.
    scored = 'guerdon_items_total{operation="score",status="ok"}'
    assert await asyncio.to_thread(service.counter, scored) > count // 50
    figures(inputs=seen.total(), answers=dict(seen), grown_mb=round(grown_mb, 1), kept=service.kept)
    assert service.terminate() == 0, service.text
    assert "Traceback" not in service.text, service.text
    # Nobody who reaches a port can write into the log.
    assert [line for line in service.text.splitlines() if not line.startswith('{"service": ')] == []


#: What schemathesis looks at. That wrong samples are answered one by one is the contract, so that is not refused.
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
#: A version that is not there yet is no fault of the server's; nobody waits for one for long.
HONEST_CONFIG = """[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "503", "504"]
[parameters]
"query.timeout_s" = 0.05
"""
SERVICES = ["math", "code", "rules", "process_reward", "reference_reward", "rollout"]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Makes the random Llama that the tests of the services use."""

    def make() -> Path:
        spec = importlib.util.spec_from_file_location("services_conftest", TESTS / "services" / "conftest.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        folder = tmp_path_factory.mktemp("llama")
        module._save(folder, lambda size: module.LlamaForCausalLM(module._llama(size)))
        return folder

    return make


@pytest.mark.parametrize("name", SERVICES)
def test_the_schema_of_every_service(
    name: str, tmp_path: Path, tiny_model: Callable[[], Path], full: bool, figures: Figures
) -> None:
    if not full and name != "rules":
        pytest.skip(IN_FULL)
    words = [] if name in ("math", "code", "rules") else [f"model={tiny_model()}"]
    words += [f"weights_dir={tmp_path / 'weights'}"] if name == "process_reward" else []
    # Neither versions that never come nor thousands of tokens are waited for.
    words += ["version_wait_s=0", "max_new_tokens=16"] if name == "rollout" else []
    service = guerdon_serve(tmp_path, name, *words)
    try:
        service.wait_ready()
        assert urlsplit(service.http).port
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{service.http}/openapi.json"]
        command += ["--checks", CHECKS, "--max-examples", "400" if full else "5", "--seed", "1", "--no-color"]
        command += ["--warnings", "off", "--continue-on-failure", "--request-timeout", str(PATIENCE_S)]
        command += ["--suppress-health-check", "all", "--phases", "coverage,fuzzing" if full else "fuzzing"]
        (tmp_path / "schemathesis.toml").write_text(HONEST_CONFIG)
        ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        [summary] = [line.strip() for line in ran.stdout.splitlines() if "generated," in line]
        assert service.terminate() == 0, service.text
        assert "Traceback" not in service.text, service.text
        figures(service=name, cases=summary)
    finally:
        service.close()
