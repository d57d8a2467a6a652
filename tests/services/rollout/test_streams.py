"""Groups streamed while they are sampled, over real sockets, by the transformers engine."""

import asyncio
import itertools
import json
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import openai
import pytest

from guerdon.client import AsyncClient
from guerdon.types import GenerateResult, GenerateSample, Rollout, RolloutPiece, Sampling, Status
from guerdon.v1 import reward_pb2, rollout_pb2, rollout_pb2_grpc
from guerdon_services.rollout.engines.transformers import TransformersEngine
from guerdon_services.rollout.service import RolloutGenerator
from guerdon_services.rollout.settings import RolloutSettings
from guerdon_services.runtime.process import Process, running
from guerdon_services.runtime.scorer import GenerateJob
from guerdon_services.runtime.settings import Address, RuntimeSettings

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
LOCAL = Address("127.0.0.1", 0)


class Gate:
    """Lets an engine decode so many steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps = 0
        self._left = threading.Semaphore(0)
        step = TransformersEngine._step

        def held(engine: TransformersEngine, *arguments: Any) -> Any:
            assert self._left.acquire(timeout=60)
            self.steps += 1
            return step(engine, *arguments)

        monkeypatch.setattr(TransformersEngine, "_step", held)

    def let(self, steps: int) -> None:
        """So many steps more."""
        if steps:
            self._left.release(steps)

    def close(self) -> None:
        """No step more."""
        while self._left.acquire(blocking=False):
            pass


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


@pytest.fixture
def serve(tiny_llama: Path) -> Callable[..., Any]:
    @asynccontextmanager
    async def serving(**settings: Any) -> AsyncGenerator[Process]:
        service = RolloutGenerator(RolloutSettings(model=tiny_llama, **settings))
        async with running(service, RuntimeSettings(http=LOCAL, grpc=LOCAL)) as process:
            yield process

    return serving


def http_of(process: Process) -> httpx.AsyncClient:
    assert process.url is not None
    return httpx.AsyncClient(base_url=process.url, timeout=60, trust_env=False)


async def events(lines: AsyncIterator[str]) -> list[Any]:
    data = [line.removeprefix("data: ") async for line in lines if line]
    assert data.pop() == "[DONE]"
    return [json.loads(one) for one in data]


async def both(http: httpx.AsyncClient, path: str, **body: Any) -> tuple[dict[str, Any], list[Any]]:
    """The same request whole and streamed."""
    whole = await http.post(path, json=body)
    assert whole.status_code == 200, whole.text
    options = {"stream": True, "stream_options": {"include_usage": True}}
    async with http.stream("POST", path, json={**body, **options}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        return whole.json(), await events(response.aiter_lines())


def joined(chunks: Sequence[Any]) -> dict[int, dict[str, Any]]:
    """The choices that chunks add up to, in the form of a whole completion."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for delta in chunk["choices"]:
            known = choices.setdefault(delta["index"], delta)
            if known is delta:
                continue
            assert known["finish_reason"] is None, "nothing follows the last piece of a choice"
            known["text"] += delta["text"]
            known["finish_reason"] = delta["finish_reason"]
            if delta["logprobs"]:
                for name in ("tokens", "token_logprobs", "text_offset"):
                    known["logprobs"][name] += delta["logprobs"][name]
            if "token_ids" in delta:
                known["token_ids"] += delta["token_ids"]
                assert "prompt_token_ids" not in delta
    return choices


async def test_the_deltas_of_a_completion_are_its_choices(serve: Any) -> None:
    stops = [[], ["a", "\ufffd\ufffd", "7 "], ["\ufffd"], ["zz"]]
    async with serve() as process, http_of(process) as http:
        for seed, stop in itertools.product(range(3), stops):
            body = {
                "prompt": ["6+0+4=", "é€"], "n": 3, "seed": seed, "max_tokens": 24, "stop": stop,
                "min_tokens": 3 * seed, "return_token_ids": True, "logprobs": 1,
            }  # fmt: skip
            whole, [*chunks, last] = await both(http, COMPLETIONS, **body)
            choices = joined(chunks)
            assert [choices[number] for number in sorted(choices)] == whole["choices"]
            assert (last["choices"], last["usage"]) == ([], whole["usage"])
            assert len({chunk["id"] for chunk in chunks}) == 1


