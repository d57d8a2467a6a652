"""Sends each new version straight to vLLM, by vLLM's own sender and the routes of its server; no file is read.

    meet      /init_weight_transfer_engine: once, and again after a failure
    pause     /pause: no group begins; those under way end by the weights that began them
    send      /start_weight_update, /update_weights beside the transport (NCCL), /finish_weight_update with the version
    resume    /resume, whatever happened

All replicas go through each line together. The version goes into the weights folder too, afterwards: a replica that
has it takes nothing up, one that was started in between or that missed the transfer reads it there. So a transfer that
fails costs time and nothing else. vLLM is imported when the first version is sent.
"""

# pyright: reportMissingImports=false
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import httpx
import torch
from torch import Tensor

from guerdon_trainer.config import PushConfig, RecipeError

#: The longest that a connection may take, in seconds.
_CONNECT_S = 10.0


class PushFailed(RuntimeError):
    """A version did not reach every replica; the message says where it went wrong."""


class Tensors:
    """The tensors of one version as vLLM asks for them: a `WeightSource`, in its words."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._named: list[tuple[str, Tensor]] = []

    def become(self, state: Mapping[str, Tensor]) -> None:
        """Be another version. Of tensors that are one, such as a tied head, only the first is sent, as in a file."""
        seen: set[int] = set()
        self._named = []
        for name, tensor in state.items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                self._named.append((name, tensor.detach()))

    def metadata(self) -> list[Any]:
        """Name, dtype and shape of each, in the order of iteration."""
        from vllm.distributed.weight_transfer import ParamMeta

        return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self._named]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._named:
            yield name, tensor.to(self._device).contiguous()


class Replicas:
    """The routes of all replicas, asked at once: what vLLM's sender wants as its client.

    `version` is what `finish_weight_update` calls the weights.

    Raises:
        PushFailed: one of them does not answer, or refuses.
    """

    def __init__(self, config: PushConfig, token: str | None) -> None:
        self._urls = [url.rstrip("/") for url in config.urls]
        self._workers = config.workers
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout = httpx.Timeout(config.time_limit_s, connect=min(_CONNECT_S, config.time_limit_s))
        self.version = 0

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Have all workers meet the sender; those of a replica come after those of the ones before it."""
        first = init_info.get("rank_offset")
        bodies = [
            init_info if first is None else {**init_info, "rank_offset": first + number * self._workers}
            for number in range(len(self._urls))
        ]
        self._post("/init_weight_transfer_engine", [{"init_info": body} for body in bodies])

    def start_weight_update(self) -> None:
        """The old weights are about to go."""
        self._post("/start_weight_update")

    def update_weights(self, update_info: dict[str, Any] | list[dict[str, Any]]) -> None:
        """Have all workers take what is sent; returns when they have it."""
        self._post("/update_weights", [{"update_info": update_info}] * len(self._urls))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """The new weights are whole."""
        self._post("/finish_weight_update", [{"weight_version": str(self.version)}] * len(self._urls))

    def pause(self) -> None:
        """Begin nothing more, and end what is under way."""
        self._post("/pause?mode=wait")

    def resume(self) -> list[str]:
        """Go on; whoever cannot is named. One that is not paused has nothing to resume."""
        return [str(one) for one in self._all("/resume") if "not paused" not in str(one)]

    def _post(self, path: str, bodies: Sequence[dict[str, Any]] | None = None) -> None:
        for failure in self._all(path, bodies):
            raise failure

    def _all(self, path: str, bodies: Sequence[dict[str, Any]] | None = None) -> list[PushFailed]:
        """Ask every replica; what went wrong. None is at work when this returns."""
        given = bodies or [None] * len(self._urls)
        # Threads of its own: those of a route that hangs must not keep the next one waiting.
        with ThreadPoolExecutor(len(self._urls), thread_name_prefix="push") as threads:
            asked = threads.map(self._ask, [url + path for url in self._urls], given)
            return [failure for failure in asked if failure is not None]

    def _ask(self, url: str, body: dict[str, Any] | None) -> PushFailed | None:
        try:
            answer = httpx.post(url, json=body, headers=self._headers, timeout=self._timeout, trust_env=False)
        except httpx.HTTPError as error:
            return PushFailed(f"{url}: {type(error).__name__}: {error}")
        if answer.status_code != httpx.codes.OK:
            return PushFailed(f"{url}: {answer.status_code} {answer.text[:300]}")
        return None


