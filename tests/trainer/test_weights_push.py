"""Weights sent through vLLM's routes: in which order, and what a failure at any of them leaves.

`tests/e2e/test_vllm_push.py` does it with vLLM itself; its transport is not here.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors import safe_open
from torch import Tensor

from guerdon import weights
from guerdon_trainer import train as train_module
from guerdon_trainer.config import PushConfig, RecipeError, RunConfig
from guerdon_trainer.dry_run import Checks, Failed, _check_push
from guerdon_trainer.launch import ensure_policy
from guerdon_trainer.live import LiveView
from guerdon_trainer.model import Policy, load_policy
from guerdon_trainer.run_folder import open_folder, read_lines
from guerdon_trainer.train import Run, train
from guerdon_trainer.weights_push import Push, Replicas, Tensors, open_push
from tests.waiting import PATIENCE_S

CPU = torch.device("cpu")
STATE = {"a.weight": torch.arange(6.0).view(2, 3), "b.weight": torch.ones(2, dtype=torch.bfloat16)}
UPDATE = ["/start_weight_update", "/update_weights", "/finish_weight_update"]


@dataclass
class Stub:
    """A rollout service as far as these routes go; `refuses` are answered with 500."""

    calls: list[tuple[str, Any]] = field(default_factory=list)
    refuses: set[str] = field(default_factory=set)
    tokens: set[str | None] = field(default_factory=set)
    paused: bool = False
    url: str = ""

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.calls]

    def answer(self, path: str, body: Any, token: str | None) -> tuple[int, str]:
        self.calls.append((path, body))
        self.tokens.add(token)
        if path in self.refuses:
            return 500, '{"error": "as told"}'
        if path == "/resume" and not self.paused:
            return 409, '{"error": "the engine is not paused"}'
        if path in UPDATE and not self.paused:
            return 409, '{"error": "pause the engine first"}'
        self.paused = {"/pause?mode=wait": True, "/resume": False}.get(path, self.paused)
        return 200, "{}"


@pytest.fixture
def stubs() -> Iterator[list[Stub]]:
    made = [Stub(), Stub()]
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _handler(stub)) for stub in made]
    threads = [threading.Thread(target=server.serve_forever, args=(0.01,)) for server in servers]
    for stub, server, thread in zip(made, servers, threads, strict=True):
        stub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread.start()
    yield made
    for server, thread in zip(servers, threads, strict=True):
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(stub: Stub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            given = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            token = self.headers.get("Authorization")
            status, text = stub.answer(self.path, json.loads(given) if given else None, token)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


class Sender:
    """Calls its client as vLLM's sender does; `sent` is what went over the transport, which is not there."""

    def __init__(self, replicas: Replicas, tensors: Tensors) -> None:
        self._replicas = replicas
        self._tensors = tensors
        self.sent: list[dict[str, Tensor]] = []
        self.ended = False
        self.during: Callable[[], object] = lambda: None
        self.ending: Callable[[], object] = lambda: None
        replicas.init_weight_transfer_engine({"master_port": 1, "rank_offset": 1, "world_size": 5})

    def send_weights(self) -> None:
        self._replicas.start_weight_update()
        self._replicas.update_weights({"names": [name for name, _ in self._tensors]})
        self.during()
        self.sent.append(dict(self._tensors))
        self._replicas.finish_weight_update()

    def shutdown(self) -> None:
        self.ending()
        self.ended = True


class Sending:
    """A `Push` to the stubs, with all that came of it."""

    def __init__(self, stubs: list[Stub], **settings: Any) -> None:
        self.senders: list[Sender] = []
        self.said: list[str] = []
        urls = [stub.url for stub in stubs]
        config = PushConfig(urls=urls, workers=2, master_address="127.0.0.1", **settings)
        self._push = Push(config, self._make, CPU, token="secret")

    def _make(self, replicas: Replicas, tensors: Tensors) -> Sender:
        self.senders.append(Sender(replicas, tensors))
        return self.senders[-1]

    def limit(self, limit_s: float) -> None:
        """From now on nothing may take longer: what answers at all does so before, on the slowest machine."""
        self._push._limit_s = limit_s

    def __call__(self, version: int) -> bool:
        return self._push.send(version, STATE, self.said.append)


