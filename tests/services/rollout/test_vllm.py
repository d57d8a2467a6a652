"""The vLLM engine with vLLM itself: `make test-vllm`. Elsewhere these tests skip.

One engine serves all of them: a start takes a loaded machine a minute or more.
"""

import asyncio
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import httpx
import openai
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon import weights
from guerdon_services import models
from guerdon_services.rollout import engines
from guerdon_services.rollout.engine import Row, Sampled
from guerdon_services.rollout.engines.stopping import StopStrings
from guerdon_services.rollout.engines.vllm import VllmEngine
from guerdon_services.rollout.service import RolloutGenerator
from guerdon_services.rollout.settings import RolloutSettings
from guerdon_services.runtime.listening import Piece
from guerdon_services.runtime.process import running
from guerdon_services.runtime.scorer import Unscorable
from guerdon_services.runtime.settings import Address, RuntimeSettings
from tests.services.conftest import byte_tokenizer
from tests.services.rollout import openai_calls, stopping_calls
from tests.services.rollout.fake_vllm import until
from tests.services.rollout.test_vllm_streams import Heard

pytest.importorskip("vllm", reason="vLLM is not installed here: make test-vllm")

# vLLM and what it imports warn of their own accord, at the very end too: make test-vllm says -W default as well.
pytestmark = [pytest.mark.timeout(1800), pytest.mark.filterwarnings("default")]

#: What fp32 engines on one CPU may differ by, in nats: both compute the same sums in another order.
BOUND = 1e-4
ROW = Row(prompt_ids=(60, 61, 62), max_new_tokens=20, temperature=1.0, top_p=1.0, top_k=0, stop=(), seed=1)
GREEDY = replace(ROW, temperature=0.0)


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("followed")


@pytest.fixture(scope="module")
def engine(folder: Path, followed: Path) -> Iterator[VllmEngine]:
    settings = RolloutSettings(
        model=folder, weights_dir=followed, engine="vllm", kv_cache_mb=64, max_batch=32
    )
    engine = engines.open_engine(settings)
    assert isinstance(engine, VllmEngine)
    yield engine
    engine.close()


@pytest.fixture
def policy(engine: VllmEngine) -> Iterator[Callable[[Literal["finish", "restart", "keep"]], None]]:
    before = engine._updates._settings

    def set_(on_update: str) -> None:
        engine._updates._settings = before.model_copy(update={"on_update": on_update})

    yield set_
    engine._updates._settings = before


def shifted(folder: Path, by: float) -> Callable[[Path], None]:
    """Writes the model of `folder` with every weight moved: visibly another policy."""

    def write(path: Path) -> None:
        loaded = models.load(folder)
        with torch.no_grad():
            for parameter in loaded.model.parameters():
                parameter.add_(by * torch.sin(torch.arange(parameter.numel()).view_as(parameter).float()))
        # In pieces, as large models come.
        loaded.model.save_pretrained(path, max_shard_size="50KB")
        loaded.tokenizer.save_pretrained(path)

    return write


def plain_logps(folder: Path, row: Row, sampled: Sampled, temperature: float) -> list[float]:
    """Log-probs of a response from one full forward of transformers."""
    ids = torch.tensor([[*row.prompt_ids, *sampled.token_ids]])
    with torch.no_grad():
        logits = models.load(folder).model(input_ids=ids).logits[0].float() / temperature
    logps = logits.log_softmax(-1)
    before = len(row.prompt_ids) - 1
    return [logps[before + step, token].item() for step, token in enumerate(sampled.token_ids)]


def serving(engine: VllmEngine) -> Path:
    """The folder whose weights answer."""
    return engine._followed.path


def drift(engine: VllmEngine, rows: list[Row]) -> float:
    """The largest difference between the engine's log-probs and transformers', over all tokens of some rows."""
    differences = [
        abs(ours - theirs)
        for row, sampled in zip(rows, engine.generate(rows), strict=True)
        for ours, theirs in zip(
            sampled.logprobs, plain_logps(serving(engine), row, sampled, row.temperature or 1), strict=True
        )
    ]
    return max(differences)


