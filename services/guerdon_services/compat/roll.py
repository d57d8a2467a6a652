"""ROLL's reward system (`RemoteRewardSystemWorker`), as of August 2026.

    reward_system_config: {submit_url: http://HOST:PORT/submit_task, get_result_url: http://HOST:PORT/task_result}

ROLL submits a task, then asks every two seconds until `errcode` is 0, for `timeout` seconds, five times over. After
that it counts 0, and has no word for "no reward". So a failure that may pass is repeated here for as long as ROLL
asks, and `errcode` is 0 only with a reward. Results are kept in this process: put no load balancer in between that does
not stick.
"""

import asyncio
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, cast

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from guerdon import errors
from guerdon.columns import labelled
from guerdon.types import Options, Result, Sample, Status, failed
from guerdon_services.compat import routes
from guerdon_services.compat.asking import body_of, options_of, scored
from guerdon_services.runtime.dispatch import Dispatcher

#: ROLL's `errcode`s: done; running. Any other is logged by ROLL, which asks on.
_DONE, _RUNNING, _FAILED, _UNKNOWN = 0, 1, 2, 3
#: Seconds that a result is kept after nobody can ask for it any more, and how many tasks are kept at most.
_KEPT_S, _MOST = 60.0, 100_000
_PAUSE_S = 1.0


class SubmitTask(BaseModel):
    """One response to score; what is not named here is not needed."""

    model_config = ConfigDict(extra="allow")

    prompt: str = ""
    response: str
    #: `ground_truth`, or `test_cases` of a program.
    reward_info: Any = None
    #: Seconds that ROLL asks for the result.
    timeout: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] = 300.0


class TaskResult(BaseModel):
    """Which task is asked for."""

    model_config = ConfigDict(extra="allow")

    reward_request_id: str


@dataclass
class _Kept:
    task: "asyncio.Task[Result]"
    started: datetime
    forget_at: float


class Tasks:
    """Tasks that were submitted, by id, for as long as somebody may ask for them."""

    def __init__(self, dispatch: Dispatcher) -> None:
        self._dispatch = dispatch
        self._kept: dict[str, _Kept] = {}

    def submit(self, sample: Sample, options: Options, timeout_s: float) -> str:
        """Begin a task; its id.

        Raises:
            Overloaded: too many are kept.
        """
        now = time.monotonic()
        for id in [id for id, kept in self._kept.items() if kept.forget_at < now]:
            self._kept.pop(id).task.cancel()
        if len(self._kept) >= _MOST:
            raise errors.Overloaded(f"{len(self._kept)} tasks are kept already", retry_after_s=5.0)
        id = uuid.uuid4().hex
        task = asyncio.create_task(self._result(sample, options, now + timeout_s))
        self._kept[id] = _Kept(task, datetime.now(UTC), now + timeout_s + _KEPT_S)
        return id

    def answer(self, id: str) -> dict[str, Any]:
        """What ROLL is told of a task."""
        kept = self._kept.get(id)
        if kept is None:
            return {"errcode": _UNKNOWN, "errmsg": "no such task, or it was forgotten"}
        times = {"start_time": kept.started.isoformat(), "end_time": datetime.now(UTC).isoformat()}
        if not kept.task.done():
            return {"errcode": _RUNNING, "errmsg": "running", **times}
        result = kept.task.result()
        if result.value is None:
            return {"errcode": _FAILED, "errmsg": f"no reward: {result.status}: {result.reason}", **times}
        scores: dict[str, Any] = {result.scorer: {"score": result.value, "debug_info": {}}}
        return {
            "errcode": _DONE,
            "errmsg": "",
            "reward_score": result.value,
            "dimention_reward_score": scores,
            **times,
        }

    async def _result(self, sample: Sample, options: Options, ends: float) -> Result:
        """The sample's result; never raises."""
        result = failed(Status.UNAVAILABLE, "not asked")
        while (left_s := ends - time.monotonic()) > 0:
            try:
                [result] = await scored(self._dispatch, [sample], options, left_s)
            except errors.GuerdonError as error:
                result = failed(error.status, str(error))
            if not result.status.retryable:
                break
            await asyncio.sleep(min(_PAUSE_S, left_s))
        return result


def build_router(dispatch: Dispatcher) -> APIRouter:
    """The routes."""
    router, tasks = APIRouter(tags=["ROLL"]), Tasks(dispatch)

    async def submit_task(request: Request) -> Response:
        """Begin to score a response; the id of the task."""
        asked = await body_of(request, SubmitTask)
        label = asked.reward_info
        if isinstance(label, dict):
            info = cast(dict[str, Any], label)
            label = info.get("ground_truth", info.get("test_cases"))
        sample = labelled(asked.prompt or None, asked.response, label)
        id = tasks.submit(sample, options_of(request), asked.timeout)
        return JSONResponse({"reward_request_id": id, "errcode": _DONE, "errmsg": ""})

    async def task_result(request: Request) -> Response:
        """The task's reward, once `errcode` is 0; 1 while it runs."""
        return JSONResponse(tasks.answer((await body_of(request, TaskResult)).reward_request_id))

    routes.add(router, "/submit_task", submit_task, SubmitTask)
    routes.add(router, "/task_result", task_result, TaskResult, method="GET")
    return router
