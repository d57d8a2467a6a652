"""docs/operations.md against the process itself: its options, metrics, outcomes, statuses and log events."""

import ast
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from guerdon import AsyncClient, Sample
from guerdon.queue import QueueStats
from guerdon.types import Status
from guerdon_services.runtime import cli, connection, problem
from guerdon_services.runtime.metrics import Metrics

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "operations.md").read_text()
SERVICES = ROOT / "services" / "guerdon_services"
#: Where operators' log lines come from.
LOGGING = [*(SERVICES / "runtime").glob("*.py"), SERVICES / "models" / "following.py"]


def first_cells(heading: str, header: str) -> list[str]:
    """The first cells of the table with this header, in the section with this heading."""
    section = PAGE.split(f"\n{heading}\n", 1)[1]
    table = section.split(f"\n{header}\n", 1)[1].split("\n\n", 1)[0]
    return [row.replace(r"\|", "/").split("|")[1].strip() for row in table.splitlines()[1:]]


def code_words(cells: list[str]) -> list[str]:
    return [word for cell in cells for word in re.findall(r"`([^`]+)`", cell)]


def documented_metrics() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for word in code_words(first_cells("## Metrics", "| name | meaning | watch |")):
        name, _, labels = word.rstrip("}").partition("{")
        found[name] = set(labels.split(",")) if labels else set()
    return found


def exposed_metrics(text: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith("guerdon_") and not family.name.endswith("_created"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            found[name] = {label for sample in family.samples for label in sample.labels} - {"le"}
    return found


async def test_every_metric_is_on_the_page_and_every_one_on_the_page_exists(
    serve: Any, scorers: ModuleType, redis_url: str, until: Any
) -> None:
    service = scorers.Echo(scorers.EchoSettings())
    service.device_memory = lambda: {"allocated": 1, "reserved": 2, "free": 3}
    async with serve(service, queue=redis_url) as served:
        for url in (served.process.url, f"grpc://{served.grpc}", redis_url):
            async with AsyncClient(url, service="echo") as client:
                assert [one.value for one in await client.score([Sample(response="2")])] == [2.0]
        await until(
            lambda: 'guerdon_queue_entries{state="dead"} 0.0' in served.process.metrics.exposition().decode()
        )
        text = (await served.http.get("/metrics")).text
    assert exposed_metrics(text) == documented_metrics()
    for line in (
        'guerdon_requests_total{door="http",operation="score",outcome="ok"} 1.0',
        'guerdon_requests_total{door="grpc",operation="score",outcome="ok"} 1.0',
        'guerdon_requests_total{door="queue",operation="score",outcome="ok"} 1.0',
        'guerdon_worker_entries_total{status="ok"} 1.0',
        'guerdon_items_total{operation="score",status="ok"} 3.0',
        "guerdon_worker_wait_seconds_count 1.0",
        "guerdon_worker_redeliveries_total 0.0",
        'guerdon_device_memory_bytes{state="free"} 3.0',
        'guerdon_service_info{service="echo",version="0.0.1"} 1.0',
        "guerdon_worker_connected 1.0",
    ):
        assert line in text.splitlines()


def test_what_is_seen_of_the_queue_is_published() -> None:
    metrics = Metrics()
    metrics.queue_seen(QueueStats(queued=5, pending=4, dead=3, oldest_ms=2500, workers=1))
    lines = metrics.exposition().decode().splitlines()
    for line in (
        'guerdon_queue_entries{state="queued"} 5.0',
        'guerdon_queue_entries{state="pending"} 4.0',
        'guerdon_queue_entries{state="dead"} 3.0',
        "guerdon_queue_oldest_seconds 2.5",
        "guerdon_queue_workers 1.0",
    ):
        assert line in lines


async def test_without_a_gpu_there_is_no_memory_of_one(serve: Any, scorers: ModuleType) -> None:
    async with serve(scorers.Echo(scorers.EchoSettings())) as served:
        text = (await served.http.get("/metrics")).text
    assert "guerdon_device_memory_bytes{" not in text


def test_every_option_of_the_command_is_on_the_page() -> None:
    options = {
        f"--{name.replace('_', '-')}"
        for name in inspect.signature(cli.serve).parameters
        if name not in ("name", "assignments")
    }
    words = code_words(first_cells("## Start", "| option | default | meaning |"))
    assert {word.split()[0] for word in re.findall(r"--[a-z-]+", " ".join(words))} == options


def test_every_outcome_of_a_request_is_on_the_page() -> None:
    [row] = [line for line in PAGE.splitlines() if line.startswith("| `guerdon_requests_total")]
    listed = set(re.findall(r"`(\w+)`", row.split("|")[2])) - {"operation", "other"}
    refusals = {words.outcome for _, words in problem._WORDS}  # pyright: ignore[reportPrivateUsage]
    before = set(connection._OUTCOMES.values())  # pyright: ignore[reportPrivateUsage]
    assert listed == {"ok", "cancelled"} | refusals | before


def test_every_status_is_on_the_page() -> None:
    listed = code_words(first_cells("## What an item can come to", "| status | meaning | do |"))
    assert listed == [status.value for status in Status]


def test_every_event_of_the_log_is_on_the_page() -> None:
    levels = ("debug", "info", "warning", "error", "exception")
    logged: set[str] = set()
    for file in LOGGING:
        for call in ast.walk(ast.parse(file.read_text())):
            match call:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="log" | "_log"), attr=level), args=[event, *_]
                ) if level in levels:
                    assert isinstance(event, ast.Constant), (
                        f"{file}: an event is a constant, to be searched for"
                    )
                    logged.add(str(event.value))
                case _:
                    pass
    assert set(code_words(first_cells("## Logs", "| event | level | meaning |"))) == logged