@pytest.mark.parametrize(
    "row",
    [
        ROW,
        GREEDY,
        replace(ROW, temperature=0.7),
        replace(ROW, temperature=1.5, top_p=0.8, top_k=30, min_p=0.01),
        replace(ROW, presence_penalty=1.0, repetition_penalty=1.3, min_new_tokens=4),
    ],
)
def test_logprobs_are_transformers_whatever_is_drawn(engine: VllmEngine, row: Row) -> None:
    rows = [replace(row, prompt_ids=(60,) * length, seed=length) for length in (1, 3, 40, 140)]
    assert drift(engine, rows) < BOUND


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
def test_raw_logprobs_are_at_temperature_1(engine: VllmEngine, temperature: float) -> None:
    row = replace(ROW, temperature=temperature, top_p=0.9, raw_logprobs=True)
    [sampled] = engine.generate([row])
    assert sampled.raw_logprobs == pytest.approx(plain_logps(serving(engine), row, sampled, 1.0), abs=BOUND)
    assert sampled.logprobs == pytest.approx(
        plain_logps(serving(engine), row, sampled, temperature or 1), abs=BOUND
    )


def test_greedy_and_its_ends_are_those_of_the_transformers_engine(engine: VllmEngine, folder: Path) -> None:
    other = engines.open_engine(RolloutSettings(model=serving(engine), engine="transformers"))
    plain = replace(GREEDY, max_new_tokens=30)
    [whole] = other.generate([plain])
    rows = [
        plain,
        replace(plain, stop_token_ids=(whole.token_ids[6],)),
        replace(plain, stop=(whole.text[4:7], "never in it")),
        replace(plain, ignore_eos=True, min_new_tokens=8, stop_token_ids=(whole.token_ids[0],)),
        replace(plain, frequency_penalty=0.9, repetition_penalty=1.2),
        replace(plain, prompt_ids=(60,) * 500, max_new_tokens=12),
    ]
    for ours, theirs in zip(engine.generate(rows), other.generate(rows), strict=True):
        assert (ours.token_ids, ours.text) == (theirs.token_ids, theirs.text)
        assert ours.finish_reason == theirs.finish_reason
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=BOUND)


def test_stop_strings_count_after_the_least_tokens(engine: VllmEngine) -> None:
    stopping_calls.run(engine)


@settings(max_examples=300, deadline=None)
@given(
    token_ids=st.lists(st.sampled_from([64, 65, 66, 127, 102, 220, 258]), min_size=1, max_size=16),
    stop=st.lists(st.text(st.sampled_from("abcé \ufffd"), min_size=1, max_size=3), min_size=1, max_size=3),
    least=st.integers(0, 6),
)
def test_vllm_finds_stop_strings_at_the_tokens_where_we_do(
    token_ids: list[int], stop: list[str], least: int
) -> None:
    from vllm import SamplingParams  # pyright: ignore[reportMissingImports]
    from vllm.v1.engine.detokenizer import IncrementalDetokenizer  # pyright: ignore[reportMissingImports]

    tokenizer = byte_tokenizer()
    asked = SamplingParams(stop=stop, min_tokens=least, max_tokens=100)
    request: Any = SimpleNamespace(sampling_params=asked, prompt_token_ids=[87], request_id="")
    theirs = IncrementalDetokenizer.from_new_request(cast(Any, tokenizer), request)
    ours = StopStrings(tokenizer, stop, ignored=least)
    for size, token in enumerate(token_ids, 1):
        found = theirs.update([token], stop_terminated=False)
        cut = ours.cut(token_ids[:size])
        assert (found is None) == (cut is None)
        if cut is not None:
            # What the engine does: vLLM says at which token a response ends, we say what its text is.
            assert StopStrings(tokenizer, stop, ignored=least).cut(token_ids[:size]) == cut
            return


def test_a_greedy_group_has_equal_responses(engine: VllmEngine) -> None:
    # vLLM refuses several greedy responses in one request.
    first, *others = engine.generate([replace(GREEDY, seed=None)] * 3)
    assert [one.token_ids for one in others] == [first.token_ids] * 2


@pytest.mark.parametrize(("temperature", "why"), [(0.001, "at 0, or at 0.01 and more"), (3.0, "temperature")])
def test_what_vllm_does_not_sample_is_refused_by_name(
    engine: VllmEngine, temperature: float, why: str
) -> None:
    for listener in (None, Heard(tokens=True)):
        with pytest.raises(Unscorable, match=f"sampling.*{why}"):
            engine.generate([replace(ROW, temperature=temperature, listener=cast(Any, listener))])


