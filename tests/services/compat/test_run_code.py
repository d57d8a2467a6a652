"""SandboxFusion's `/run_code`, as verl 0.9.1 posts to it and reads it."""

from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from guerdon_services.code.service import CodeScorer, CodeSettings
from guerdon_services.code.supervision import Starved
from guerdon_services.runtime.process import running
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


@pytest.fixture
async def http() -> AsyncGenerator[httpx.AsyncClient]:
    """A client of a code service's HTTP door."""
    async with (
        running(
            CodeScorer(CodeSettings(workers=1)), RuntimeSettings(http=Address("127.0.0.1", 0))
        ) as process,
        httpx.AsyncClient(base_url=process.url or "", timeout=200, trust_env=False) as client,
    ):
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
    for more in ({"language": "cobol"}, {"files": {"a": "b"}}, {"run_timeout": -1}):
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
