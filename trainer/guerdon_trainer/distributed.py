"""Several processes that train one policy: torchrun starts them, FSDP2 spreads weights and optimiser over them.

Every rank holds the whole batch and learns from its part of the micro-batches, so every count is known to all. Without
torchrun there is one rank, and nothing here does anything.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from guerdon_trainer.model import Policy

T = TypeVar("T")


@contextmanager
def process_group(device: str) -> Iterator[torch.device]:
    """Join the processes that torchrun started, if it did; gives the device of this one."""
    if not dist.is_torchelastic_launched():
        yield torch.device(device)
        return
    local = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if device == "cuda" else torch.device(device)
    if local.type == "cuda":
        torch.cuda.set_device(local)
    dist.init_process_group("cpu:gloo,cuda:nccl" if local.type == "cuda" else "gloo")
    try:
        yield local
    finally:
        dist.destroy_process_group()


def rank() -> int:
    """The number of this process; 0 talks to services and writes files."""
    return dist.get_rank() if dist.is_initialized() else 0


def ranks() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def from_first(make: Any) -> Any:
    """What `make()` gives on rank 0, on every rank; the others do not call it.

    Raises:
        RuntimeError: it failed on rank 0, which raises its own exception.
    """
    if ranks() == 1:
        return make()
    answer: list[Any] = [None, None]
    failure: BaseException | None = None
    if rank() == 0:
        try:
            answer[0] = make()
        except BaseException as error:
            failure, answer[1] = error, f"{type(error).__name__}: {error}"
    dist.broadcast_object_list(answer, src=0)
    if failure is not None:
        raise failure
    if answer[1] is not None:
        raise RuntimeError(f"rank 0 failed: {answer[1]}")
    return answer[0]


def sum_over_ranks(values: Tensor) -> Tensor:
    """The sum of every rank's tensor, on every rank."""
    if ranks() > 1:
        dist.all_reduce(values)
    return values


def gathered(own: T) -> list[T]:
    """What every rank gave, on every rank; small things only."""
    if ranks() == 1:
        return [own]
    everyone: list[Any] = [None] * ranks()
    dist.all_gather_object(everyone, own)
    return everyone


def shard(policy: Policy) -> None:
    """Spread the policy's parameters over the ranks, layer by layer; fp32 at rest, in `autocast`'s type in use."""
    if ranks() == 1:
        return
    device = next(policy.parameters()).device.type
    mesh = init_device_mesh(device, (ranks(),))
    precision = MixedPrecisionPolicy(param_dtype=policy.autocast, reduce_dtype=torch.float32)
    for layer in policy.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            fully_shard(layer, mesh=mesh, mp_policy=precision)
    fully_shard(policy, mesh=mesh, mp_policy=precision)


def whole(state: Any) -> Any:
    """The same tree with every sharded tensor put together on the CPU; all ranks must ask, and all get it."""
    if isinstance(state, DTensor):
        return state.full_tensor().detach().cpu()
    if isinstance(state, Tensor):
        return state.detach().cpu()
    if isinstance(state, dict):
        return {key: whole(value) for key, value in state.items()}
    if isinstance(state, list):
        return [whole(value) for value in state]
    return state


def copy_whole(target: Tensor, source: Tensor) -> None:
    """Copy a whole tensor into one that may be sharded; every rank takes its part."""
    with torch.no_grad():
        if isinstance(target, DTensor):
            source = distribute_tensor(
                source.to(target.device), target.device_mesh, target.placements, src_data_rank=None
            )
        target.copy_(source)


def total_norm(parameters: list[nn.Parameter], largest: float) -> Tensor:
    """Scale the gradients so that their norm over all ranks is at most `largest`; returns what it was."""
    norm = torch.nn.utils.clip_grad_norm_(parameters, largest)
    return cast(DTensor, norm).full_tensor() if isinstance(norm, DTensor) else norm