async def test_without_tokens_chunks_have_text(serve: Any) -> None:
    async with serve() as process, http_of(process) as http:
        body = {"prompt": "6+0+4=", "n": 3, "seed": 1, "max_tokens": 24}
        whole, [*chunks, _] = await both(http, COMPLETIONS, **body)
    choices = joined(chunks)
    assert [choices[number] for number in sorted(choices)] == whole["choices"]
    assert all(one["choices"][0]["text"] or one["choices"][0]["finish_reason"] for one in chunks)


async def test_text_comes_while_it_is_sampled_and_choices_take_turns(serve: Any, gate: Gate) -> None:
    body = {"prompt": "6+0+4=", "n": 2, "max_tokens": 9, "seed": 1, "stream": True, "ignore_eos": True}
    body["return_token_ids"] = True
    async with (
        serve() as process,
        http_of(process) as http,
        http.stream("POST", COMPLETIONS, json=body) as response,
    ):
        lines = (line async for line in response.aiter_lines() if line)
        seen = dict.fromkeys((0, 1), 0)
        for step in range(1, 9):
            while min(seen.values()) < step:
                choice = json.loads((await anext(lines)).removeprefix("data: "))["choices"][0]
                seen[choice["index"]] += len(choice["token_ids"])
            assert seen == dict.fromkeys((0, 1), step), "no token comes before it is sampled"
            assert gate.steps <= step
            gate.let(1)
        assert [line async for line in lines][-1] == "data: [DONE]"


async def test_a_chat_begins_with_its_role(serve: Any, gate: Gate) -> None:
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "seed": 5,
        "max_tokens": 12,
        "n": 2,
        "logprobs": True,
    }
    async with serve() as process, http_of(process) as http:
        gate.let(1000)
        whole = (await http.post(CHAT, json=body)).json()
        gate.close()
        async with http.stream("POST", CHAT, json={**body, "stream": True}) as response:
            lines = response.aiter_lines()
            first = await anext(lines)
            gate.let(1000)
            chunks = [json.loads(first.removeprefix("data: ")), *await events(lines)]
    for expected in whole["choices"]:
        deltas = [one["choices"][0] for one in chunks if one["choices"][0]["index"] == expected["index"]]
        others = [None] * (len(deltas) - 1)
        assert others
        assert [one["delta"].get("role") for one in deltas] == ["assistant", *others]
        assert "".join(one["delta"]["content"] for one in deltas) == expected["message"]["content"]
        assert [one["finish_reason"] for one in deltas] == [*others, expected["finish_reason"]]
        said = [token for one in deltas for token in one["logprobs"]["content"]]
        assert said == expected["logprobs"]["content"]
    assert {one["object"] for one in chunks} == {"chat.completion.chunk"}


async def test_a_client_that_leaves_ends_the_sampling(serve: Any, gate: Gate) -> None:
    async with serve() as process, http_of(process) as http:
        body = {
            "prompt": "a",
            "max_tokens": 100,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
        }
        gate.let(2)
        async with http.stream("POST", COMPLETIONS, json=body) as response:
            lines = response.aiter_lines()  # without a name it would be closed, and the connection with it
            await anext(lines)
            other = asyncio.create_task(http.post(COMPLETIONS, json={"prompt": "b", "max_tokens": 1}))
            async with asyncio.timeout(60):
                while not process.dispatcher.waiting:  # noqa: ASYNC110 - no event says so
                    await asyncio.sleep(0.01)
        # The connection is closed; when the service notices, no event says either.
        async with asyncio.timeout(60):
            while not other.done():
                gate.let(1)
                await asyncio.sleep(0.05)
        assert (await other).status_code == 200
    assert gate.steps < 90


