"""Several processes that train one policy: torchrun starts them, FSDP2 spreads weights and optimiser over them.

Every rank holds the whole batch and learns from its part of the micro-batches, so every count is known to all. Without
torchrun there is one rank, and nothing here does anything.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.modeling_layers import GradientCheckpointingLayer

T = TypeVar("T")
#: How long a rank waits for the others: rank 0 may wait for rollouts. Should one die, torchrun ends the rest.
_PATIENCE = timedelta(hours=24)


class DeviceMissing(RuntimeError):
    """The recipe asks for a device that is not here."""


def local_device(device: str) -> torch.device:
    """The device of this process: of several on a machine, each takes the GPU of its number.

    Raises:
        DeviceMissing: torch finds no such GPU.
    """
    local = torch.device(device)
    if device == "cuda" and dist.is_torchelastic_launched():
        local = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    if local.type == "cuda" and (local.index or 0) >= torch.cuda.device_count():
        raise DeviceMissing(
            f"training.device is {device}, and torch finds {torch.cuda.device_count()} GPUs on this machine"
        )
    return local


def is_follower() -> bool:
    """Whether torchrun started this process as another than the first; known before it has joined the others."""
    return dist.is_torchelastic_launched() and os.environ["RANK"] != "0"


@contextmanager
def process_group(device: str) -> Iterator[None]:
    """Join the processes that torchrun started, if it did and this one has not yet."""
    if not dist.is_torchelastic_launched() or dist.is_initialized():
        yield
        return
    local = local_device(device)
    if local.type == "cuda":
        torch.cuda.set_device(local)
    backend = "cpu:gloo,cuda:nccl" if local.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=_PATIENCE)
    try:
        yield
    finally:
        dist.destroy_process_group()


def rank() -> int:
    """The number of this process; 0 talks to services and writes files."""
    return dist.get_rank() if dist.is_initialized() else 0


def ranks() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def tell(order: Any) -> None:
    """Rank 0 says what all do next; see `orders`."""
    if ranks() > 1:
        dist.broadcast_object_list([order], src=0, device=torch.device("cpu"))


def orders() -> Iterator[Any]:
    """What rank 0 says, on every other rank, until it says None."""
    while True:
        heard: list[Any] = [None]
        dist.broadcast_object_list(heard, src=0, device=torch.device("cpu"))
        if heard[0] is None:
            return
        yield heard[0]


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


def shard(policy: nn.Module, dtype: torch.dtype | None) -> None:
    """Spread a policy's parameters over the ranks, layer by layer; as they are at rest, of `dtype` in use."""
    if ranks() == 1:
        return
    device = next(policy.parameters()).device.type
    mesh = init_device_mesh(device, (ranks(),))
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
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
        target.copy_(_like(target, source))


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a whole optimiser's state into one whose parameters may be sharded."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    own = {
        index: {
            name: _like(parameters[index], value) if value.shape == parameters[index].shape else value
            for name, value in values.items()
        }
        for index, values in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": own})


def _like(target: Tensor, source: Tensor) -> Tensor:
    if not isinstance(target, DTensor):
        return source
    mesh, placements = target.device_mesh, target.placements
    return distribute_tensor(source.to(target.device), mesh, placements, src_data_rank=None)


def total_norm(parameters: list[nn.Parameter], largest: float) -> Tensor:
    """Scale the gradients so that their norm over all ranks is at most `largest`; returns what it was."""
    norm = torch.nn.utils.clip_grad_norm_(parameters, largest)
    return cast(DTensor, norm).full_tensor() if isinstance(norm, DTensor) else norm
