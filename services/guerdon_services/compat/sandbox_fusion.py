"""SandboxFusion's `POST /run_code`, answered by the code service.

    reward.sandbox_fusion.url=http://HOST:PORT/run_code      (verl)

SandboxFusion says 200 whatever happened; a sandbox that failed has status SandboxError, which verl counts as a test
that did not pass, as it does every status but 504, which it tries again. So here a run that told nothing about the
program is a 504, a crowded or stopping service too, and no status at all is SandboxError.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from guerdon import errors
from guerdon_services.compat import routes
from guerdon_services.compat.asking import body_of, scored
from guerdon_services.runtime.dispatch import Dispatcher
from guerdon_services.runtime.problem import FieldError, InvalidFields

#: SandboxFusion's names for languages that have another one here.
_LANGUAGES = {"nodejs": "javascript", "R": "r"}
#: verl waits ten seconds longer than the program may take.
_PATIENCE_S = 9.0

Seconds = Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)]


class RunCode(BaseModel):
    """A program and its input."""

    model_config = ConfigDict(extra="ignore")

    code: str
    language: Annotated[str, Field(min_length=1)] = "python"
    stdin: str | None = None
    compile_timeout: Seconds = 10.0
    run_timeout: Seconds = 10.0
    #: Below 0: as the service has it.
    memory_limit_MB: Annotated[int, Field(lt=2**31)] = -1
    files: dict[str, Any] = {}
    fetch_files: list[str] = []


@dataclass(frozen=True)
class Ran:
    """How a program ended; `compiled` is False where it never ran because a compiler refused it."""

    stdout: str
    stderr: str
    return_code: int
    seconds: float
    timed_out: bool = False
    compiled: bool = True


class Runner(Protocol):
    """What the route needs of the code service."""

    def run_program(
        self, language: str, source: str, stdin: str, wall_s: float, memory_mb: int | None
    ) -> Ran:
        """Run a program once, within the service's own limits.

        Raises:
            InvalidRequest: the language is not offered.
            Unavailable: the run told nothing about the program.
        """
        ...


def build_router(service: Runner, dispatch: Dispatcher) -> APIRouter:
    """The route; programs run in the threads of the service, beside those that are scored."""
    router = APIRouter(tags=["SandboxFusion"])

    async def run_code(request: Request) -> Response:
        """What the program wrote, and how it ended."""
        asked = await body_of(request, RunCode)
        if asked.files or asked.fetch_files:
            raise InvalidFields([FieldError("files", "programs get no files here, only their input")])
        patience_s = asked.compile_timeout + asked.run_timeout + _PATIENCE_S
        try:
            async with asyncio.timeout(patience_s):
                # An empty request is admitted when one with samples would be.
                await scored(dispatch, [], {}, patience_s)
                ran = await dispatch.lane.call(_run(service, asked))
        except (TimeoutError, errors.Unavailable, errors.Overloaded) as error:
            raise errors.Timeout(f"the program was not run: {error or 'no room in time'}") from error
        return JSONResponse(_answer(ran))

    routes.add(router, "/run_code", run_code, RunCode)
    return router


def _run(service: Runner, asked: RunCode) -> Callable[[], Ran]:
    language = _LANGUAGES.get(asked.language, asked.language)
    memory_mb = asked.memory_limit_MB if asked.memory_limit_MB > 0 else None
    return lambda: service.run_program(language, asked.code, asked.stdin or "", asked.run_timeout, memory_mb)


def _answer(ran: Ran) -> dict[str, Any]:
    outcome = {
        "status": "TimeLimitExceeded" if ran.timed_out else "Finished",
        "execution_time": ran.seconds,
        "return_code": None if ran.timed_out else ran.return_code,
        "stdout": ran.stdout,
        "stderr": ran.stderr,
    }
    good = ran.compiled and not ran.timed_out and ran.return_code == 0
    return {
        "status": "Success" if good else "Failed",
        "message": "",
        "compile_result": None if ran.compiled else outcome,
        "run_result": outcome if ran.compiled else None,
        "executor_pod_name": None,
        "files": {},
    }
