"""vLLM's own routes for weights in reinforcement learning, of the same names and bodies as its server's.

A trainer that knows vLLM pauses the engine, sends weights through the transport that vLLM was started with (setting
`vllm={"weight_transfer_config": {"backend": "nccl"}}`), and lets it go on. `finish_weight_update` wants a whole number
as `weight_version`: it is the version of every rollout from then on.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, cast

from fastapi import APIRouter, Body, Query
from fastapi.responses import JSONResponse

from guerdon_services.rollout.engines.vllm_updates import Pause, Updates
from guerdon_services.runtime.scorer import NotReady

if TYPE_CHECKING:
    from guerdon_services.rollout.engines.vllm import VllmEngine
    from guerdon_services.rollout.engines.vllm_core import Core
    from guerdon_services.rollout.service import RolloutGenerator

#: What a body holds under one name.
Info = Annotated[dict[str, Any], Body(embed=True)]
Payload = Annotated[dict[str, Any] | list[dict[str, Any]], Body(embed=True)]


def add_routes(router: APIRouter, service: "RolloutGenerator") -> None:
    """Add the routes; they answer 409 to what needs a pause where there is none, and 503 without an engine."""

    async def run(work: Callable[[Updates], Awaitable[None]], said: dict[str, Any]) -> JSONResponse:
        try:
            engine = cast("VllmEngine", service.engine)
            await engine.call(_awaited(work(engine.updates)))
        except ValueError as error:
            return JSONResponse({"error": str(error)}, 409)
        except NotReady as error:
            return JSONResponse({"error": str(error)}, 503, headers={"Retry-After": "1"})
        except TimeoutError:
            return JSONResponse({"error": "it took longer than update_limit_s"}, 504)
        except Exception as error:
            return JSONResponse({"error": f"{type(error).__name__}: {error}"}, 500)
        return JSONResponse(said)

    async def sent(call: Callable[["Core"], Awaitable[None]], said: str, *, half: bool) -> JSONResponse:
        return await run(lambda updates: updates.transfer(call, half=half), {"message": said})

    async def pause(mode: Annotated[Pause, Query()] = "abort", clear_cache: bool = True) -> JSONResponse:
        return await run(lambda updates: updates.pause(mode), {"status": "paused"})

    async def resume() -> JSONResponse:
        return await run(lambda updates: updates.resume(), {"status": "resumed"})

    async def is_paused() -> JSONResponse:
        engine = cast("VllmEngine", service.engine)
        return JSONResponse({"is_paused": engine.updates.paused})

    async def weight_info() -> JSONResponse:
        return JSONResponse({"weight_version": str(service.engine.version), "state": service.engine.state})

    async def init_weight_transfer_engine(init_info: Info) -> JSONResponse:
        def call(core: "Core") -> Awaitable[None]:
            return core.llm.collective_rpc("init_weight_transfer_engine", kwargs={"init_info": init_info})

        # Before anything is paused: trainer and workers meet, and no weight moves.
        return await run(lambda updates: call(updates.core), {"message": "Weight transfer initialized"})

    async def start_weight_update() -> JSONResponse:
        return await sent(lambda core: core.llm.start_weight_update(), "Weight update started", half=True)

    async def update_weights(update_info: Payload) -> JSONResponse:
        def call(core: "Core") -> Awaitable[None]:
            return core.llm.collective_rpc("update_weights", kwargs={"update_info": update_info})

        return await sent(call, "Weights updated", half=True)

    async def finish_weight_update(
        weight_version: Annotated[str | None, Body(embed=True)] = None,
    ) -> JSONResponse:
        if weight_version is not None and not (weight_version.isascii() and weight_version.isdigit()):
            return JSONResponse({"error": "weight_version: must be a whole number"}, 422)

        version = service.engine.version + 1 if weight_version is None else int(weight_version)
        return await run(
            lambda updates: updates.transferred(version, lambda core: core.llm.finish_weight_update()),
            {"message": "Weight update finished"},
        )

    for endpoint in (pause, resume, start_weight_update, update_weights, finish_weight_update):
        router.add_api_route(f"/{endpoint.__name__}", endpoint, methods=["POST"], tags=["vLLM"])
    router.add_api_route(
        "/init_weight_transfer_engine", init_weight_transfer_engine, methods=["POST"], tags=["vLLM"]
    )
    for look in (is_paused, weight_info):
        router.add_api_route(f"/{look.__name__}", look, methods=["GET"], tags=["vLLM"])


async def _awaited(work: Awaitable[None]) -> None:
    await work