#: Makes vLLM's sender: from what it is told for its client and the tensors it asks. It meets the workers at that.
MakeSender = Callable[[Replicas, Tensors], Any]


class Push:
    """Sends versions; used by rank 0 alone. `say` tells people what went wrong."""

    def __init__(
        self, config: PushConfig, make_sender: MakeSender, device: torch.device, *, token: str | None = None
    ) -> None:
        self._config = config
        self._limit_s = config.time_limit_s
        self._make_sender = make_sender
        self._device = device
        self._token = token
        self._begin_anew()
        self._hung: threading.Thread | None = None

    def send(self, version: int, state: Mapping[str, Tensor], say: Callable[[str], None]) -> bool:
        """Have every replica serve `version`; False when one does not, and will take it from the folder."""
        self._replicas.version = version
        self._tensors.become(state)
        try:
            self._meet()
            try:
                self._replicas.pause()
                self._bounded("the transfer", self._sender.send_weights)
            finally:
                left = self._replicas.resume()
        except Exception as error:
            self._give_up()
            say(
                f"version {version} was not sent ({type(error).__name__}: {error}); "
                "the rollout services take it from the folder"
            )
            return False
        for failure in left:
            say(f"version {version} was sent, but: {failure}")
        return True

    def _begin_anew(self) -> None:
        """The next version begins with a meeting. A transfer that hangs keeps what it has: its version, its tensors."""
        self._replicas = Replicas(self._config, self._token)
        self._tensors = Tensors(self._device)
        self._sender: Any = None

    @property
    def _hangs(self) -> bool:
        return self._hung is not None and self._hung.is_alive()

    def _meet(self) -> None:
        if self._hangs:
            raise PushFailed("an earlier transfer still hangs")
        if self._sender is None:

            def make() -> None:
                self._sender = self._make_sender(self._replicas, self._tensors)

            self._bounded("meeting the workers", make)

    def _bounded(self, what: str, work: Callable[[], None]) -> None:
        """Do it in a thread that may be left alone: a transport that waits for a peer that is gone waits for ever."""
        failures: list[BaseException] = []

        def run() -> None:
            try:
                if self._device.index is not None:
                    torch.cuda.set_device(self._device)  # a thread begins with the first one
                work()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run, name="push", daemon=True)
        thread.start()
        thread.join(self._limit_s)
        if thread.is_alive():
            self._hung = thread
            raise PushFailed(f"{what} took longer than {self._limit_s:g} s")
        if failures:
            raise failures[0]

    def _give_up(self) -> None:
        """Nobody knows what the transport is left in."""
        sender = self._sender
        self._begin_anew()
        if sender is not None and not self._hangs:
            with suppress(Exception):  # it is given up either way
                self._bounded("ending the sender", sender.shutdown)


def nccl_sender(config: PushConfig) -> MakeSender:
    """vLLM's sender over NCCL, for replicas that were started with `weight_transfer_config: {backend: nccl}`."""

    def make(replicas: Replicas, tensors: Tensors) -> Any:
        from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        info = NCCLTrainerInitInfo(
            master_address=config.master_address,
            master_port=config.master_port,
            world_size=1 + len(config.urls) * config.workers,
            rank=0,
        )
        return WeightTransferTrainerFactory.trainer_init(info, client=replicas, source=tensors)

    return make


def open_push(config: PushConfig | None, device: torch.device) -> Push | None:
    """What sends a run's weights; None where the recipe does not say so.

    Raises:
        RecipeError: vLLM is not installed here, there is no GPU, or the token is not set.
    """
    if config is None:
        return None
    if device.type != "cuda":
        raise RecipeError("rollout.push sends over NCCL, from a GPU: training.device must be cuda")
    if find_spec("vllm") is None:
        raise RecipeError("rollout.push needs vLLM's sender: install vllm beside the trainer")
    token = os.environ.get(config.token_env or "GUERDON_TOKEN")
    if config.token_env is not None and not token:
        raise RecipeError(f"rollout.push.token_env: the environment variable {config.token_env} is not set")
    return Push(config, nccl_sender(config), device, token=token)
