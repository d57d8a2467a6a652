"""NeMo Gym's resources server (`POST /verify`), as of 0.7.0.

The answer is the request with `reward`. Where there is none the request fails (429, 503, 504, 500, 422): Gym's agents
and the taskset of verifiers both take that as a failed rollout, and not every client of `/verify` knows
`mask_sample`. With `?failures=mask` the answer is what Gym's own failed judges send: 200, `mask_sample`,
`failure_kind`, `failure_reason`, and a `reward` of 0.0 that these fields take back.
"""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict

from guerdon.columns import Columns
from guerdon.errors import value_of
from guerdon.integrations.gym_texts import response_text, task_prompt
from guerdon.types import Result, Status
from guerdon_services.compat import routes
from guerdon_services.compat.asking import body_of, options_of, scored
from guerdon_services.runtime.dispatch import Dispatcher
from guerdon_services.runtime.problem import FieldError, InvalidFields

#: Names of Gym's shared vocabulary (nemo_gym/failure_kinds.py).
_KINDS = {
    Status.INVALID_INPUT: "verifier_error",
    Status.TIMEOUT: "transport_timeout",
    Status.OVERLOADED: "provider_quota_exhausted",
    Status.UNAVAILABLE: "provider_unavailable",
    Status.INTERNAL_ERROR: "verifier_error",
}


class Verify(BaseModel):
    """A row: what the model was asked, OpenAI's Responses object, and the fields of the data set."""

    model_config = ConfigDict(extra="allow")

    responses_create_params: dict[str, Any]
    response: dict[str, Any]


class Session(BaseModel):
    """What a session begins with; nothing is kept of it."""

    model_config = ConfigDict(extra="allow")


def build_router(dispatch: Dispatcher) -> APIRouter:
    """The routes."""
    router = APIRouter(tags=["NeMo Gym"])

    async def verify(request: Request) -> Response:
        """The row with its reward; `?references=FIELD` names the field with the right answer."""
        row = (await body_of(request, Verify)).model_dump()
        failures = request.query_params.get("failures")
        if failures not in (None, "mask"):
            raise InvalidFields([FieldError("failures", f"must be mask or absent, not {failures!r}")])
        columns = Columns(references=request.query_params.get("references"))
        sample = columns.judged(row, prompt=task_prompt(row), response=response_text(row["response"]))
        [result] = await scored(dispatch, [sample], options_of(request), None)
        if result.value is None and failures == "mask":
            return JSONResponse({**row, **masked(row, result)})
        return JSONResponse({**row, "reward": value_of(result), "reward_reason": result.reason})

    async def seed_session(request: Request) -> Response:
        """Nothing: a verifier keeps no session."""
        return JSONResponse({})

    async def reverify_mode() -> Response:
        """Rows may be verified again, by themselves."""
        return JSONResponse("stateless")

    routes.add(router, "/verify", verify, Verify, query=("references", "failures"))
    routes.add(router, "/seed_session", seed_session, Session, required=False)
    router.add_api_route("/reverify_mode", reverify_mode, methods=["GET"], response_model=None)
    return router


def masked(row: dict[str, Any], result: Result) -> dict[str, Any]:
    """The fields by which Gym, and NeMo RL of any age, tell that a row has no reward."""
    reason = f"{result.status}: {result.reason}"
    config = row.get("instance_config")
    return {
        "reward": 0.0,
        "mask_sample": True,
        "failure_kind": _KINDS[result.status],
        "failure_reason": reason,
        "instance_config": {**(config if isinstance(config, dict) else {}), "mask_sample": True},
        "_ng_failure_class": "judge_failed",
        "_ng_failure_judge_error": reason,
    }