def test_every_replica_is_paused_sent_to_and_resumed(stubs: list[Stub]) -> None:
    send = Sending(stubs)
    assert send(4)
    assert send(5)
    assert send.said == []
    for number, stub in enumerate(stubs):
        # They meet once; workers of the second replica come after the two of the first.
        assert stub.paths == ["/init_weight_transfer_engine", *(["/pause?mode=wait", *UPDATE, "/resume"] * 2)]
        assert stub.calls[0][1]["init_info"] == {
            "master_port": 1,
            "rank_offset": 1 + 2 * number,
            "world_size": 5,
        }
        assert stub.calls[3][1] == {"update_info": {"names": ["a.weight", "b.weight"]}}
        versions = [body["weight_version"] for path, body in stub.calls if path == "/finish_weight_update"]
        assert versions == ["4", "5"]
        assert stub.tokens == {"Bearer secret"}
    [sender] = send.senders
    assert all(sent.keys() == STATE.keys() for sent in sender.sent)
    assert all(torch.equal(sender.sent[0][name], tensor) for name, tensor in STATE.items())


def test_a_gpu_without_a_number_is_the_first_one(stubs: list[Stub]) -> None:
    class NoTransport:
        def send_weights(self) -> None:
            pass

    config = PushConfig(urls=[stub.url for stub in stubs], master_address="127.0.0.1")
    said: list[str] = []
    push = Push(config, lambda replicas, tensors: NoTransport(), torch.device("cuda"))
    assert push.send(1, STATE, said.append), said


@pytest.mark.parametrize("route", ["/init_weight_transfer_engine", "/pause?mode=wait", *UPDATE])
def test_a_route_that_fails_at_one_replica_leaves_none_paused_and_the_next_version_is_sent(
    stubs: list[Stub], route: str
) -> None:
    send = Sending(stubs)
    stubs[1].refuses = {route}
    assert not send(1)
    [said] = send.said
    assert said.startswith(f"version 1 was not sent (PushFailed: {stubs[1].url}{route}: 500")
    assert said.endswith("the rollout services take it from the folder")
    assert [stub.paused for stub in stubs] == [False, False]
    met = sum(path == "/init_weight_transfer_engine" for path in stubs[0].paths)
    assert all(sender.ended for sender in send.senders)
    stubs[1].refuses = set()
    assert send(2)
    assert sum(path == "/init_weight_transfer_engine" for path in stubs[0].paths) == met + 1
    assert len(send.said) == 1


def test_one_that_is_sent_to_and_cannot_resume_is_named(stubs: list[Stub]) -> None:
    send = Sending(stubs)
    stubs[0].refuses = {"/resume"}
    assert send(1)
    [said] = send.said
    assert said.startswith(f"version 1 was sent, but: {stubs[0].url}/resume: 500")
    assert not stubs[1].paused


def test_nobody_at_an_address_is_no_traceback(stubs: list[Stub]) -> None:
    nobody = Stub(url="http://127.0.0.1:1")
    send = Sending([stubs[0], nobody])
    assert not send(1)
    assert "http://127.0.0.1:1/init_weight_transfer_engine: ConnectError" in send.said[0]


def test_a_transport_that_hangs_is_left_alone_until_it_ends(stubs: list[Stub]) -> None:
    send = Sending(stubs)
    assert send(1)
    send.limit(0.5)
    gone = threading.Event()
    send.senders[0].during = gone.wait
    assert not send(2)
    assert "the transfer took longer than 0.5 s" in send.said[0]
    assert [stub.paused for stub in stubs] == [False, False]
    asked = len(stubs[0].calls)
    assert not send(3)
    assert "an earlier transfer still hangs" in send.said[1]
    assert len(stubs[0].paths) == asked, "nobody is paused for nothing"
    gone.set()
    thread = send._push._hung
    assert thread is not None
    thread.join(PATIENCE_S)
    send.limit(PATIENCE_S)
    assert send(4)
    assert not send.senders[0].ended, "what hangs is not shut down, which may hang as well"


def test_a_sender_that_hangs_when_it_is_ended_stops_nothing(stubs: list[Stub]) -> None:
    send = Sending(stubs)
    assert send(1)
    gone = threading.Event()
    # The transfer has begun by then; the end of its sender has not.
    send.senders[0].during = lambda: send.limit(0.5)
    send.senders[0].ending = gone.wait
    stubs[0].refuses = {"/finish_weight_update"}
    assert not send(2)
    stubs[0].refuses = set()
    assert not send(3)
    assert "an earlier transfer still hangs" in send.said[1]
    gone.set()
    thread = send._push._hung
    assert thread is not None
    thread.join(PATIENCE_S)
    send.limit(PATIENCE_S)
    assert send(4)