PROMPTS = [GenerateSample(id="a", prompt="6+0+4="), GenerateSample(prompt="1+1=")]
#: Rows that end at different steps.
SAMPLING = Sampling(n=4, max_new_tokens=30, seed=2, stop=[*"abcdefghijklmnop", "\ufffd\ufffd"])


def client_of(process: Process, door: str) -> AsyncClient:
    url = process.url if door == "http" else f"grpc://{process.grpc}"
    assert url is not None
    return AsyncClient(url, timeout_s=120)


@pytest.mark.parametrize("door", ["http", "grpc"])
async def test_each_rollout_comes_ahead_of_its_group(serve: Any, door: str) -> None:
    async with serve() as process, client_of(process, door) as client:
        whole = await client.generate(PROMPTS, SAMPLING)
        plain = [one async for one in client.generate_stream(PROMPTS, SAMPLING)]
        items = [one async for one in client.generate_stream(PROMPTS, SAMPLING, each_rollout=True)]
    ahead: dict[int, dict[int, Rollout]] = {0: {}, 1: {}}
    complete = dict[int, GenerateResult]()
    for index, item in items:
        assert index not in complete
        if isinstance(item, RolloutPiece):
            assert item.number not in ahead[index]
            ahead[index][item.number] = item.rollout
        else:
            complete[index] = item
    for index, group in enumerate(whole):
        assert [ahead[index][number] for number in range(SAMPLING.n)] == complete[index].rollouts
        assert complete[index].rollouts == group.rollouts
        assert complete[index].id == PROMPTS[index].id
    assert [(index, group.rollouts) for index, group in sorted(plain)] == [  # type: ignore[union-attr]
        (index, group.rollouts) for index, group in enumerate(whole)
    ]


@pytest.mark.parametrize("door", ["http", "grpc"])
async def test_each_rollout_comes_as_it_finishes(serve: Any, gate: Gate, door: str) -> None:
    async with serve() as process, client_of(process, door) as client:
        gate.let(1000)
        [group] = await client.generate(PROMPTS[:1], SAMPLING)
        steps = [len(one.token_ids) - 1 for one in group.rollouts]
        assert len(set(steps)) > 2
        gate.close()
        done, stream = 0, client.generate_stream(PROMPTS[:1], SAMPLING, each_rollout=True)
        for step in sorted(set(steps)):
            gate.let(step - done)
            done = step
            due = {number for number, one in enumerate(steps) if one == step}
            while due:
                _, piece = await anext(stream)
                assert isinstance(piece, RolloutPiece)
                due.remove(piece.number)
                assert piece.rollout == group.rollouts[piece.number]
        [(_, last)] = [one async for one in stream]
        assert isinstance(last, GenerateResult)
        assert last.rollouts == group.rollouts


async def test_an_answer_in_one_piece_has_no_pieces(serve: Any) -> None:
    async with serve() as process, http_of(process) as http:
        body = {"samples": [{"prompt": "a"}], "sampling": {"n": 2, "max_new_tokens": 2}, "each_rollout": True}
        whole = (await http.post("/v1/generate", json=body)).json()
        lines = (
            await http.post("/v1/generate", json=body, headers={"accept": "application/x-ndjson"})
        ).text.splitlines()
        plain = (
            await http.post(
                "/v1/generate",
                json={**body, "each_rollout": False},
                headers={"accept": "application/x-ndjson"},
            )
        ).text.splitlines()
    assert [len(one["rollouts"]) for one in whole["results"]] == [2]
    assert [sorted(json.loads(line)) for line in lines] == [["index", "piece"]] * 2 + [["index", "result"]]
    assert [sorted(json.loads(line)) for line in plain] == [["index", "result"]]


async def test_the_messages_of_a_grpc_stream(serve: Any) -> None:
    async with serve() as process, grpc.aio.insecure_channel(str(process.grpc)) as channel:
        request = rollout_pb2.GenerateRequest(
            samples=[rollout_pb2.GenerateSample(prompt=reward_pb2.Prompt(text="a"))],
            sampling=rollout_pb2.Sampling(n=2, max_new_tokens=3),
            each_rollout=True,
        )
        stub = rollout_pb2_grpc.RolloutServiceStub(channel)
        *pieces, last = [one async for one in stub.GenerateStream(request)]
        whole = await stub.Generate(request)
    assert [one.HasField("result") for one in (*pieces, last)] == [False, False, True]
    assert sorted(one.piece.number for one in pieces) == [0, 1]
    assert all(one.piece.rollout == last.result.rollouts[one.piece.number] for one in pieces)
    assert len(whole.results[0].rollouts) == 2