def test_a_seed_decides_the_sample(engine: VllmEngine) -> None:
    rows = [replace(ROW, seed=seed) for seed in range(6)]
    together = [one.token_ids for one in engine.generate(rows)]
    assert [engine.generate([row])[0].token_ids for row in rows] == together
    unseeded = engine.generate([replace(ROW, seed=None)] * 6)
    assert len({tuple(one.token_ids) for one in unseeded}) > 1


def test_many_groups_at_once_are_answered_each_in_its_order(engine: VllmEngine) -> None:
    groups = [
        [replace(ROW, prompt_ids=(60, number), seed=seed, max_new_tokens=5 + seed) for seed in range(4)]
        for number in range(12)
    ]
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(engine.generate, groups))
    assert answers[7] == engine.generate(groups[7])
    for group, answer in zip(groups, answers, strict=True):
        for row, one in zip(group, answer, strict=True):
            assert len(one.token_ids) == row.max_new_tokens or one.finish_reason == "stop"


LONG = replace(ROW, max_new_tokens=400, ignore_eos=True)


def during(engine: VllmEngine, happen: Callable[[], None]) -> list[Sampled]:
    """A long group, and what happens once the engine is at it."""
    with ThreadPoolExecutor(1) as pool:
        steps = engine._updates.steps
        group = pool.submit(engine.generate, [replace(LONG, seed=seed) for seed in range(3)])
        for _ in range(60_000):
            if engine._updates.steps > steps + 10:
                break
            threading.Event().wait(0.002)
        assert not group.done()
        happen()
        return group.result()


@pytest.mark.parametrize(
    ("on_update", "by"), [("finish", 0.05), ("restart", 0.1), ("keep", 0.15), ("finish", 0.2)]
)
def test_new_weights_come_without_a_restart(
    engine: VllmEngine, policy: Any, folder: Path, followed: Path, tmp_path: Path, on_update: str, by: float
) -> None:
    policy(on_update)
    pids, old = engine.pids, engine.version
    # Written before: the group must not have ended when it comes.
    shifted(folder, by)(tmp_path)

    def copy(path: Path) -> None:
        shutil.copytree(tmp_path, path, dirs_exist_ok=True)

    def publish() -> None:
        # However slow the disk is, the group has not ended when they come.
        os.kill(pids[0], signal.SIGSTOP)
        weights.publish(followed, old + 1, copy)
        until(lambda: not engine._updates._open.is_set())
        os.kill(pids[0], signal.SIGCONT)
        engine.refresh()

    group = during(engine, publish)
    spans = {(one.version, one.last_version) for one in group}
    assert spans == {{"finish": (old, None), "restart": (old + 1, None), "keep": (old, old + 1)}[on_update]}
    assert (engine.version, engine.state, engine.pids) == (old + 1, f"version {old + 1} serves", pids)
    # Also with the prompt that the cache knew under the old weights.
    assert drift(engine, [LONG, ROW, replace(ROW, prompt_ids=(60,) * 300)]) < BOUND


def test_a_torn_version_is_refused(engine: VllmEngine, folder: Path, followed: Path) -> None:
    version = engine.version

    def torn(path: Path) -> None:
        shifted(folder, 0.9)(path)
        file = sorted(path.glob("*.safetensors"))[-1]
        file.write_bytes(file.read_bytes()[:-1000])

    weights.publish(followed, version + 1, torn)
    engine.refresh()
    assert engine.version == version
    assert f"version {version + 1} was refused: SafetensorError" in engine.state
    assert drift(engine, [ROW]) < BOUND


