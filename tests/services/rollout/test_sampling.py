"""What else a row may ask for: penalties, min-p, stop ids, least lengths, log-probs at temperature 1."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from guerdon_services import models
from guerdon_services.rollout.engine import Row, Sampled
from guerdon_services.rollout.engines.sampling import Sampler, _invert
from guerdon_services.rollout.engines.transformers import TransformersEngine
from guerdon_services.rollout.settings import RolloutSettings

ROW = Row(prompt_ids=(60, 61), max_new_tokens=12, temperature=1.0, top_p=1.0, top_k=0, stop=(), seed=3)
GREEDY = replace(ROW, temperature=0.0)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def engine(tiny_llama: Path) -> TransformersEngine:
    return TransformersEngine(RolloutSettings(model=tiny_llama))


def one(engine: TransformersEngine, row: Row) -> Sampled:
    [sampled] = engine.generate([row])
    return sampled


def drawn_from(row: Row, logits: list[float], *, written: tuple[int, ...] = ()) -> set[int]:
    """Every token that is drawn with these logits after `written`, in 400 seeds."""
    rows = [replace(row, seed=seed) for seed in range(400)]
    sampler = Sampler(rows, [frozenset(row.stop_token_ids)] * 400, len(logits), CPU)
    for token in written:
        certain = torch.full((400, len(logits)), -50.0)
        certain[:, token] = 50.0
        sampler.draw(certain)
    return set(sampler.draw(torch.tensor([logits] * 400))[0].tolist())


def test_min_p_is_a_share_of_the_best_tokens_probability() -> None:
    # Probabilities 0.5, 0.3, 0.15, 0.05.
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().tolist()
    row = replace(ROW, prompt_ids=(0,))
    assert drawn_from(row, logits) == {0, 1, 2, 3}
    assert drawn_from(replace(row, min_p=0.2), logits) == {0, 1, 2}
    assert drawn_from(replace(row, min_p=0.5), logits) == {0, 1}
    assert drawn_from(replace(row, min_p=1.0), logits) == {0}
    # Of what min-p leaves (0.5 and 0.3) the nucleus of 0.6 is the first alone.
    assert drawn_from(replace(row, min_p=0.5, top_p=0.6), logits) == {0}


def test_extremes_draw_a_token_all_the_same() -> None:
    row = replace(ROW, prompt_ids=(0,))
    assert drawn_from(replace(row, top_p=5e-324, min_p=0.9), [0.0, 1.0, -1.0]) == {1}
    assert drawn_from(replace(row, repetition_penalty=0.1, temperature=1e-9), [3.0, 1.0, -1.0]) == {0}
    assert drawn_from(replace(row, stop_token_ids=(0, 1), min_new_tokens=4), [0.0, 0.5]) == {0, 1}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("vocabulary", [4, 600])
@pytest.mark.parametrize("spoiled", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_an_error_and_no_token(
    temperature: float, vocabulary: int, spoiled: float
) -> None:
    rows = [replace(ROW, prompt_ids=(0,), temperature=temperature)] * 2
    logits_BV = torch.zeros(2, vocabulary)
    logits_BV[1, 2] = spoiled
    with pytest.raises(FloatingPointError, match="not finite"):
        Sampler(rows, [frozenset()] * 2, vocabulary, CPU).draw(logits_BV)


def test_penalties_move_what_is_drawn_and_not_what_is_reported() -> None:
    row = replace(ROW, prompt_ids=(3,), temperature=0.0)
    logits = [1.0, 0.9, -1.0, 0.95]
    assert drawn_from(row, logits, written=(0,)) == {0}
    assert drawn_from(replace(row, presence_penalty=0.08), logits, written=(0,)) == {3}
    assert drawn_from(replace(row, presence_penalty=0.08), logits, written=(0, 0)) == {3}
    assert drawn_from(replace(row, frequency_penalty=0.03), logits, written=(0,)) == {0}
    assert drawn_from(replace(row, frequency_penalty=0.03), logits, written=(0, 0)) == {3}
    # The prompt's token counts as well: 1.0 / 1.2 and 0.95 / 1.2 fall below 0.9.
    assert drawn_from(replace(row, repetition_penalty=1.2), logits, written=(0,)) == {1}
    # A negative logit is multiplied: -1 becomes -1.2, below the -1.1 of a token that is new.
    negative = [-1.0, -1.1, -9.0, -9.0]
    assert drawn_from(replace(row, repetition_penalty=1.2), negative, written=(0,)) == {1}

    sampler = Sampler([replace(row, presence_penalty=2.0)], [frozenset()], 4, CPU)
    sampler.draw(torch.tensor([logits]))
    token, logp, _ = sampler.draw(torch.tensor([logits]))
    assert token.item() == 3
    assert logp.item() == pytest.approx(torch.tensor(logits).log_softmax(-1)[3].item())


def test_a_row_without_penalties_is_unharmed_by_its_neighbours(engine: TransformersEngine) -> None:
    alone = one(engine, ROW).token_ids
    company = [
        replace(ROW, presence_penalty=2.0),
        ROW,
        replace(ROW, min_p=0.5),
        replace(ROW, min_new_tokens=9),
    ]
    assert engine.generate(company)[1].token_ids == alone


def test_stop_ids_end_a_response_before_their_text(engine: TransformersEngine) -> None:
    whole = one(engine, GREEDY)
    stop = whole.token_ids[4]
    first = whole.token_ids.index(stop)
    stopped = one(engine, replace(GREEDY, stop_token_ids=(stop, 9)))
    assert stopped.token_ids == whole.token_ids[: first + 1]
    assert stopped.finish_reason == "stop"
    assert stopped.text == engine.tokenizer.decode(whole.token_ids[:first], skip_special_tokens=True)


def test_no_end_before_the_least_length(engine: TransformersEngine) -> None:
    stop = one(engine, GREEDY).token_ids[0]
    row = replace(GREEDY, stop_token_ids=(stop,))
    assert len(one(engine, row).token_ids) == 1
    longer = one(engine, replace(row, min_new_tokens=5, ignore_eos=True))
    assert len(longer.token_ids) > 5 or longer.finish_reason == "length"
    assert stop not in longer.token_ids[:5]


def test_the_end_token_can_be_ignored(engine: TransformersEngine) -> None:
    rows = [replace(ROW, seed=seed, max_new_tokens=40) for seed in range(40)]
    ended = [row for row, sampled in zip(rows, engine.generate(rows), strict=True) if 2 in sampled.token_ids]
    assert ended, "some response must end for this test to say anything"
    for sampled in engine.generate([replace(row, ignore_eos=True) for row in ended]):
        assert len(sampled.token_ids) == 40
        assert 2 in sampled.token_ids


def test_the_least_tokens_hold_no_end_token_even_where_it_is_ignored(engine: TransformersEngine) -> None:
    rows = [replace(ROW, seed=seed, max_new_tokens=40, ignore_eos=True) for seed in range(40)]
    held = [row for row, one in zip(rows, engine.generate(rows), strict=True) if 2 in one.token_ids[:30]]
    assert held, "some response must hold it for this test to say anything"
    for sampled in engine.generate([replace(row, min_new_tokens=30) for row in held]):
        assert 2 not in sampled.token_ids[:30]


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_raw_logprobs_are_at_temperature_1(
    engine: TransformersEngine, tiny_llama: Path, temperature: float
) -> None:
    row = replace(ROW, temperature=temperature, top_p=0.9, raw_logprobs=True)
    sampled = one(engine, row)
    with torch.no_grad():
        ids = torch.tensor([[*row.prompt_ids, *sampled.token_ids]])
        logps = models.load(tiny_llama).model(input_ids=ids).logits[0].log_softmax(-1)
    expected = [logps[1 + step, token].item() for step, token in enumerate(sampled.token_ids)]
    assert sampled.raw_logprobs == pytest.approx(expected, abs=1e-4)
    assert (sampled.raw_logprobs == sampled.logprobs) == (temperature != 0.5)
    assert one(engine, replace(row, raw_logprobs=False)).raw_logprobs == []


def test_without_a_seed_samples_differ(engine: TransformersEngine) -> None:
    rows = [replace(ROW, seed=None)] * 4
    assert len({tuple(sampled.token_ids) for sampled in engine.generate(rows)}) == 4


@given(st.sampled_from([1, 30, 256, 257, 1000, 5120]), st.integers(0, 2**32), st.data())
def test_large_vocabularies_are_drawn_block_by_block_like_small_ones(
    vocabulary: int, seed: int, data: st.DataObject
) -> None:
    generator = torch.Generator().manual_seed(seed)
    masses_1V = torch.rand(1, vocabulary, generator=generator) ** 8
    masses_1V *= torch.rand(1, vocabulary, generator=generator) > data.draw(st.sampled_from([0.0, 0.5, 0.99]))
    masses_1V[0, data.draw(st.integers(0, vocabulary - 1))] = 1.0
    uniform = data.draw(st.floats(0, 1, exclude_max=True))
    [token] = _invert(masses_1V, torch.tensor([uniform], dtype=torch.float64)).tolist()
    cumulative_V = masses_1V[0].double().cumsum(-1)
    before, after = cumulative_V[token] - masses_1V[0, token], cumulative_V[token]
    assert masses_1V[0, token] > 0
    # Sums of a block are fp32: a share within a millionth of a boundary may fall on either side.
    assert before / cumulative_V[-1] - 1e-6 <= uniform <= after / cumulative_V[-1] + 1e-6
