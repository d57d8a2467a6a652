"""Published LoRA adapters in vLLM itself: `make test-vllm`. Elsewhere these tests skip."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from guerdon import weights
from guerdon_services import models
from guerdon_services.rollout import engines
from guerdon_services.rollout.engine import Row, Sampled
from guerdon_services.rollout.engines.vllm import VllmEngine
from guerdon_services.rollout.settings import RolloutSettings
from tests.services.rollout.lora import write_adapter, write_merged

pytest.importorskip("vllm", reason="vLLM is not installed here: make test-vllm")

pytestmark = [pytest.mark.timeout(1800), pytest.mark.filterwarnings("default")]

#: As for whole weights: what fp32 engines on one CPU may differ by, in nats.
BOUND = 1e-4
ROW = Row(
    prompt_ids=(504, 1200, 2810), max_new_tokens=24, temperature=1.0, top_p=1.0, top_k=0, stop=(), seed=1
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


def drift(engine: VllmEngine, merged: Path, rows: list[Row]) -> float:
    """The largest difference between the engine's log-probs and a forward of the merged model, in nats."""
    model = models.load(merged).model
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


#: The prompt fills blocks of the prefix cache.
ROWS = [ROW, replace(ROW, prompt_ids=tuple(range(300, 400))), replace(ROW, seed=2)]


def taken_up(engine: VllmEngine, version: int) -> str:
    """What there is to say of an update that must have worked."""
    began = time.monotonic()
    engine.refresh()
    assert (engine.version, engine.state) == (version, f"version {version} serves")
    return f"{time.monotonic() - began:.2f} s"


def test_an_adapter_serves_then_the_next_then_whole_weights_then_an_adapter(
    engine: VllmEngine, smollm2_folder: Path, followed: Path, tmp_path: Path
) -> None:
    pids, merged = engine.pids, tmp_path / "merged"
    assert drift(engine, smollm2_folder, ROWS) < BOUND
    for version, seed in ((1, 1), (2, 2)):
        published = weights.publish(
            followed, version, lambda path, seed=seed: write_adapter(path, smollm2_folder, seed=seed, rank=12)
        )
        said = taken_up(engine, version)
        write_merged(merged, smollm2_folder, published.path)
        off = drift(engine, merged, ROWS)
        print(f"adapter {version}: taken up in {said}, log-probs differ by {off:.1e}")
        assert off < BOUND
        assert drift(engine, smollm2_folder, ROWS) > 0.1, "it does change the policy"
        assert {(one.version, one.last_version) for one in engine.generate(ROWS)} == {(version, None)}

    weights.publish(followed, 3, lambda path: write_merged(path, smollm2_folder, published.path))
    said = taken_up(engine, 3)
    off = drift(engine, engine._followed.path, ROWS)
    print(f"whole weights: taken up in {said}, log-probs differ by {off:.1e}")
    assert off < BOUND

    # On the model that the service was started with, not on what was published in between.
    published = weights.publish(followed, 4, lambda path: write_adapter(path, smollm2_folder, seed=4, rank=8))
    said = taken_up(engine, 4)
    write_merged(merged, smollm2_folder, published.path)
    off = drift(engine, merged, ROWS)
    print(f"an adapter after whole weights: taken up in {said}, log-probs differ by {off:.1e}")
    assert off < BOUND
    assert engine.pids == pids, "without another start"


def test_under_keep_responses_go_on_with_the_next_adapter(
    engine: VllmEngine, policy: Any, smollm2_folder: Path, followed: Path, tmp_path: Path
) -> None:
    policy("keep")
    old = engine.version
    with ThreadPoolExecutor(1) as pool:
        steps = engine._updates.steps
        group = pool.submit(engine.generate, [replace(LONG, seed=seed) for seed in range(3)])
        while engine._updates.steps < steps + 5:
            time.sleep(0.01)
        published = weights.publish(
            followed, old + 1, lambda path: write_adapter(path, smollm2_folder, seed=5)
        )
        engine.refresh()
        assert {(one.version, one.last_version) for one in group.result()} == {(old, old + 1)}
    write_merged(tmp_path / "merged", smollm2_folder, published.path)
    assert drift(engine, tmp_path / "merged", [*ROWS, LONG]) < BOUND
    # The last tokens of those that went on are those of the new adapter.
    model = models.load(tmp_path / "merged").model
    for sampled in group.result():
        assert sampled.logprobs[-10:] == pytest.approx(plain_logps(model, LONG, sampled)[-10:], abs=BOUND)


def test_what_vllm_refuses_leaves_the_old_adapter_serving(
    engine: VllmEngine, smollm2_folder: Path, followed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, serving = engine.version, engine._followed.path
    write_merged(tmp_path / "merged", smollm2_folder, serving)
    # Past our own checks, which are tested elsewhere.
    monkeypatch.setattr(engine._followed, "check", lambda found: None)

    def torn(path: Path) -> None:
        write_adapter(path, smollm2_folder, seed=6)
        file = path / "adapter_model.safetensors"
        file.write_bytes(file.read_bytes()[:-1000])

    ranks: list[Callable[[Path], None]] = [
        torn,
        lambda path: write_adapter(path, smollm2_folder, seed=7, rank=32),
    ]
    for number, write in enumerate(ranks, 1):
        weights.publish(followed, version + number, write)
        engine.refresh()
        assert engine.version == version
        assert engine.state.startswith(f"version {version} serves; version {version + number} was refused: ")
        assert drift(engine, tmp_path / "merged", ROWS) < BOUND


def test_a_killed_engine_comes_back_with_its_adapter(
    engine: VllmEngine, smollm2_folder: Path, tmp_path: Path
) -> None:
    version = engine.version
    write_merged(tmp_path / "merged", smollm2_folder, engine._followed.path)
    import psutil

    [victim] = engine.pids
    psutil.Process(victim).kill()
    assert drift(engine, tmp_path / "merged", ROWS) < BOUND
    assert engine.version == version
    assert engine.pids != [victim]
