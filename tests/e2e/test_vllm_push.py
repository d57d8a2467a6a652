"""Each version sent to two replicas of vLLM by vLLM's own sender and routes: `make test-vllm`. Elsewhere it skips."""

# pyright: reportMissingImports=false
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from rich.console import Console

from guerdon import weights
from guerdon.redis_server import redis_server
from guerdon.services_file import ServicesConfig, process_specs, with_addresses
from guerdon.supervisor import Supervisor, free_ports
from guerdon.testing import StubService
from guerdon_trainer.config import PushConfig, RunConfig
from guerdon_trainer.launch import clients_of, ensure_policy, finish
from guerdon_trainer.live import LiveView
from guerdon_trainer.model import load_policy, load_tokenizer
from guerdon_trainer.run_folder import RunFolder, open_folder, read_lines
from guerdon_trainer.train import Run
from guerdon_trainer.weights_push import Push, Replicas, Tensors

pytest.importorskip("vllm", reason="vLLM is not installed here: make test-vllm")

pytestmark = [pytest.mark.timeout(1800), pytest.mark.filterwarnings("default")]

CPU = torch.device("cpu")
#: What fp32 engines on one CPU may differ by, in nats.
BOUND = 1e-4
PROMPTS = ["12+34=", "56+7="]


def recipe(folder: Path, outcome: str) -> RunConfig:
    # Heads as large as vLLM's CPU kernels want them.
    tiny = {"hidden_size": 64, "layers": 2, "heads": 2, "key_value_heads": 1}
    replica = {
        "service": "rollout",
        "queue": "rollout",
        "settings": {
            "model": str(folder / "run/weights/policy"),
            "engine": "vllm",
            "kv_cache_mb": 64,
            "update_limit_s": 300,
            "vllm": {"weight_transfer_config": {"backend": "gloo"}},
        },
        "env": {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(folder)]),
        },
    }
    return RunConfig.model_validate(
        {
            "name": "unit",
            "folder": folder / "run",
            "policy": {"kind": "tiny", **tiny, "warmup_steps": 1, "warmup_batch": 8},
            "data": {"source": "arithmetic", "size": 16},
            "eval_data": {"source": "arithmetic", "size": 4, "settings": {"split": "held_out"}},
            "rollout": {"prompts_per_step": 4, "group_size": 4, "max_new_tokens": 6},
            "rewards": [{"name": "outcome", "url": outcome}],
            "loss": {"name": "gspo"},
            "optimizer": {"lr": 0.01},
            "filter": None,
            "training": {"steps": 3, "checkpoint_every": 3},
            "services": {"first": replica, "second": replica},
        }
    )


def plug_in(folder: Path) -> None:
    """Let vLLM find `gloo_transfer` among its plugins."""
    installed = folder / "gloo_transfer-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: gloo-transfer\nVersion: 0\n")
    (installed / "entry_points.txt").write_text("[vllm.general_plugins]\ngloo = gloo_transfer:register\n")


@dataclass
class Fleet:
    """Two replicas that run, the run they belong to, and what sends to them."""

    config: RunConfig
    run: Run
    folder: RunFolder
    redis: str
    urls: list[str]
    push: Push
    senders: list[Any] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def log(self) -> str:
        return "".join(
            (self.folder.path / "logs" / f"{name}.log").read_text() for name in ("first", "second")
        )

    def send(self, version: int, model: Any) -> bool:
        return self.push.send(version, model.state_dict(), self.said.append)

    def write(self, version: int, model: Any) -> None:
        tokenizer = load_tokenizer(self.folder.policy)

        def both(path: Path) -> None:
            model.save_pretrained(path)
            tokenizer.save_pretrained(path)

        weights.publish(self.folder.weights, version, both)

    def check(self, version: int, model: Any) -> None:
        """Both replicas serve these weights under this version: greedy tokens and log-probs are the model's own."""
        for url in self.urls:
            body = {
                "samples": [{"prompt": prompt} for prompt in PROMPTS],
                "sampling": {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True},
                "min_version": version,
            }
            answer = httpx.post(f"{url}/v1/generate", json=body, timeout=600)
            for result in answer.json()["results"]:
                assert result["status"] == "ok", result
                [rollout] = result["rollouts"]
                assert rollout["model_version"] == version
                ids = torch.tensor([result["prompt_token_ids"] + rollout["token_ids"]])
                with torch.inference_mode():
                    logps_TV = model(input_ids=ids).logits[0, -7:-1].log_softmax(-1)
                assert rollout["token_ids"] == logps_TV.argmax(-1).tolist()
                assert rollout["logprobs"] == pytest.approx(logps_TV.amax(-1).tolist(), abs=BOUND)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    from vllm.distributed.weight_transfer import WeightTransferTrainerFactory

    from tests.e2e import gloo_transfer

    gloo_transfer.register()
    folder = tmp_path_factory.mktemp("push")
    plug_in(folder)
    with (
        StubService(lambda sample: float(len(sample.response_token_ids) % 2)) as outcome,
        redis_server() as redis,
    ):
        config = recipe(folder, outcome.url)
        run_folder = open_folder(config)
        ensure_policy(config, run_folder, lambda text: None)
        run = Run(config, LiveView("test", 3, Console(quiet=True)))
        services = with_addresses(ServicesConfig(services=config.services))
        urls = [f"http://{one.http}" for one in services.services.values()]
        [port] = free_ports(1)
        push_config = PushConfig(urls=urls, master_address="127.0.0.1", master_port=port, time_limit_s=300)
        senders: list[Any] = []

        def make(replicas: Replicas, tensors: Tensors) -> Any:
            info = gloo_transfer.TrainerInfo("127.0.0.1", port, 3, rank=0)
            senders.append(WeightTransferTrainerFactory.trainer_init(info, client=replicas, source=tensors))
            return senders[-1]

        with Supervisor(process_specs(services, redis, run_folder.path / "logs")) as supervisor:
            supervisor.wait_ready(600)
            push = Push(push_config, make, CPU)
            yield Fleet(config, run, run_folder, redis, urls, push, senders)


