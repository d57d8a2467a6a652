"""A packed row holds every sequence, shares what it can, and is in no way larger than it must be."""

from hypothesis import given
from hypothesis import strategies as st

from guerdon.logprobs.packing import Tail, pack, packed_batches, shared_prefix

# Few ids and short sequences: prefixes are shared all the time.
IDS = st.lists(st.integers(0, 2), max_size=8)


def test_the_example_of_the_module() -> None:
    a, b, c, d, e, f = range(6)
    row = pack([[a, f], [a, b, d, e], [a, b, c]])
    assert row.ids == [a, b, c, d, e, f]
    assert row.positions == [0, 1, 2, 2, 3, 1]
    assert row.tails == [Tail(0, 3, ()), Tail(3, 5, ((0, 2),)), Tail(5, 6, ((0, 1),))]
    assert row.paths == [((0, 1), (5, 6)), ((0, 2), (3, 5)), ((0, 3),)]
    assert row.indices(1) == [0, 1, 3, 4]


def test_a_branch_of_a_branch_sees_three_spans() -> None:
    row = pack([[1, 1, 1], [1, 1, 2, 2], [1, 1, 2, 3]])
    assert row.tails[-1] == Tail(5, 6, ((0, 2), (3, 4)))


@given(st.lists(IDS, max_size=8))
def test_each_path_spells_its_sequence_at_the_right_positions(sequences: list[list[int]]) -> None:
    row = pack(sequences)
    for index, ids in enumerate(sequences):
        path = row.indices(index)
        assert [row.ids[i] for i in path] == ids
        assert [row.positions[i] for i in path] == list(range(len(ids)))


@given(st.lists(IDS, max_size=8))
def test_the_row_holds_one_token_per_distinct_prefix(sequences: list[list[int]]) -> None:
    prefixes = {tuple(ids[:n]) for ids in sequences for n in range(1, len(ids) + 1)}
    assert len(pack(sequences).ids) == len(prefixes)


@given(st.lists(IDS, max_size=8))
def test_a_tail_sees_exactly_the_tokens_before_it(sequences: list[list[int]]) -> None:
    row = pack(sequences)
    assert [i for tail in row.tails for i in range(tail.start, tail.end)] == list(range(len(row.ids)))
    for tail in row.tails:
        seen = [i for start, end in tail.context for i in range(start, end)]
        path = next(
            indices
            for indices in map(row.indices, range(len(sequences)))
            if indices[len(seen) : len(seen) + tail.end - tail.start] == list(range(tail.start, tail.end))
        )
        assert path[: len(seen)] == seen


@given(st.lists(IDS.filter(bool), max_size=12), st.integers(1, 20))
def test_batches_hold_every_sequence_once_within_the_budget(sequences: list[list[int]], most: int) -> None:
    batches = packed_batches(sequences, most)
    assert sorted(i for batch in batches for i in batch) == list(range(len(sequences)))
    for batch in batches:
        assert len(batch) == 1 or len(pack([sequences[i] for i in batch]).ids) <= most


@given(IDS, IDS)
def test_shared_prefix_counts_equal_first_ids(first: list[int], second: list[int]) -> None:
    count = 0
    while count < min(len(first), len(second)) and first[count] == second[count]:
        count += 1
    assert shared_prefix(tuple(first), tuple(second)) == count
