"""slime's remote reward (`--rm-type remote_rm --rm-url http://HOST:PORT/rm`), as of August 2026.

It posts one sample, takes the JSON answer as the reward as it stands, waits 120 seconds, and tries ten times before
its rollout fails. `?key=score` answers `{"score": ...}` for `--reward-key score`.
"""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from guerdon.columns import labelled
from guerdon.errors import value_of
from guerdon.texts import prompt_of, without_end_tokens
from guerdon_services.compat import routes
from guerdon_services.compat.asking import body_of, options_of, scored
from guerdon_services.runtime.dispatch import Dispatcher

#: slime gives up after 120.
_PATIENCE_S = 110.0


class Turn(BaseModel):
    """One turn of a conversation."""

    role: str
    content: str


class RemoteReward(BaseModel):
    """What slime sends of a sample."""

    prompt: str | list[Turn] | None = None
    response: str
    label: Any = None


def build_router(dispatch: Dispatcher) -> APIRouter:
    """The route."""
    router = APIRouter(tags=["slime"])

    async def rm(request: Request) -> Response:
        """The reward, as a bare number."""
        asked = await body_of(request, RemoteReward)
        prompt = asked.prompt
        if isinstance(prompt, list):
            prompt = [turn.model_dump() for turn in prompt]
        sample = labelled(prompt_of(prompt), without_end_tokens(asked.response), asked.label)
        [result] = await scored(dispatch, [sample], options_of(request), _PATIENCE_S)
        reward, key = value_of(result), request.query_params.get("key")
        return JSONResponse({key: reward, "reason": result.reason} if key else reward)

    routes.add(router, "/rm", rm, RemoteReward, query=("key",))
    return router