def other(fleet: Fleet, seed: int) -> Any:
    """The policy with every weight moved."""
    model = load_policy(fleet.folder.policy, CPU)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return model


def test_a_run_trains_on_what_it_sent(fleet: Fleet) -> None:
    view = LiveView("test", 3, Console(quiet=True))
    fleet.run._send = lambda version, state: fleet.push.send(version, state, fleet.said.append)
    finish(fleet.run, clients_of(fleet.run, fleet.redis, view), view)
    rows = read_lines(fleet.folder.metrics)
    assert fleet.said == []
    assert [row["policy_version"] for row in rows] == [1, 2, 3]
    assert [row["unrewarded"] for row in rows] == [0, 0, 0]
    # Sampled by the weights that the trainer had: rounding, and no update in between.
    assert max(row["engine_mismatch_max"] for row in rows) < BOUND
    fleet.check(3, load_policy(fleet.folder.model, CPU))
    assert len(fleet.senders) == 1, "they meet once"
    # The versions are in the folder too, and nobody read them there.
    assert [one.version for one in weights.published(fleet.folder.weights)] == [2, 3]
    assert "weights taken up" not in fleet.log()


def test_what_is_sent_serves_before_it_is_written_and_the_folder_goes_on(fleet: Fleet) -> None:
    sent, written = other(fleet, 10), other(fleet, 11)
    assert fleet.send(10, sent)
    fleet.check(10, sent)
    fleet.write(10, sent)
    fleet.write(11, written)
    fleet.check(11, written)
    taken_up = [line for line in fleet.log().splitlines() if "weights taken up" in line]
    assert [json.loads(line)["version"] for line in taken_up] == [11, 11]


def test_a_transfer_that_breaks_off_leaves_the_version_before_it(fleet: Fleet) -> None:
    serving, never, after = other(fleet, 11), other(fleet, 12), other(fleet, 13)
    fleet.check(11, serving)
    fleet.senders[-1].breaks_after = 5
    assert not fleet.send(12, never)
    assert "version 12 was not sent (RuntimeError: the cable is out)" in fleet.said[-1]
    for url in fleet.urls:
        told = httpx.get(f"{url}/weight_info", timeout=60).json()
        assert told["weight_version"] == "11"
        assert "came in part" in told["state"]
    fleet.check(11, serving)
    # It goes into the folder all the same, and is taken up there; the next one is sent again.
    fleet.write(12, never)
    fleet.check(12, never)
    assert fleet.send(13, after)
    fleet.check(13, after)
    assert len(fleet.senders) == 2


def test_nccls_sender_is_told_who_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.distributed.weight_transfer import WeightTransferTrainerFactory

    from guerdon_trainer.weights_push import nccl_sender

    told: list[Any] = []
    monkeypatch.setattr(
        WeightTransferTrainerFactory, "trainer_init", lambda info, *, client, source: told.append(info)
    )
    config = PushConfig(urls=["http://a", "http://b"], workers=4, master_address="10.0.0.1", master_port=7)
    nccl_sender(config)(Replicas(config, None), Tensors(CPU))
    [info] = told
    assert (info.backend, info.rank, info.master_address, info.master_port, info.world_size) == (
        "nccl",
        0,
        "10.0.0.1",
        7,
        9,
    )
