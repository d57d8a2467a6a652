"""The OpenAI routes, over a real socket."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from guerdon.types import GenerateResult, Status
from guerdon_services.rollout.service import RolloutGenerator
from guerdon_services.rollout.settings import RolloutSettings
from guerdon_services.runtime.process import running
from guerdon_services.runtime.scorer import GenerateJob
from guerdon_services.runtime.settings import Address, RuntimeSettings
from tests.services.rollout import openai_calls

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


@pytest.fixture
def service(tiny_llama: Path) -> RolloutGenerator:
    return RolloutGenerator(RolloutSettings(model=tiny_llama, served_name="tiny", version_wait_s=0))


@pytest.fixture
async def http(service: RolloutGenerator) -> AsyncGenerator[httpx.AsyncClient]:
    async with running(service, RuntimeSettings(http=Address("127.0.0.1", 0))) as process:
        assert process.url is not None
        async with httpx.AsyncClient(base_url=process.url, timeout=60, trust_env=False) as client:
            yield client


async def post(http: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def refusal(http: httpx.AsyncClient, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = await http.post(path, content=content)
    return response.status_code, response.json()["error"]


async def test_the_official_client(http: httpx.AsyncClient) -> None:
    async with openai.AsyncOpenAI(base_url=f"{http.base_url}/v1", api_key="none", max_retries=0) as client:
        await openai_calls.run(client)


async def test_models(http: httpx.AsyncClient) -> None:
    listing = (await http.get("/v1/models")).json()
    assert listing["object"] == "list"
    assert [model["id"] for model in listing["data"]] == ["tiny"]


async def test_a_completion_equals_the_native_answer(http: httpx.AsyncClient) -> None:
    answer = await post(
        http, COMPLETIONS, model="tiny", prompt="6+0+4=", max_tokens=7, seed=3, n=2, logprobs=1,
        return_token_ids=True,
    )  # fmt: skip
    native = await post(
        http,
        "/v1/generate",
        samples=[{"prompt": "6+0+4="}],
        sampling={"n": 2, "max_new_tokens": 7, "seed": 3},
    )
    group = native["results"][0]
    assert answer["object"] == "text_completion"
    assert answer["model"] == "tiny"
    assert answer["system_fingerprint"] == "v0"
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    for choice, rollout in zip(answer["choices"], group["rollouts"], strict=True):
        assert choice["text"] == rollout["response"]
        assert choice["token_ids"] == rollout["token_ids"]
        assert choice["prompt_token_ids"] == group["prompt_token_ids"]
        assert choice["finish_reason"] == rollout["finish_reason"]
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(rollout["logprobs"])
        tokens, offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
        assert offsets == [len("".join(tokens[:index])) for index in range(len(tokens))]
    tokens = sum(len(rollout["token_ids"]) for rollout in group["rollouts"])
    assert answer["usage"] == {"prompt_tokens": 6, "completion_tokens": tokens, "total_tokens": 6 + tokens}


async def test_every_form_of_prompt(http: httpx.AsyncClient) -> None:
    def texts(answer: dict[str, Any]) -> list[str]:
        return [choice["text"] for choice in answer["choices"]]

    greedy = {"temperature": 0, "max_tokens": 5}
    [one] = texts(await post(http, COMPLETIONS, prompt="1+1=", **greedy))
    [other] = texts(await post(http, COMPLETIONS, prompt="9+8=", **greedy))
    native = await post(
        http,
        "/v1/generate",
        samples=[{"prompt": p} for p in ("1+1=", "9+8=")],
        sampling={"max_new_tokens": 1},
    )
    ids = [result["prompt_token_ids"] for result in native["results"]]
    assert texts(await post(http, COMPLETIONS, prompt=["1+1=", "9+8="], **greedy)) == [one, other]
    assert texts(await post(http, COMPLETIONS, prompt=ids[0], **greedy)) == [one]
    assert texts(await post(http, COMPLETIONS, prompt=ids, n=2, **greedy)) == [one, one, other, other]


async def test_default_length_is_openais(http: httpx.AsyncClient) -> None:
    answer = await post(http, COMPLETIONS, prompt="a", seed=0, temperature=1e-9)
    assert answer["usage"]["completion_tokens"] <= 16


async def test_chat(http: httpx.AsyncClient) -> None:
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    sampling = {"seed": 4, "max_completion_tokens": 6, "logprobs": True, "top_logprobs": 0, "tools": []}
    answer = await post(http, CHAT, messages=[{"role": "user", "content": parts}], **sampling)
    plain = await post(http, COMPLETIONS, prompt="<user>hi\n<assistant>", seed=4, max_tokens=6, logprobs=0)
    [choice] = answer["choices"]
    assert answer["object"] == "chat.completion"
    assert choice["message"] == {"role": "assistant", "content": plain["choices"][0]["text"]}
    logprobs = [one["logprob"] for one in choice["logprobs"]["content"]]
    assert logprobs == pytest.approx(plain["choices"][0]["logprobs"]["token_logprobs"])
    assert all(bytes(one["bytes"]).decode() == one["token"] for one in choice["logprobs"]["content"])
    assert answer["usage"] == plain["usage"]


async def test_stop(http: httpx.AsyncClient) -> None:
    whole = (await post(http, COMPLETIONS, prompt="a", seed=1, max_tokens=30))["choices"][0]["text"]
    for stop in (whole[6:8], ["\x00never", whole[6:8]]):
        [choice] = (await post(http, COMPLETIONS, prompt="a", seed=1, max_tokens=30, stop=stop))["choices"]
        assert choice["text"] == whole[: whole.index(whole[6:8])]
        assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"prompt": ""}, 400, "prompt"),
        ({"prompt": [[5, 9999]]}, 400, "prompt"),
        ({"prompt": "a", "max_tokens": 200}, 400, "max_tokens"),
        ({"prompt": "a", "min_version": 8}, 503, None),
    ],
)
async def test_a_stream_that_fails_before_it_begins_is_refused_as_any_other_request(
    http: httpx.AsyncClient, body: dict[str, Any], status: int, param: str | None
) -> None:
    plain = await http.post(COMPLETIONS, json=body)
    streamed = await http.post(COMPLETIONS, json={**body, "stream": True})
    assert (plain.status_code, plain.json()["error"]["param"]) == (status, param)
    assert (streamed.status_code, streamed.json()) == (status, plain.json())
    assert streamed.headers.get("Retry-After") == plain.headers.get("Retry-After")
    assert streamed.headers["Content-Type"] == "application/json"


async def test_one_prompt_at_fault_ends_a_stream_with_an_error(http: httpx.AsyncClient) -> None:
    body = {"prompt": ["a", "a" * 200], "max_tokens": 3, "stream": True}
    response = await http.post(COMPLETIONS, json=body)
    *chunks, last = [line for line in response.text.split("\n\n") if line]
    assert all("choices" in json.loads(chunk.removeprefix("data: ")) for chunk in chunks)
    assert chunks
    error = json.loads(last.removeprefix("data: "))["error"]
    assert (error["param"], error["type"]) == ("prompt", "invalid_request_error")


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "words"),
    [
        (COMPLETIONS, {"prompt": "a", "best_of": 4}, 400, "best_of", "not supported"),
        (COMPLETIONS, {"prompt": "a", "echo": True}, 400, "echo", "not supported"),
        (COMPLETIONS, {"prompt": "a", "logit_bias": {"5": 1}}, 400, "logit_bias", "not supported"),
        (COMPLETIONS, {"prompt": "a", "suffix": "x"}, 400, "suffix", "not supported"),
        (COMPLETIONS, {"prompt": "a", "guided_regex": "x"}, 400, "guided_regex", "not supported"),
        (COMPLETIONS, {"prompt": "a", "logprobs": 5}, 400, "logprobs", "less than or equal to 1"),
        (COMPLETIONS, {"prompt": "a", "temperature": -1}, 400, "temperature", "greater than or equal"),
        (COMPLETIONS, {"prompt": "a", "stop": ""}, 400, "stop", "stop: must be a string or a list of strings"),
        (COMPLETIONS, {"prompt": "a", "stop": ["b", ""]}, 400, "stop", "none of them empty"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 0}, 400, "max_tokens", "greater than or equal"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 200}, 400, "max_tokens", "context of 128"),
        (COMPLETIONS, {"prompt": []}, 400, "prompt", "not empty"),
        (COMPLETIONS, {"prompt": ""}, 400, "prompt", "empty"),
        (COMPLETIONS, {"prompt": [5, 9999]}, 400, "prompt", "outside the vocabulary"),
        (COMPLETIONS, {}, 400, "prompt", "required"),
        (COMPLETIONS, {"prompt": "a", "model": "gpt-4"}, 404, "model", "'tiny', not 'gpt-4'"),
        (COMPLETIONS, {"prompt": "a", "min_version": 8}, 503, None, "version 8 is not published"),
        (COMPLETIONS, b"{", 400, "body", "not JSON"),
        (COMPLETIONS, b"[" * 100_000, 400, "body", "not JSON"),
        (COMPLETIONS, b'{"prompt": "\\ud800"}', 400, "body", "not JSON"),
        (COMPLETIONS, b'{"prompt": "a", "temperature": NaN}', 400, "temperature", "finite"),
        (COMPLETIONS, {"prompt": "a", "n": "2"}, 400, "n", "valid integer"),
        (COMPLETIONS, {"prompt": [1.5]}, 400, "prompt", "must be a string"),
        (COMPLETIONS, [1], 400, "body", "JSON object"),
        (CHAT, {"messages": []}, 400, "messages", "at least 1 item"),
        (CHAT, {"messages": [{"role": "user"}]}, 400, "messages", "messages.0.content"),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "top_logprobs": 2}, 400, "top_logprobs", "not"),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "tools": [{}]}, 400, "tools", "not supported"),
    ],
)  # fmt: skip
async def test_refusals_name_the_parameter(
    http: httpx.AsyncClient, path: str, body: Any, status: int, param: str | None, words: str
) -> None:
    got, error = await refusal(http, path, body)
    assert (got, error["param"]) == (status, param), error
    assert words in error["message"]


async def test_neutral_values_and_nulls_are_no_wish(http: httpx.AsyncClient) -> None:
    answer = await post(
        http, COMPLETIONS, prompt="a", max_tokens=2, n=2, best_of=2, echo=False, suffix=None, stop=None, user="u",
        presence_penalty=0, frequency_penalty=0.0, logit_bias={}, top_k=-1,
    )  # fmt: skip
    assert len(answer["choices"]) == 2


async def test_openapi_describes_the_routes(http: httpx.AsyncClient) -> None:
    paths = (await http.get("/openapi.json")).json()["paths"]
    assert {COMPLETIONS, CHAT, "/v1/models", "/v1/generate"} <= set(paths)


async def trickle(chunk: bytes, times: int) -> AsyncIterator[bytes]:
    for _ in range(times):
        yield chunk


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_what_is_too_large_is_413_however_it_comes(service: RolloutGenerator, path: str) -> None:
    small = {"max_body_bytes": 1000, "max_request_items": 2}
    settings = RuntimeSettings.model_validate({"http": Address("127.0.0.1", 0), **small})
    async with running(service, settings) as process:
        assert process.url is not None
        async with httpx.AsyncClient(base_url=process.url, timeout=60, trust_env=False) as http:
            declared = await http.post(path, content=b" " * 2000)
            trickled = await http.post(path, content=trickle(b" " * 100, 20))
            many = await http.post(COMPLETIONS, json={"prompt": ["a", "b", "c"], "max_tokens": 1})
            fine = await http.post(COMPLETIONS, json={"prompt": ["a", "b"], "max_tokens": 1})
    assert [one.status_code for one in (declared, trickled, many, fine)] == [413, 413, 413, 200]
    assert many.json()["error"]["code"] == "too_large"


async def test_a_client_that_leaves_frees_its_place(tiny_llama: Path) -> None:
    service = RolloutGenerator(RolloutSettings(model=tiny_llama, served_name="tiny"))
    gate, held = threading.Event(), threading.Event()
    generated: list[int] = []

    def generate(batch: Sequence[GenerateJob]) -> list[GenerateResult]:
        held.set()
        assert gate.wait(60)
        generated.append(len(batch))
        return [failed_generation() for _ in batch]

    service.generate = generate
    async with running(service, RuntimeSettings(http=Address("127.0.0.1", 0))) as process:
        assert process.url is not None
        async with httpx.AsyncClient(base_url=process.url, timeout=60, trust_env=False) as http:
            first = asyncio.create_task(http.post(COMPLETIONS, json={"prompt": "a"}))
            assert await asyncio.to_thread(held.wait, 60)
            second = asyncio.create_task(http.post(COMPLETIONS, json={"prompt": "b"}))
            async with asyncio.timeout(60):
                while not process.dispatcher.waiting:  # noqa: ASYNC110 - no event says so
                    await asyncio.sleep(0.01)
                second.cancel()
                while process.dispatcher.waiting:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            gate.set()
            assert (await first).status_code == 503
    assert generated == [1]


def failed_generation() -> GenerateResult:
    return GenerateResult(status=Status.UNAVAILABLE, reason="none today")
