"""vLLM's NCCL transfer with gloo in NCCL's place, for CPUs: a backend that vLLM finds through its own factory.

Meeting, routes and what they carry are NCCL's; only who moves the bytes differs. vLLM's processes load this file as a
plugin, see `register`.
"""

# pyright: reportMissingImports=false, reportPrivateImportUsage=false, reportAttributeAccessIssue=false
import datetime
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.distributed import BroadcastOptions, ProcessGroupGloo, TCPStore
from vllm.distributed.weight_transfer import WeightTransferEngineFactory, WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo, worker_init_payload
from vllm.distributed.weight_transfer.nccl_engine import (
    NCCLTrainerInitInfo,
    NCCLTrainerWeightTransferEngine,
    NCCLWeightTransferEngine,
    NCCLWeightTransferUpdateInfo,
)

BACKEND = "gloo"
_LIMIT = datetime.timedelta(seconds=120)


def _meet(info: Any, rank: int) -> ProcessGroupGloo:
    store = TCPStore(info.master_address, info.master_port, info.world_size, rank == 0, _LIMIT)
    options = ProcessGroupGloo._Options()
    options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = _LIMIT
    return ProcessGroupGloo(store, rank, info.world_size, options)


def _broadcast(group: Any, tensor: torch.Tensor) -> None:
    options = BroadcastOptions()
    options.rootRank = 0
    group.broadcast([tensor], options).wait()


class Worker(NCCLWeightTransferEngine):
    """The side of a worker of vLLM."""

    def init_transfer_engine(self, init_info: NCCLWeightTransferInitInfo) -> None:
        self.model_update_group: Any = _meet(init_info, self.parallel_config.rank + init_info.rank_offset)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # As the base class, which then waits for an accelerator.
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: NCCLWeightTransferUpdateInfo) -> None:
        for name, dtype, shape in zip(
            update_info.names, update_info.dtype_names, update_info.shapes, strict=True
        ):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            _broadcast(self.model_update_group, tensor)
            self.model.load_weights([(name, tensor)])

    def shutdown(self) -> None:
        self.model_update_group = None


@dataclass
class TrainerInfo(NCCLTrainerInitInfo):
    """What the trainer's side is made from."""

    backend: ClassVar[str] = BACKEND


class Trainer(NCCLTrainerWeightTransferEngine):
    """The trainer's side: the order of routes is vLLM's own. It fails after `breaks_after` tensors."""

    breaks_after: int | None = None

    @classmethod
    def trainer_init(cls, init_info: Any, *, client: Any, source: Any = None) -> "Trainer":
        engine = cls(client=client, source=source)
        worker = NCCLWeightTransferInitInfo(
            master_address=init_info.master_address,
            master_port=init_info.master_port,
            rank_offset=1,
            world_size=init_info.world_size,
        )
        with ThreadPoolExecutor(1) as threads:
            met = threads.submit(client.init_weight_transfer_engine, worker_init_payload(worker))
            engine.model_update_group = _meet(init_info, 0)
            met.result()
        return engine

    def _broadcast(self, source: Any, meta: Any) -> None:
        for number, (_, tensor) in enumerate(self._checked_iter(source, meta)):
            if number == self.breaks_after:
                raise RuntimeError("the cable is out")
            _broadcast(self.model_update_group, tensor)

    def shutdown(self) -> None:
        self.model_update_group = None


def register() -> None:
    """What vLLM calls in each of its processes, and a test in its own."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, Worker)
        WeightTransferTrainerFactory.register_engine(BACKEND, Trainer)
