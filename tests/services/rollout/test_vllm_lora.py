"""Published LoRA adapters in vLLM itself: `make test-vllm`. Elsewhere these tests skip."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from guerdon import weights
from guerdon_services import models
from guerdon_services.rollout import engines
from guerdon_services.rollout.engine import Row, Sampled
from guerdon_services.rollout.engines.vllm import VllmEngine
from guerdon_services.rollout.settings import RolloutSettings
from tests.services.rollout.lora import merged, write_adapter

pytest.importorskip("vllm", reason="vLLM is not installed here: make test-vllm")

pytestmark = [pytest.mark.timeout(1800), pytest.mark.filterwarnings("default")]

#: As for whole weights: what fp32 engines on one CPU may differ by, in nats.
BOUND = 1e-4
ROW = Row(
    prompt_ids=(504, 1200, 2810), max_new_tokens=12, temperature=1.0, top_p=1.0, top_k=0, stop=(), seed=1
)
LONG = replace(ROW, max_new_tokens=60, ignore_eos=True)


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("followed")


@pytest.fixture(scope="module")
def engine(smollm2_folder: Path, followed: Path) -> Iterator[VllmEngine]:
    settings = RolloutSettings(
        model=smollm2_folder,
        weights_dir=followed,
        engine="vllm",
        kv_cache_mb=256,
        max_batch=16,
        max_lora_rank=12,
        vllm={"max_model_len": 1024},
    )
    engine = engines.open_engine(settings)
    assert isinstance(engine, VllmEngine)
    yield engine
    engine.close()


@pytest.fixture
def policy(engine: VllmEngine) -> Iterator[Callable[[str], None]]:
    before = engine._updates._settings

    def set_(on_update: str) -> None:
        engine._updates._settings = before.model_copy(update={"on_update": on_update})

    yield set_
    engine._updates._settings = before


@pytest.fixture(scope="module")
def base(smollm2_folder: Path) -> models.LanguageModel:
    return models.load(smollm2_folder)


#: The prompt of the second fills blocks of the prefix cache.
ROWS = [ROW, replace(ROW, prompt_ids=tuple(range(300, 400)), seed=2)]


def drift(engine: VllmEngine, model: Any, rows: list[Row] = ROWS) -> float:
    """The largest difference between the engine's log-probs and a forward of a model, in nats."""
    return max(
        abs(ours - theirs)
        for row, sampled in zip(rows, engine.generate(rows), strict=True)
        for ours, theirs in zip(sampled.logprobs, plain_logps(model, row, sampled), strict=True)
    )


def plain_logps(model: Any, row: Row, sampled: Sampled) -> list[float]:
    ids = torch.tensor([[*row.prompt_ids, *sampled.token_ids]])
    with torch.no_grad():
        logps = model(input_ids=ids).logits[0].float().log_softmax(-1)
    before = len(row.prompt_ids) - 1
    return [logps[before + step, token].item() for step, token in enumerate(sampled.token_ids)]


def taken_up(engine: VllmEngine, version: int) -> str:
    """What there is to say of an update that must have worked."""
    began = time.monotonic()
    engine.refresh()
    assert (engine.version, engine.state) == (version, f"version {version} serves")
    return f"taken up in {time.monotonic() - began:.2f} s"


def test_an_adapter_serves_then_the_next_then_whole_weights_then_an_adapter(
    engine: VllmEngine, base: models.LanguageModel, smollm2_folder: Path, followed: Path
) -> None:
    pids = engine.pids

    def publish(version: int, rank: int) -> weights.Published:
        return weights.publish(
            followed, version, lambda path: write_adapter(path, smollm2_folder, seed=version, rank=rank)
        )

    def publish_whole(version: int, adapter: Path) -> None:
        def write(path: Path) -> None:
            with merged(base.model, adapter):
                base.model.save_pretrained(path)
            base.tokenizer.save_pretrained(path)

        weights.publish(followed, version, write)

    def serves(published: weights.Published, version: int, what: str) -> None:
        said = taken_up(engine, version)
        with merged(base.model, published.path):
            off = drift(engine, base.model)
        # The figures of docs/rollout.md; -s shows them.
        print(f"{what}: {said}, log-probs differ by {off:.1e}")
        assert off < BOUND
        assert {(one.version, one.last_version) for one in engine.generate(ROWS)} == {(version, None)}

    assert drift(engine, base.model) < BOUND
    serves(publish(1, 12), 1, "an adapter")
    assert drift(engine, base.model) > 0.1, "it does change the policy"
    second = publish(2, 12)
    serves(second, 2, "the next adapter")
    publish_whole(3, second.path)
    serves(second, 3, "whole weights")
    # On the model that the service was started with, not on what was published in between.
    serves(publish(4, 8), 4, "an adapter after whole weights")
    assert engine.pids == pids, "without another start"


def test_under_keep_responses_go_on_with_the_next_adapter(
    engine: VllmEngine, policy: Any, base: models.LanguageModel, smollm2_folder: Path, followed: Path
) -> None:
    policy("keep")
    old = engine.version
    with ThreadPoolExecutor(1) as pool:
        steps = engine._updates.steps
        group = pool.submit(engine.generate, [replace(LONG, seed=seed) for seed in range(3)])
        for _ in range(60_000):
            if engine._updates.steps > steps + 5:
                break
            threading.Event().wait(0.01)
        published = weights.publish(
            followed, old + 1, lambda path: write_adapter(path, smollm2_folder, seed=5)
        )
        engine.refresh()
        assert {(one.version, one.last_version) for one in group.result()} == {(old, old + 1)}
    with merged(base.model, published.path):
        assert drift(engine, base.model, [*ROWS, LONG]) < BOUND
        # The last tokens of those that went on are those of the new adapter, what it sees of the first ones too.
        for sampled in group.result():
            expected = plain_logps(base.model, LONG, sampled)
            assert sampled.logprobs[-10:] == pytest.approx(expected[-10:], abs=BOUND)
            assert sampled.logprobs[0] != pytest.approx(expected[0], abs=0.01)


def torn(path: Path, base: Path) -> None:
    write_adapter(path, base, seed=6)
    file = path / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def too_large(path: Path, base: Path) -> None:
    write_adapter(path, base, seed=7, rank=32)


def test_what_vllm_refuses_leaves_the_old_adapter_serving(
    engine: VllmEngine,
    base: models.LanguageModel,
    smollm2_folder: Path,
    followed: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    version, pids = engine.version, engine.pids
    # Past our own checks, which are tested elsewhere.
    monkeypatch.setattr(engine._followed, "check", lambda found: None)
    for number, write in enumerate((torn, too_large), 1):
        weights.publish(followed, version + number, lambda path, write=write: write(path, smollm2_folder))
        engine.refresh()
        assert engine.version == version
        assert engine.state.startswith(f"version {version} serves; version {version + number} was refused: ")
        with merged(base.model, engine._followed.path):
            assert drift(engine, base.model) < BOUND
    assert engine.pids == pids, "without another start"


def test_a_killed_engine_comes_back_with_its_adapter(
    engine: VllmEngine, base: models.LanguageModel, followed: Path
) -> None:
    version, [victim] = engine.version, engine.pids
    assert not weights.version_path(followed, version).exists(), "its publisher has removed it"
    psutil.Process(victim).kill()
    with merged(base.model, engine._followed.path):
        assert drift(engine, base.model) < BOUND
    assert engine.version == version
    assert engine.pids != [victim]
