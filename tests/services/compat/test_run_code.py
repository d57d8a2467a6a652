"""SandboxFusion's `/run_code`, as verl 0.9.1 posts to it and reads it."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from guerdon import errors
from guerdon.types import ScoreRequest
from guerdon_services.code.service import CodeScorer, CodeSettings
from guerdon_services.code.supervision import Starved
from guerdon_services.runtime.process import Process, running
from guerdon_services.runtime.settings import Address, RuntimeSettings

#: As `call_sandbox_api` writes it; limits that no machine is too slow for.
BODY: dict[str, Any] = {
    "compile_timeout": 60,
    "run_timeout": 60,
    "stdin": "",
    "memory_limit_MB": 512,
    "language": "python",
    "files": {},
    "fetch_files": [],
}


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def process() -> AsyncGenerator[Process]:
    """A code service, which the last test stops."""
    settings = RuntimeSettings(http=Address("127.0.0.1", 0), drain_s=250.0, drain_delay_s=0.0)
    async with running(CodeScorer(CodeSettings(workers=1)), settings) as process:
        yield process


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(process: Process) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of its HTTP door."""
    async with httpx.AsyncClient(base_url=process.url or "", timeout=200, trust_env=False) as client:
        yield client


async def run(http: httpx.AsyncClient, code: str, **more: Any) -> dict[str, Any]:
    answer = await http.post("/run_code", json={**BODY, "code": code, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_programs(http: httpx.AsyncClient) -> None:
    good = await run(http, "print(int(input()) + 1)", stdin="1\n")
    assert (good["status"], good["compile_result"]) == ("Success", None)
    outcome = good["run_result"]
    assert (outcome["status"], outcome["return_code"], outcome["stdout"]) == ("Finished", 0, "2\n")

    bad = await run(http, "print('a'); raise ValueError('no')")
    assert (bad["status"], bad["run_result"]["return_code"]) == ("Failed", 1)
    assert bad["run_result"]["stdout"] == "a\n"
    assert "ValueError: no" in bad["run_result"]["stderr"]

    # Python has no compiler in SandboxFusion: its syntax errors come when it runs.
    broken = await run(http, "print(")
    assert (broken["status"], broken["run_result"]["return_code"]) == ("Failed", 1)
    assert "SyntaxError" in broken["run_result"]["stderr"]

    endless = await run(http, "while True: pass", run_timeout=0.5)
    assert (endless["status"], endless["run_result"]["status"]) == ("Failed", "TimeLimitExceeded")
    assert endless["run_result"]["return_code"] is None


async def test_what_is_not_offered(http: httpx.AsyncClient) -> None:
    for more in ({"language": "cobol"}, {"language": ""}, {"files": {"a": "b"}}, {"run_timeout": -1}):
        answer = await http.post("/run_code", json={**BODY, "code": "", **more})
        assert answer.status_code == 422, more


async def test_a_sandbox_that_fails_is_504_which_verl_tries_again(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def starved(*_: Any) -> Any:
        raise Starved("the machine is too busy")

    monkeypatch.setattr(CodeScorer, "_run", starved)
    answer = await http.post("/run_code", json={**BODY, "code": "print(1)"})
    assert answer.status_code == 504
    assert "SandboxError" not in answer.text
    assert "too busy" in answer.json()["detail"]


async def test_a_crowd_is_504(
    process: Process, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: Any) -> Any:
        raise errors.Overloaded("full", retry_after_s=1000.0)

    monkeypatch.setattr(process.dispatcher, "score", full)
    answer = await http.post("/run_code", json={**BODY, "code": "print(1)"})
    assert (answer.status_code, "full" in answer.text) == (504, True)


async def until_refused(process: Process) -> None:
    async with asyncio.timeout(200):
        while True:
            await process.dispatcher.score(ScoreRequest(samples=[]))
            await asyncio.sleep(0.01)


async def test_a_program_that_runs_when_the_service_stops_is_answered(
    process: Process, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, stopping = threading.Event(), threading.Event()
    once = CodeScorer.run_program

    def run_program(self: CodeScorer, *arguments: Any) -> Any:
        began.set()
        assert stopping.wait(200)
        return once(self, *arguments)

    monkeypatch.setattr(CodeScorer, "run_program", run_program)
    running_one = asyncio.create_task(run(http, "print(1)"))
    assert await asyncio.to_thread(began.wait, 200)
    drained = asyncio.create_task(process.drain())
    with pytest.raises(errors.Unavailable):
        await until_refused(process)
    answer = await http.post("/run_code", json={**BODY, "code": "print(2)"})
    # verl tries again what is a 504, and elsewhere counts a failed test.
    assert answer.status_code == 504
    assert not drained.done()
    stopping.set()
    assert (await running_one)["run_result"]["stdout"] == "1\n"
    assert await drained