@pytest.mark.parametrize("door", ["http", "grpc"])
async def test_a_batch_that_fails_on_the_way_never_repeats_what_was_given_out(
    serve: Any, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    step, broken = TransformersEngine._step, list[int]()

    def breaks(engine: TransformersEngine, *arguments: Any) -> Any:
        if len(arguments[0]) <= 4 and not broken:  # of eight rows some have ended
            broken.append(1)
            raise RuntimeError("no memory")
        return step(engine, *arguments)

    async with serve() as process, client_of(process, door) as client:
        lengths = [
            [len(one.token_ids) for one in group.rollouts]
            for group in await client.generate(PROMPTS, SAMPLING)
        ]
        monkeypatch.setattr(TransformersEngine, "_step", breaks)
        # The other prompt's rows go on to the end, so that nothing of them is given out before the failure.
        samples = [PROMPTS[0], PROMPTS[1].model_copy(update={"prompt": "2"})]
        items = [one async for one in client.generate_stream(samples, SAMPLING, each_rollout=True)]
    assert lengths
    assert broken
    results = {index: item for index, item in items if isinstance(item, GenerateResult)}
    told = {index for index, item in items if isinstance(item, RolloutPiece)}
    for index, result in results.items():
        pieces = [item for at, item in items if at == index and isinstance(item, RolloutPiece)]
        if result.status is Status.OK:
            assert [one.rollout for one in sorted(pieces, key=lambda one: one.number)] == result.rollouts
        else:
            assert (result.status, result.rollouts) == (Status.UNAVAILABLE, [])
            assert "after a part of it was given out" in result.reason
            assert index in told
    assert Status.UNAVAILABLE in {result.status for result in results.values()}


async def test_a_failure_after_some_text_is_the_last_event(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, steps = TransformersEngine._step, itertools.count()

    def breaks(engine: TransformersEngine, *arguments: Any) -> Any:
        if next(steps) == 5:
            raise RuntimeError("no memory")
        return step(engine, *arguments)

    monkeypatch.setattr(TransformersEngine, "_step", breaks)
    async with serve(served_name="tiny") as process:
        client = openai.AsyncOpenAI(base_url=f"{process.url}/v1", api_key="none", max_retries=0)
        stream = await client.completions.create(
            model="tiny",
            prompt="a",
            max_tokens=20,
            stream=True,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
        pieces = list[Any]()

        async def read() -> None:
            async for piece in stream:
                pieces.append(piece.choices[0])

        with pytest.raises(openai.APIError, match="no memory"):
            await read()
        await client.close()
    assert sum(len(piece.token_ids) for piece in pieces) == 6
    assert {piece.finish_reason for piece in pieces} == {None}


async def test_a_service_that_tells_nothing_streams_whole_choices(tiny_llama: Path) -> None:
    service = RolloutGenerator(RolloutSettings(model=tiny_llama))
    said = Rollout(response="yes", token_ids=[5, 6], logprobs=[-1, -2], finish_reason="stop", model_version=4)
    group = GenerateResult(status=Status.OK, rollouts=[said, said], prompt_token_ids=[3])

    def generate(batch: Sequence[GenerateJob]) -> list[GenerateResult]:
        return [group for _ in batch]

    service.generate = generate
    async with running(service, RuntimeSettings(http=LOCAL)) as process, http_of(process) as http:
        body = {"prompt": "a", "n": 2, "logprobs": 1, "return_token_ids": True}
        whole, [*chunks, _] = await both(http, COMPLETIONS, **body)
    assert [chunk["choices"][0] for chunk in chunks] == whole["choices"]
    assert {chunk["system_fingerprint"] for chunk in chunks} == {"v4"}
