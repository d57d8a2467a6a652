"""vLLM's own routes for weights in reinforcement learning, of the same names and bodies as its server's.

A trainer that knows vLLM pauses the engine, sends weights through the transport that vLLM was started with (setting
`vllm={"weight_transfer_config": {"backend": "nccl"}}`), and lets it go on. `finish_weight_update` wants a whole number
as `weight_version`: it is the version of every rollout from then on.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, cast

from fastapi import APIRouter, Body, Query
from fastapi.responses import JSONResponse

from guerdon_services.rollout.engines.vllm_hold import Hold
from guerdon_services.rollout.engines.vllm_updates import Pause
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
    routes = _Routes(service)
    for change in (
        routes.pause,
        routes.resume,
        routes.init_weight_transfer_engine,
        routes.start_weight_update,
        routes.update_weights,
        routes.finish_weight_update,
    ):
        router.add_api_route(f"/{change.__name__}", change, methods=["POST"], tags=["vLLM"])
    for look in (routes.is_paused, routes.weight_info):
        router.add_api_route(f"/{look.__name__}", look, methods=["GET"], tags=["vLLM"])


class _Routes:
    """Each public method is the route of its name."""

    def __init__(self, service: "RolloutGenerator") -> None:
        self._service = service

    async def pause(
        self, mode: Annotated[Pause, Query()] = "abort", clear_cache: bool = True
    ) -> JSONResponse:
        return await self._run(lambda hold: hold.pause(mode), {"status": "paused"})

    async def resume(self) -> JSONResponse:
        return await self._run(lambda hold: hold.resume(), {"status": "resumed"})

    async def init_weight_transfer_engine(self, init_info: Info) -> JSONResponse:
        def call(core: "Core") -> Awaitable[None]:
            return core.llm.collective_rpc("init_weight_transfer_engine", kwargs={"init_info": init_info})

        return await self._run(lambda hold: hold.meet(call), {"message": "Weight transfer initialized"})

    async def start_weight_update(self) -> JSONResponse:
        return await self._sent(lambda core: core.llm.start_weight_update(), "Weight update started")

    async def update_weights(self, update_info: Payload) -> JSONResponse:
        def call(core: "Core") -> Awaitable[None]:
            return core.llm.collective_rpc("update_weights", kwargs={"update_info": update_info})

        return await self._sent(call, "Weights updated")

    async def finish_weight_update(
        self, weight_version: Annotated[str | None, Body(embed=True)] = None
    ) -> JSONResponse:
        if weight_version is not None and not (weight_version.isascii() and weight_version.isdigit()):
            return JSONResponse({"error": "weight_version: must be a whole number"}, 422)

        async def finish(hold: Hold) -> None:
            version = self._service.engine.version + 1 if weight_version is None else int(weight_version)
            await hold.transferred(version, lambda core: core.llm.finish_weight_update())

        return await self._run(finish, {"message": "Weight update finished"})

    async def is_paused(self) -> JSONResponse:
        async def ask(engine: "VllmEngine") -> dict[str, Any]:
            return {"is_paused": engine.hold.paused}

        return await self._answered(ask)

    async def weight_info(self) -> JSONResponse:
        async def ask(engine: "VllmEngine") -> dict[str, Any]:
            return {"weight_version": str(engine.version), "state": engine.state}

        return await self._answered(ask)

    async def _sent(self, call: Callable[["Core"], Awaitable[None]], said: str) -> JSONResponse:
        """Weights come in part."""
        return await self._run(lambda hold: hold.transfer(call, half=True), {"message": said})

    async def _run(self, work: Callable[[Hold], Awaitable[None]], said: dict[str, Any]) -> JSONResponse:
        async def run(engine: "VllmEngine") -> dict[str, Any]:
            await engine.call(_awaited(work(engine.hold)))
            return said

        return await self._answered(run)

    async def _answered(self, ask: Callable[["VllmEngine"], Awaitable[dict[str, Any]]]) -> JSONResponse:
        try:
            return JSONResponse(await ask(cast("VllmEngine", self._service.engine)))
        except ValueError as error:
            return JSONResponse({"error": str(error)}, 409)
        except NotReady as error:
            return JSONResponse({"error": str(error)}, 503, headers={"Retry-After": "1"})
        except TimeoutError:
            return JSONResponse({"error": "it took longer than update_limit_s"}, 504)
        except Exception as error:
            return JSONResponse({"error": f"{type(error).__name__}: {error}"}, 500)


async def _awaited(work: Awaitable[None]) -> None:
    await work
