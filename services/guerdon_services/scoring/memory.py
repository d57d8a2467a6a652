"""What to do when a batch does not fit in memory."""

from collections.abc import Callable

import torch

from guerdon_services.runtime.scorer import OutOfMemory


def halve_when_out_of_memory(run: Callable[[list[int]], None], indices: list[int]) -> None:
    """Call `run` on the batch, and on its halves when it does not fit in memory.

    Raises:
        OutOfMemory: not even one sequence fits.
    """
    try:
        run(indices)
        return
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        if len(indices) == 1:
            raise OutOfMemory("not enough memory to score a sequence of this length") from error
    # Outside of the handler, whose traceback keeps the failed batch's tensors alive.
    middle = len(indices) // 2
    halve_when_out_of_memory(run, indices[:middle])
    halve_when_out_of_memory(run, indices[middle:])


def is_out_of_memory(error: BaseException) -> bool:
    """True for CUDA's out-of-memory error and for that of torch's CPU allocator, which is a bare RuntimeError."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)
