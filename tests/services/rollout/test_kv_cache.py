"""The cache with room holds what transformers' own holds, whatever is appended and whichever rows go on."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import DynamicCache, LlamaConfig, MistralConfig

from guerdon_services.rollout.engines.kv_cache import roomy_cache

LAYERS = 2
CONFIG = LlamaConfig(num_hidden_layers=LAYERS)


@st.composite
def histories(draw: st.DrawFn) -> list[int | list[int]]:
    """A prompt's length, then in any order: how many tokens come, or which rows go on."""
    rows = draw(st.integers(1, 4))
    history: list[int | list[int]] = [rows, draw(st.integers(1, 9))]
    for grows in draw(st.lists(st.booleans(), max_size=12)):
        if grows:
            history.append(draw(st.sampled_from([1, 1, 1, 70, 200])))
        else:
            kept = draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=6))
            history.append(kept)
            rows = len(kept)
    return history


@given(histories())
def test_it_holds_what_transformers_cache_holds(history: list[int | list[int]]) -> None:
    rows, *events = history
    assert isinstance(rows, int)
    ours, theirs = roomy_cache(CONFIG), DynamicCache(config=CONFIG)
    for event in events:
        if isinstance(event, list):
            ours.batch_select_indices(torch.tensor(event))
            theirs.batch_select_indices(torch.tensor(event))
            rows = len(event)
            continue
        for layer in range(LAYERS):
            keys, values = torch.rand(2, rows, 3, event, 4)
            for mine, other in zip(
                ours.update(keys, values, layer), theirs.update(keys, values, layer), strict=True
            ):
                assert torch.equal(mine, other)
        assert ours.get_seq_length() == theirs.get_seq_length()
        assert ours.get_mask_sizes(1, 0) == theirs.get_mask_sizes(1, 0)


def test_a_layer_with_a_window_stays_transformers_own() -> None:
    config = MistralConfig(num_hidden_layers=1, sliding_window=4)
    [layer] = roomy_cache(config).layers
    assert type(layer) is type(DynamicCache(config=config).layers[0])
