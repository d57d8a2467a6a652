"""Packs sequences into one row in which what several of them begin with stands once, and nothing is padding.

In lexical order each sequence adds to the row only what the one before it does not have: its tail. For the
sequences `a b c`, `a b d e` and `a f`:

    row         a b c | d e | f
    position    0 1 2 | 2 3 | 1

A tail sees itself, causally, and the tokens before it in its own sequence: a few spans of the row. So the prompt of a
group is computed once for all its responses, and a prompt with its reasoning once for several references.
"""

from collections.abc import Sequence
from dataclasses import dataclass

#: First index in the row, and the one after the last.
Span = tuple[int, int]


@dataclass(frozen=True)
class Tail:
    """What one sequence adds to the row, and the spans it sees beside itself, in order."""

    start: int
    end: int
    context: tuple[Span, ...]


@dataclass(frozen=True)
class PackedRow:
    """Ids and positions of the row, its tails from left to right, and where each sequence's tokens stand."""

    ids: list[int]
    positions: list[int]
    tails: list[Tail]
    #: In the order in which the sequences were given.
    paths: list[tuple[Span, ...]]

    def indices(self, sequence: int) -> list[int]:
        """The row's index of every token of a sequence."""
        return [index for start, end in self.paths[sequence] for index in range(start, end)]


def pack(sequences: Sequence[Sequence[int]]) -> PackedRow:
    """The row of all sequences. Equal ones share everything; the order of the row is that of their ids."""
    row = PackedRow([], [], [], [()] * len(sequences))
    before: tuple[int, ...] = ()
    path: tuple[Span, ...] = ()
    for index in sorted(range(len(sequences)), key=lambda i: tuple(sequences[i])):
        ids = tuple(sequences[index])
        shared = shared_prefix(before, ids)
        path = _first_tokens(path, shared)
        if shared < len(ids):
            start, end = len(row.ids), len(row.ids) + len(ids) - shared
            row.tails.append(Tail(start, end, path))
            row.ids.extend(ids[shared:])
            row.positions.extend(range(shared, len(ids)))
            path = _joined(path, (start, end))
        row.paths[index] = path
        before = ids
    return row


def packed_batches(sequences: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
    """Indices in batches whose rows have at most `max_tokens` tokens; what begins alike stays together.

    A sequence longer than `max_tokens` gets a batch of its own.
    """
    batches: list[list[int]] = []
    before: tuple[int, ...] = ()
    tokens = 0
    for index in sorted(range(len(sequences)), key=lambda i: (tuple(sequences[i]), i)):
        ids = tuple(sequences[index])
        tail = len(ids) - shared_prefix(before, ids)
        if batches and tokens + tail <= max_tokens:
            batches[-1].append(index)
            tokens += tail
        else:
            batches.append([index])
            tokens = len(ids)
        before = ids
    return batches


def packed_size(sequences: Sequence[Sequence[int]]) -> int:
    """Tokens of the row that `pack` makes of them."""
    ordered = sorted(map(tuple, sequences))
    return sum(
        len(ids) - shared_prefix(before, ids) for before, ids in zip([(), *ordered], ordered, strict=False)
    )


def shared_prefix(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """How many ids both begin with."""
    low, high = 0, min(len(first), len(second))
    while low < high:  # equal up to `low`; slices compare much faster than items
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _first_tokens(path: tuple[Span, ...], count: int) -> tuple[Span, ...]:
    kept: list[Span] = []
    for start, end in path:
        if count <= 0:
            break
        kept.append((start, min(end, start + count)))
        count -= end - start
    return tuple(kept)


def _joined(path: tuple[Span, ...], span: Span) -> tuple[Span, ...]:
    """Spans that touch are one."""
    if path and path[-1][1] == span[0]:
        return (*path[:-1], (path[-1][0], span[1]))
    return (*path, span)
