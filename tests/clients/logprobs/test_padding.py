"""Batches for models that cannot be packed."""

from hypothesis import given
from hypothesis import strategies as st

from guerdon.logprobs.padding import padded_batches


@given(st.lists(st.integers(1, 30), max_size=20), st.integers(1, 100))
def test_batches_hold_every_sequence_once_within_the_budget(lengths: list[int], most: int) -> None:
    sequences = [[0] * length for length in lengths]
    batches = padded_batches(sequences, most)
    assert sorted(i for batch in batches for i in batch) == list(range(len(sequences)))
    for batch in batches:
        longest = max(lengths[i] for i in batch)
        assert len(batch) == 1 or len(batch) * longest <= most
