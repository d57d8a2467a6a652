"""A batch that is too large for the memory is made smaller, and never becomes a score."""

import pytest
import torch

from guerdon_services.runtime.scorer import OutOfMemory
from guerdon_services.scoring import halve_when_out_of_memory


def test_a_batch_that_does_not_fit_is_halved() -> None:
    calls: list[list[int]] = []

    def run(indices: list[int]) -> None:
        calls.append(indices)
        if len(indices) > 2:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")

    halve_when_out_of_memory(run, [0, 1, 2, 3, 4])
    assert calls == [[0, 1, 2, 3, 4], [0, 1], [2, 3, 4], [2], [3, 4]]


def test_one_sequence_that_does_not_fit_is_unavailable_and_no_score() -> None:
    def run(indices: list[int]) -> None:
        raise torch.OutOfMemoryError("no")

    with pytest.raises(OutOfMemory, match="memory"):
        halve_when_out_of_memory(run, [0, 1])


def test_other_errors_are_not_taken_for_lack_of_memory() -> None:
    def run(indices: list[int]) -> None:
        raise RuntimeError("shape mismatch")

    with pytest.raises(RuntimeError, match="shape"):
        halve_when_out_of_memory(run, [0, 1])
