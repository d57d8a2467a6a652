"""OpenRLHF's remote reward (`--reward.remote_url http://HOST:PORT/get_reward`), as of 0.11.2.

It posts one sample at a time, waits 180 seconds, tries five times a second apart, and then goes on without a
reward, which ends the run with another message. So a crowd is waited out here.
"""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from guerdon.columns import labelled
from guerdon.errors import value_of
from guerdon.texts import response_in
from guerdon_services.compat import routes
from guerdon_services.compat.asking import body_of, options_of, scored
from guerdon_services.runtime.dispatch import Dispatcher
from guerdon_services.runtime.problem import FieldError, InvalidFields

#: OpenRLHF gives up after 180.
_PATIENCE_S = 170.0


class GetReward(BaseModel):
    """Whole texts with their special tokens, the prompts they begin with, and their labels: lists of one length."""

    query: list[str]
    prompts: list[str] = []
    labels: list[Any] = []


def build_router(dispatch: Dispatcher) -> APIRouter:
    """The route; empty lists are answered by empty lists."""
    router = APIRouter(tags=["OpenRLHF"])

    async def get_reward(request: Request) -> Response:
        """A reward for every text: `rewards`, `scores` in [0, 1] for dynamic filtering, and `extra_logs`."""
        asked = await body_of(request, GetReward)
        count = len(asked.query)
        for field, values in (("prompts", asked.prompts), ("labels", asked.labels)):
            if values and len(values) != count:
                raise InvalidFields([FieldError(field, f"{len(values)} entries for {count} texts")])
        prompts = asked.prompts or [""] * count
        samples = [
            labelled(prompt or None, response_in(query, prompt), label)
            for query, prompt, label in zip(asked.query, prompts, asked.labels or [None] * count, strict=True)
        ]
        results = await scored(dispatch, samples, options_of(request), _PATIENCE_S)
        rewards = [value_of(result) for result in results]
        clipped = [min(1.0, max(0.0, reward)) for reward in rewards]
        return JSONResponse({"rewards": rewards, "scores": clipped, "extra_logs": {}})

    routes.add(router, "/get_reward", get_reward, GetReward)
    return router
