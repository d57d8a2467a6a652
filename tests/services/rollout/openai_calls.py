"""What users of the official `openai` client ask of a policy; both engines' tests run it."""

from typing import Any

import openai
import pytest


async def run(client: openai.AsyncOpenAI) -> None:
    """Completions and chats, whole and streamed, with log-probs, several choices, and a refusal."""
    model = (await client.models.list()).data[0].id
    await _completions(client, model)
    await _chats(client, model)
    with pytest.raises(openai.BadRequestError) as refused:
        await client.completions.create(model=model, prompt="a", suffix="b")
    assert refused.value.param == "suffix"
    with pytest.raises(openai.NotFoundError):
        await client.completions.create(model="another", prompt="a")


async def _completions(client: openai.AsyncOpenAI, model: str) -> None:
    whole = await client.completions.create(
        model=model, prompt=["6+0+4=", "1+1="], n=2, max_tokens=7, seed=3, logprobs=1, stop=["zz"]
    )
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    for choice in whole.choices:
        assert choice.finish_reason in ("stop", "length")
        assert choice.logprobs is not None
        assert choice.logprobs.token_logprobs is not None
        assert all(logprob <= 0 for logprob in choice.logprobs.token_logprobs)
    assert whole.usage is not None
    assert 4 <= whole.usage.completion_tokens <= 28

    stream = await client.completions.create(
        model=model,
        prompt="6+0+4=",
        n=2,
        max_tokens=7,
        seed=3,
        stream=True,
        stream_options={"include_usage": True},
    )
    texts = {0: "", 1: ""}
    usage = None
    async for piece in stream:
        usage = piece.usage or usage
        for choice in piece.choices:
            texts[choice.index] += choice.text
    assert texts == {0: whole.choices[0].text, 1: whole.choices[1].text}
    assert usage is not None
    await _stopped(client, model, whole.choices[0].text)


async def _stopped(client: openai.AsyncOpenAI, model: str, text: str) -> None:
    """A stream of the same choices with a stop string out of the first: whole and in pieces it says the same."""
    stop = [text[2:4], "zz"]
    asked: dict[str, Any] = {
        "model": model,
        "prompt": "6+0+4=",
        "n": 2,
        "max_tokens": 7,
        "seed": 3,
        "logprobs": 1,
    }
    extra = {"return_token_ids": True}
    whole = await client.completions.create(**asked, stop=stop, extra_body=extra)
    assert whole.choices[0].text == text[: text.index(stop[0])]
    assert whole.choices[0].finish_reason == "stop"
    said: dict[int, Any] = {0: "", 1: ""}
    ids: dict[int, Any] = {0: [], 1: []}
    logprobs: dict[int, Any] = {0: [], 1: []}
    reasons: dict[int, Any] = {0: [], 1: []}
    async for piece in await client.completions.create(**asked, stop=stop, extra_body=extra, stream=True):
        choice: Any
        [choice] = piece.choices
        said[choice.index] += choice.text
        ids[choice.index] += choice.token_ids
        logprobs[choice.index] += choice.logprobs.token_logprobs
        reasons[choice.index] += [choice.finish_reason] if choice.finish_reason else []
    expected: list[Any] = list(whole.choices)
    for choice in expected:
        assert said[choice.index] == choice.text
        assert ids[choice.index] == choice.token_ids
        assert logprobs[choice.index] == pytest.approx(choice.logprobs.token_logprobs, abs=1e-4)
        assert reasons[choice.index] == [choice.finish_reason]


async def _chats(client: openai.AsyncOpenAI, model: str) -> None:
    whole = await client.chat.completions.create(
        model=model,
        messages=[{"role": "system", "content": "short"}, {"role": "user", "content": "hi"}],
        max_completion_tokens=6,
        seed=4,
        temperature=0.8,
        top_p=0.95,
        presence_penalty=0.1,
        logprobs=True,
        extra_body={"min_p": 0.01, "return_token_ids": True},
    )
    [choice] = whole.choices
    assert choice.message.role == "assistant"
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert len(choice.logprobs.content) == len(choice.model_extra["token_ids"])  # type: ignore[index]

    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "system", "content": "short"}, {"role": "user", "content": "hi"}],
        max_tokens=6,
        seed=4,
        temperature=0.8,
        top_p=0.95,
        presence_penalty=0.1,
        extra_body={"min_p": 0.01},
        stream=True,
    )
    text, reasons, roles = "", list[str](), list[str | None]()
    async for piece in stream:
        roles.append(piece.choices[0].delta.role)
        text += piece.choices[0].delta.content or ""
        reasons += [piece.choices[0].finish_reason] if piece.choices[0].finish_reason else []
    assert text == choice.message.content
    assert reasons == [choice.finish_reason]
    assert (roles[0], set(roles[1:]) - {None}) == ("assistant", set())
