"""A batch or an event loop that is stuck is noticed, its process replaced, its work redelivered; a slow one is not."""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from doors import HERE, Service, door_service

from guerdon import Sample
from guerdon.client import AsyncClient
from guerdon.supervisor import ProcessSpec, Supervisor
from guerdon.types import Status
from tests.waiting import PATIENCE_S, until, until_async

#: Seconds of silence that count as stuck where processes end for it: many times what a busy machine holds one up.
STUCK_S = 12.0


def supervised(folder: Path, redis_url: str, name: str) -> ProcessSpec:
    """A process that ends when it is stuck, with a queue of its own and no samples beside each other."""
    (folder / name).mkdir()
    options = {
        "http": "127.0.0.1:0",
        "ready_file": str(folder / name / "ready.json"),
        "queue": redis_url,
        "queue_name": name,
        "lease_s": 3.0,
        "stuck_after_s": STUCK_S,
        "exit_when_stuck": True,
        "log_format": "json",
    }
    words = [json.dumps(options), f"folder={folder / name}", "max_items=1"]
    return ProcessSpec(
        name, [sys.executable, str(HERE / "door_service.py"), *words], {}, folder / name / "log"
    )


@pytest.fixture
def fleet(tmp_path: Path, redis_url: str) -> Iterator[Supervisor]:
    """One process for each way to be stuck, and one that is only slow."""
    names = ("hang", "freeze", "stall", "slow")
    with Supervisor([supervised(tmp_path, redis_url, name) for name in names]) as supervisor:
        until(lambda: all((tmp_path / name / "ready.json").exists() for name in names))
        yield supervisor


async def test_what_is_stuck_is_replaced_and_its_work_done(
    fleet: Supervisor, tmp_path: Path, redis_url: str, figures: Callable[..., None]
) -> None:
    async def score(name: str, word: str) -> list[Any]:
        samples = [Sample(id="first", response=word), *(Sample(response=str(i)) for i in range(5))]
        async with AsyncClient(redis_url, service=name, timeout_s=PATIENCE_S) as client:
            return await client.score(samples)

    async def stalled() -> list[Any]:
        before = fleet.pids["stall"]
        url = json.loads((tmp_path / "stall" / "ready.json").read_text())["http"]
        await until_async(lambda: answers(f"{url}/readyz"))
        async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http:
            with pytest.raises(httpx.TransportError):
                await http.post(f"{url}/stall")
        await asyncio.to_thread(until, lambda: fleet.pids.get("stall", before) != before)
        return await score("stall", "0")

    every = await asyncio.gather(
        score("hang", "hang"), score("freeze", "freeze"), stalled(), score("slow", f"slow {STUCK_S + 2}")
    )
    for results in every:
        assert {one.status for one in results} == {Status.OK}
        assert [one.value for one in results] == [0.0, 0.0, 1.0, 2.0, 3.0, 4.0]
    restarts = fleet.restarts
    assert min(restarts[name] for name in ("hang", "freeze", "stall")) >= 1
    assert restarts["slow"] == 0, (tmp_path / "slow" / "log").read_text()
    log = (tmp_path / "hang" / "log").read_text()
    assert '"event": "stuck"' in log
    assert "in _one" in log, "no stacks were written"
    assert "Timeout" in (tmp_path / "freeze" / "log").read_text()
    figures(restarts=restarts, lost=0)


async def answers(url: str) -> bool:
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http:
        return (await http.get(url)).status_code == 200


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service that is soon impatient with its batches, but goes on."""
    made = door_service(tmp_path, stuck_after_s=3.0)
    yield made
    made.close()


async def test_probes_say_that_a_batch_is_stuck(service: Service) -> None:
    async with httpx.AsyncClient(base_url=service.http, trust_env=False, timeout=PATIENCE_S) as http:

        async def alive(status: int) -> bool:
            return (await http.get("/healthz")).status_code == status

        await until_async(lambda: alive(200))
        held = asyncio.create_task(http.post("/v1/score", json={"samples": [{"response": "gate"}]}))
        await until_async(lambda: alive(503))
        said, ready = (await http.get("/healthz")).json(), await http.get("/readyz")
        assert said["status"] == "stuck"
        assert "no sign of life" in said["reason"]
        assert (ready.status_code, ready.json()["status"]) == (503, "stuck")
        service.open_gate()
        assert (await held).status_code == 200
        await until_async(lambda: alive(200))
    assert service.terminate() == 0