def test_an_update_that_breaks_off_leaves_the_old_weights(
    engine: VllmEngine, folder: Path, followed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, reload = engine.version, engine._updates.core.reload

    async def broken(path: Path, number: int, *, keep: bool) -> None:
        await reload(path, number, keep=keep)
        if number != version:
            raise RuntimeError("after the new weights were read")

    monkeypatch.setattr(engine._updates.core, "reload", broken)
    weights.publish(followed, version + 5, shifted(folder, 0.7))
    engine.refresh()
    monkeypatch.undo()
    assert engine.version == version
    assert f"version {version + 5} was refused: RuntimeError" in engine.state
    [sampled] = engine.generate([ROW])
    assert sampled.version == version
    assert drift(engine, [ROW]) < BOUND


async def test_openais_and_vllms_routes(engine: VllmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "open_engine", lambda settings: engine)
    monkeypatch.setattr(engine, "close", lambda: None)
    service = RolloutGenerator(engine._updates._settings.model_copy(update={"served_name": "tiny"}))
    assert (service.batching.max_items, service.batching.concurrency) == (1, 32)
    async with running(service, RuntimeSettings(http=Address("127.0.0.1", 0))) as process:
        base = f"{process.url}/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0, timeout=600) as client:
            await openai_calls.run(client)
        assert process.url is not None
        async with httpx.AsyncClient(base_url=process.url, timeout=600, trust_env=False) as http:
            info = (await http.get("/v1/info")).json()
            assert (info["details"]["engine"], info["details"]["context_length"]) == ("vllm", "512")
            assert (await http.post("/resume")).status_code == 409
            assert (await http.post("/pause", params={"mode": "wait"})).json() == {"status": "paused"}
            assert (await http.get("/is_paused")).json() == {"is_paused": True}
            # No transport runs on a CPU: vLLM says so, and nothing has changed.
            started = await http.post("/start_weight_update")
            assert started.status_code == 500
            assert "not configured" in started.json()["error"]
            assert (await http.post("/resume")).json() == {"status": "resumed"}
            seen = (await http.get("/weight_info")).json()
            assert seen["weight_version"] == str(engine.version)
            body = {"prompt": "6+0+4=", "max_tokens": 3}
            assert (await http.post("/v1/completions", json=body)).status_code == 200


def test_killed_in_the_middle_it_comes_back_and_the_group_is_whole(engine: VllmEngine) -> None:
    alone = engine.generate([replace(LONG, seed=seed) for seed in range(3)])
    [victim] = engine.pids
    group = during(engine, lambda: os.kill(victim, 9))
    assert [one.token_ids for one in group] == [one.token_ids for one in alone]
    assert engine.pids != [victim]
    assert not psutil.pid_exists(victim)
    assert drift(engine, [ROW]) < BOUND


def test_a_group_outlives_an_engine_that_is_ended_alive(engine: VllmEngine) -> None:
    async def replaced() -> None:
        await engine._updates.replace(engine._updates.core, "of no use any more")

    alone = engine.generate([replace(LONG, seed=seed) for seed in range(3)])
    [before] = engine.pids
    group = during(engine, lambda: asyncio.run(engine.call(replaced())))
    assert [one.token_ids for one in group] == [one.token_ids for one in alone]
    assert engine.pids != [before]


@pytest.mark.parametrize("stop", [(), ("a", "\ufffd\ufffd"), ("7", "cd")])
@pytest.mark.parametrize("min_new_tokens", [0, 8])
def test_what_a_listener_hears_is_the_response(
    engine: VllmEngine, stop: tuple[str, ...], min_new_tokens: int
) -> None:
    heard = Heard(tokens=True)
    changes: dict[str, Any] = {"max_new_tokens": 60, "stop": stop, "min_new_tokens": min_new_tokens}
    rows = [replace(row, seed=row.number, **changes) for row in heard.group(8)]
    answers = engine.generate(rows)
    assert heard.texts() == {place: one.text for place, one in enumerate(answers)}
    assert len(heard.pieces) > len(rows)
    for place, one in enumerate(answers):
        pieces = [piece for piece in heard.pieces if piece.number == place]
        assert [token for piece in pieces for token in piece.token_ids] == one.token_ids
        assert [logprob for piece in pieces for logprob in piece.logprobs] == one.logprobs
    alone = engine.generate([replace(row, listener=None) for row in rows])
    assert [one.text for one in alone] == [one.text for one in answers]


def test_what_a_listener_has_heard_outlives_the_engine(engine: VllmEngine) -> None:
    [victim] = engine.pids

    class Killer(Heard):
        def hear(self, piece: Piece) -> None:
            if not self.told:
                os.kill(victim, 9)
            super().hear(piece)

    heard = Killer(tokens=False)
    rows = [replace(row, max_new_tokens=400 if row.number else 5, ignore_eos=True) for row in heard.group(4)]
    answers = engine.generate(rows)
    assert engine.pids != [victim]
    assert heard.whole[0] == 0
    assert sorted(heard.whole) == [0, 1, 2, 3]
    for piece in heard.pieces:
        assert piece.rollout is not None
        assert piece.rollout.token_ids == answers[piece.number].token_ids
