"""What peers send and what they read back, as their sources have it: contracts/*.yaml, replayed.

Each file has one shape: `exchanges` of a route or a function (`ask`), what it gets (`body`), what a peer reads of the
answer (`answer`), and what it gets for each kind of failure: an HTTP status, an exception, or the fields of an answer.
What SkyRL, verifiers and NeMo RL ask for is a class, or a call with objects of theirs: an exchange of values does not
show it, and their base classes are written down in test_skyrl.py, test_verifiers.py and test_nemo_rl.py instead.
RESPONSE is what the policy wrote, REWARD the number that the peer gets, SECONDS its patience.
"""

import asyncio
import importlib
import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import yaml

from guerdon import background, errors
from guerdon_services.compat import roll

FILES = sorted((Path(__file__).parent / "contracts").glob("*.yaml"))
CONTRACTS: list[dict[str, Any]] = [yaml.safe_load(file.read_text()) for file in FILES]
EXCHANGES = [
    pytest.param(exchange, id=f"{contract['peer']} {exchange['ask']}")
    for contract in CONTRACTS
    for exchange in contract["exchanges"]
]
KINDS = {"timeout", "overloaded", "unavailable", "internal", "invalid"}


def test_the_files_have_one_shape() -> None:
    for contract in CONTRACTS:
        assert list(contract) == ["peer", "version", "source", "recorded_because", "exchanges"]
        for exchange in contract["exchanges"]:
            assert set(exchange) <= {"ask", "body", "answer", "then", "at_last", "failures"}
            assert set(exchange.get("failures", KINDS)) == KINDS


def filled(value: Any, words: Mapping[str, Any]) -> Any:
    """A value with words in the place of RESPONSE and REWARD."""
    if isinstance(value, dict):
        return {key: filled(one, words) for key, one in cast(dict[str, Any], value).items()}
    if isinstance(value, list):
        return [filled(one, words) for one in cast(list[Any], value)]
    if isinstance(value, str):
        if value in words:
            return words[value]
        return re.sub("|".join(words), lambda match: str(words[match[0]]), value)
    return value


def check(answer: Any, expected: Any) -> None:
    """The answer is the expected value; where that is an object, it has all of its fields."""
    if isinstance(expected, dict):
        for key, one in cast(dict[str, Any], expected).items():
            assert key in answer, key
            check(answer[key], one)
    else:
        assert answer == expected


async def asked(url: str, exchange: Mapping[str, Any], response: str, seconds: float) -> Any:
    """The HTTP answer, or what a function returns; an exception of ours where it raises one."""
    body = filled(exchange["body"], {"RESPONSE": response, "SECONDS": seconds})
    method, _, path = exchange["ask"].partition(" ")
    if not path:
        return await called(exchange["ask"], body)
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        answer = await http.request(method, path, content=json.dumps(body))
        if "then" in exchange and answer.status_code == 200:
            check(answer.json(), exchange["answer"])
            return await polled(http, exchange["then"], answer.json())
        return answer


async def polled(http: httpx.AsyncClient, ask: str, body: Any) -> httpx.Response:
    """The first answer that is not "running"."""
    method, _, path = ask.partition(" ")
    async with asyncio.timeout(60):
        while True:
            answer = await http.request(method, path, json=body)
            if answer.json()["errcode"] != 1:
                return answer
            await asyncio.sleep(0.01)


async def called(name: str, body: Mapping[str, Any]) -> Any:
    """What the function returns, in a thread of its own where it does not await; objects have attributes."""
    module, _, function = name.partition(":")
    call = getattr(importlib.import_module(module), function)
    arguments = {
        key: SimpleNamespace(**value) if key in ("args", "sample") else value for key, value in body.items()
    }
    try:
        if inspect.iscoroutinefunction(call):
            return await call(**arguments)
        return await asyncio.to_thread(call, **arguments)
    except errors.GuerdonError as error:
        return error


@pytest.fixture
def contract_url(judge_url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A service that judges, which the environment names, too."""
    monkeypatch.setenv("GUERDON_URL", judge_url)
    monkeypatch.setenv("GUERDON_RETRIES", "0")
    monkeypatch.setattr(roll, "_PAUSE_S", 0.01)
    yield judge_url
    background.stop()


@pytest.mark.parametrize("exchange", EXCHANGES)
async def test_every_exchange(contract_url: str, exchange: dict[str, Any]) -> None:
    for response, reward in (("It is 2", 1.0), ("It is 3", 0.0)):
        answer = await asked(contract_url, exchange, response, 300.0)
        expected = exchange.get("at_last", exchange["answer"])
        content = answer.json() if isinstance(answer, httpx.Response) else answer
        check(content, filled(expected, {"REWARD": reward}))
    for word, expected in exchange.get("failures", {}).items():
        answer = await asked(contract_url, exchange, word, 0.1)
        if isinstance(expected, str):
            assert type(answer).__name__ == expected, word
        elif isinstance(expected, int):
            assert answer.status_code == expected, word
            assert not {"reward", "rewards", "score"} & set(answer.json())
        else:
            check(answer.json(), expected)
            assert "reward_score" not in answer.json()
            # A number only where a mask takes it back.
            assert answer.json().get("reward") is None or answer.json()["mask_sample"] is True