def test_what_is_sent_has_the_names_of_what_is_written(make_config: Any, tmp_path: Path) -> None:
    config: RunConfig = make_config()
    folder = ensure_policy(config, open_folder(config), lambda text: None)
    policy = Policy(load_policy(folder, CPU))
    tensors = Tensors(CPU)
    tensors.become(policy.published_state())
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        written = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    sent = dict(tensors)
    assert "lm_head.weight" not in sent, "tied to the embedding"
    assert sent.keys() == written.keys()
    assert all(torch.equal(sent[name], tensor) for name, tensor in written.items())


def test_a_run_sends_every_version_before_it_writes_it(
    make_config: Any, make_services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: RunConfig = make_config("training.steps=3", "filter=null")
    folder = open_folder(config)
    ensure_policy(config, folder, lambda text: None)
    sent: list[tuple[int, int | None, bool]] = []

    class Recorded:
        def send(self, version: int, state: Mapping[str, Tensor], say: Callable[[str], None]) -> bool:
            latest = weights.latest(folder.weights)
            assert latest is not None
            sent.append((version, latest.version, "model.embed_tokens.weight" in state))
            say("as told")
            return False

    monkeypatch.setattr(train_module, "open_push", lambda config, device: Recorded())
    view = LiveView("test", 3, Console(quiet=True))
    train(Run(config, view), make_services(folder.weights).clients, view)
    # Services start with the first version, which nobody was there to be sent; every other one is in the folder next.
    assert sent == [(1, 0, True), (2, 1, True), (3, 2, True)]
    latest = weights.latest(folder.weights)
    assert latest is not None
    assert latest.version == 3
    assert [row["unrewarded"] for row in read_lines(folder.metrics)] == [0, 0, 0]


def test_where_nothing_can_be_sent_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    config = PushConfig(urls=["http://a"], master_address="b", token_env="PUSH_TOKEN")
    assert open_push(None, CPU) is None
    with pytest.raises(RecipeError, match=r"training\.device must be cuda"):
        open_push(config, CPU)
    monkeypatch.setattr("guerdon_trainer.weights_push.find_spec", lambda name: None)
    with pytest.raises(RecipeError, match="install vllm beside the trainer"):
        open_push(config, torch.device("cuda"))
    monkeypatch.setattr("guerdon_trainer.weights_push.find_spec", lambda name: name)
    with pytest.raises(RecipeError, match="the environment variable PUSH_TOKEN is not set"):
        open_push(config, torch.device("cuda"))


PUSH = "rollout.push={urls: ['http://a'], master_address: b}"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ("engine: transformers", "the rollout service's engine must be vllm"),
        ("engine: vllm", "needs the setting vllm: {weight_transfer_config: {backend: nccl}}"),
        (
            "weights_dir: 'file:///x', vllm: {weight_transfer_config: {}}",
            "weights_dir must be the folder, not weights.mirror_url",
        ),
    ],
)
def test_a_service_that_cannot_be_sent_versions_is_refused(
    make_config: Any, settings: str, sentence: str
) -> None:
    replica = f"services.one={{service: rollout, queue: rollout, settings: {{model: /m, {settings}}}}}"
    with pytest.raises(RecipeError) as error:
        make_config(PUSH, "weights.mirror_url=file:///x", replica)
    assert str(error.value).startswith("rollout.push")
    assert sentence in str(error.value)


def test_a_service_that_can_be_sent_versions_is_not_refused(make_config: Any) -> None:
    transfer = "vllm: {weight_transfer_config: {backend: nccl}}"
    make_config(PUSH, f"services.rollout.settings={{model: /m, weights_dir: /w, {transfer}}}")


@pytest.mark.parametrize("url", ["http://user:secret@a", "http://a/?x=1"])
def test_a_url_that_messages_could_not_show_is_refused(make_config: Any, url: str) -> None:
    with pytest.raises(RecipeError, match=r"rollout\.push\.urls"):
        make_config(f"rollout.push={{urls: ['{url}'], master_address: b}}")


def test_a_dry_run_says_that_nothing_can_be_sent_from_here() -> None:
    checks = Checks(lambda text: None)
    _check_push(checks, None, CPU)
    assert checks.made == []
    with pytest.raises(Failed):
        _check_push(checks, PushConfig(urls=["http://a"], master_address="b"), CPU)
    [check] = checks.made
    assert (check.name, check.passed) == ("rollout.push", False)
    assert "training.device must be cuda" in check.detail


def test_a_replica_that_is_named_twice_is_refused(make_config: Any) -> None:
    with pytest.raises(RecipeError, match="urls: one is named twice"):
        make_config("rollout.push={urls: ['http://a', 'http://a/'], master_address: b}")
