"""The bare frameworks beneath our doors, with nothing on top of them that the answer does not need."""

import asyncio
from collections.abc import Sequence
from typing import Any

from peers.transport_sides import Side
from peers.transport_streams import Client, serve


class Streams(Side):
    """redis-py and two Lua scripts by hand, see `transport_streams`."""

    name = "raw streams"
    queued = True
    pipelined = False

    def serve(self) -> None:
        """The worker's loop."""
        serve(self.setting, pipelined=self.pipelined)

    async def open(self) -> None:
        """The client and its two loops."""
        self._client = Client(self.setting.redis_url, pipelined=self.pipelined)

    async def call(self, texts: Sequence[str]) -> list[float]:
        """An entry per text."""
        return list(await asyncio.gather(*(self._client.call(text) for text in texts)))

    async def close(self) -> None:
        """Disconnect."""
        await self._client.close()


class PipelinedStreams(Streams):
    """The same, with what has gathered sent in one round trip."""

    name = "raw pipelined"
    pipelined = True


class FastApi(Side):
    """A FastAPI route with the contract's JSON models, on uvicorn with uvloop; httpx calls it."""

    name = "fastapi echo"

    def serve(self) -> None:
        """One process."""
        import uvicorn
        from fastapi import FastAPI

        from guerdon.types import Result, ScoreRequest, ScoreResponse, Status

        app = FastAPI()

        async def echo(request: ScoreRequest) -> ScoreResponse:
            return ScoreResponse(
                results=[Result(id=one.id, status=Status.OK, value=1.0) for one in request.samples]
            )

        app.post("/v1/score")(echo)
        uvicorn.run(app, host="127.0.0.1", port=self.setting.port, access_log=False, log_level="warning")

    async def open(self) -> None:
        """One pool of connections, as large as needed."""
        import httpx

        from guerdon import types

        self._types = types
        self._url = f"http://127.0.0.1:{self.setting.port}/v1/score"
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._client = httpx.AsyncClient(limits=limits, timeout=300)

    async def call(self, texts: Sequence[str]) -> list[float]:
        """One request with all texts."""
        types = self._types
        request = types.ScoreRequest(samples=[types.Sample(response=text) for text in texts])
        answer = await self._client.post(
            self._url,
            content=request.model_dump_json(exclude_unset=True).encode(),
            headers={"Content-Type": "application/json"},
        )
        response = types.ScoreResponse.model_validate_json(answer.content)
        return [result.value or 0.0 for result in response.results]

    async def close(self) -> None:
        """Disconnect."""
        await self._client.aclose()


class GrpcAio(Side):
    """A grpc.aio method with the contract's protobuf messages, on uvloop; its stub calls it. Nothing is checked."""

    name = "grpc.aio echo"

    def serve(self) -> None:
        """One process."""
        import uvloop

        uvloop.run(self._serve())

    async def _serve(self) -> None:
        import grpc.aio

        from guerdon.v1 import reward_pb2, reward_pb2_grpc

        class Echo(reward_pb2_grpc.RewardServiceServicer):
            async def Score(self, request: Any, context: Any) -> Any:
                results = [
                    reward_pb2.Result(id=one.id, status=reward_pb2.STATUS_OK, value=1.0)
                    for one in request.samples
                ]
                return reward_pb2.ScoreResponse(results=results)

        server = grpc.aio.server()
        reward_pb2_grpc.add_RewardServiceServicer_to_server(Echo(), server)
        await self._run(server)

    async def _run(self, server: Any) -> None:
        server.add_insecure_port(f"127.0.0.1:{self.setting.port}")
        await server.start()
        await server.wait_for_termination()

    async def open(self) -> None:
        """One channel."""
        import grpc.aio

        from guerdon.v1 import reward_pb2, reward_pb2_grpc

        self._messages: Any = reward_pb2
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.setting.port}")
        self._stub: Any = reward_pb2_grpc.RewardServiceStub(self._channel)

    async def call(self, texts: Sequence[str]) -> list[float]:
        """One request with all texts."""
        samples = [self._messages.Sample(response=text) for text in texts]
        response = await self._stub.Score(self._messages.ScoreRequest(samples=samples))
        return [result.value for result in response.results]

    async def close(self) -> None:
        """Disconnect."""
        await self._channel.close()


class GrpcModels(GrpcAio):
    """The same with the contract's models at both ends, as FastAPI has them: what arrives was checked."""

    name = "grpc.aio models"

    async def _serve(self) -> None:
        import grpc.aio

        from guerdon import codec
        from guerdon.types import Result, ScoreRequest, ScoreResponse, Status

        async def echo(body: bytes, _: Any) -> bytes:
            request = codec.decode(ScoreRequest, body)
            return codec.encode(
                ScoreResponse(
                    results=[Result(id=one.id, status=Status.OK, value=1.0) for one in request.samples]
                )
            )

        handlers = {"Score": _any(grpc).unary_unary_rpc_method_handler(echo)}
        server = grpc.aio.server()
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("guerdon.v1.RewardService", handlers)]
        )
        await self._run(server)

    async def open(self) -> None:
        """One channel."""
        import grpc.aio

        from guerdon import codec, types

        self._codec, self._types = codec, types
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.setting.port}")
        self._score = _any(self._channel).unary_unary("/guerdon.v1.RewardService/Score")

    async def call(self, texts: Sequence[str]) -> list[float]:
        """One request with all texts."""
        types, codec = self._types, self._codec
        request = types.ScoreRequest(samples=[types.Sample(response=text) for text in texts])
        answer = await self._score(codec.encode(request))
        return [result.value or 0.0 for result in codec.decode(types.ScoreResponse, answer).results]


def _any(untyped: Any) -> Any:
    """grpc has no usable types."""
    return untyped
