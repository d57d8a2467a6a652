"""Settings, tokens and the command line."""

import os
import re
import shutil
import ssl
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from typer import Typer
from typer.testing import CliRunner

from guerdon.v1 import reward_pb2, reward_pb2_grpc
from guerdon_services.runtime import cli, launch
from guerdon_services.runtime.scorer import ScorerSettings
from guerdon_services.runtime.settings import Address, parse_address


class Knobs(ScorerSettings):
    """One of each kind."""

    workers: int = 2
    model: str = "tiny"
    rate: float = 0.5
    names: list[str] = []
    fast: bool = False


def test_settings_are_yaml_except_where_they_are_text() -> None:
    words = ["workers=4", "model=007", "rate=1e-3", "names=[a, b]", "fast=true"]
    expected = Knobs(workers=4, model="007", rate=0.001, names=["a", "b"], fast=True)
    assert launch.service_settings(Knobs, words) == expected
    assert launch.service_settings(Knobs, ["model=a=b:{"]).model == "a=b:{"
    assert launch.service_settings(Knobs, ["model="]).model == ""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["worker=4"], "worker: no such setting; did you mean workers?"),
        (["workers=many"], "workers: Input should be a valid integer"),
        (["workers"], "a setting looks like key=value, not 'workers'"),
        (["=4"], "a setting looks like key=value, not '=4'"),
    ],
)
def test_a_wrong_setting_is_a_sentence(words: list[str], sentence: str) -> None:
    with pytest.raises(launch.Refused, match=re.escape(sentence)):
        launch.service_settings(Knobs, words)


def test_without_doors_there_are_two_on_loopback() -> None:
    settings = launch.runtime_settings({"http": None, "max_pending": 20_000})
    assert (str(settings.http), str(settings.grpc), settings.queue) == (
        "127.0.0.1:8101",
        "127.0.0.1:9101",
        None,
    )
    alone = launch.runtime_settings({"queue": "redis://x"})
    assert (alone.http, alone.grpc) == (None, None)


@pytest.mark.parametrize("address", ["0.0.0.0:80", "[::]:80", "10.0.0.1:80", "example.org:80"])
def test_a_door_to_the_world_wants_a_token(address: str) -> None:
    for door in ("http", "grpc"):
        with pytest.raises(launch.Refused, match="GUERDON_TOKEN"):
            launch.runtime_settings({door: address})
        assert launch.runtime_settings({door: address, "token": "s3cret"}).token is not None


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:0", Address("127.0.0.1", 0)),
        ("localhost:80", Address("localhost", 80)),
        ("[::1]:80", Address("::1", 80)),
        (":80", Address("127.0.0.1", 80)),
    ],
)
def test_addresses_are_read(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert address.is_loopback


@pytest.mark.parametrize("text", ["80", "127.0.0.1", "host:", "host:http", "host:70000", "host:-1", ""])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(launch.Refused, match="an address looks like"):
        launch.runtime_settings({"http": text})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_request_items": 10, "max_pending": 5}, "max_request_items must not exceed max_pending"),
        ({"tls_cert": "/x"}, "go together"),
        ({"token": ""}, "the token is empty"),
        ({"log_format": "xml"}, "log_format"),
        ({"drain_s": -1}, "drain_s"),
        ({"drain_s": float("inf")}, "drain_s"),
        ({"lease_s": float("inf")}, "lease_s"),
        ({"lease_s": 1e-6}, "lease_s"),
        # What was handed back would then wait longer than what a dead worker left.
        ({"lease_s": 86_400}, "lease_s"),
        ({"stuck_after_s": 1e300}, "stuck_after_s"),
        ({"queue": "foo://x"}, "queue: the scheme 'foo' is unknown"),
        ({"queue": "redis://:secret@127.0.0.1:port/0"}, "queue: Port could not be cast"),
    ],
)
def test_incoherent_settings_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(launch.Refused, match=words) as refused:
        launch.runtime_settings(options)
    assert "secret" not in str(refused.value)


def test_the_command_line_says_what_is_wrong(tmp_path: Path) -> None:
    app = Typer()
    app.command("serve")(cli.serve)
    runner = CliRunner()
    unknown = runner.invoke(app, ["maths"])
    assert unknown.exit_code == 2
    assert "unknown service 'maths'; known: code, math," in unknown.stderr
    open_door = runner.invoke(app, ["math", "--http", "0.0.0.0:0"], env={"GUERDON_TOKEN": None})
    assert (open_door.exit_code, "GUERDON_TOKEN" in open_door.stderr) == (2, True)
    no_file = runner.invoke(app, ["math", "--token-file", str(tmp_path / "absent")])
    assert (no_file.exit_code, "absent" in no_file.stderr) == (2, True)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    no_text = runner.invoke(app, ["math", "--token-file", str(tmp_path / "binary")])
    assert (no_text.exit_code, "is no text" in no_text.stderr) == (2, True)


def test_missing_packages_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    [math] = [one for one in launch.entry_points(group=launch.GROUP) if one.name == "math"]

    def without_packages(_self: object) -> None:
        raise ImportError("No module named 'flint'")

    monkeypatch.setattr(type(math), "load", without_packages)
    with pytest.raises(launch.Refused, match=r"flint.*pip install 'guerdon-services\[math\]'"):
        launch.make_service("math", [])


def test_help_needs_no_heavy_import() -> None:
    code = (
        "import sys; import guerdon_services.runtime.cli; "
        "heavy = {'fastapi', 'grpc', 'pydantic', 'uvicorn', 'prometheus_client'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))


async def test_the_token_guards_every_door(serve: Any, scorers: ModuleType) -> None:
    async with (
        serve(scorers.Echo(scorers.EchoSettings()), token="s3cret") as served,
        grpc.aio.insecure_channel(served.grpc) as channel,
    ):
        codes: dict[str, int] = {}
        for header in ("", "Bearer wrong", "Basic s3cret", "Bearer", "Bearer  s3cret", "bearer s3cret"):
            headers = {"Authorization": header} if header else {}
            answer = await served.http.post("/v1/score", json={"samples": []}, headers=headers)
            codes[header] = answer.status_code
            assert "s3cret" not in answer.text
        paths = {
            path: (await served.http.get(path)).status_code
            for path in ("/healthz", "/readyz", "/metrics", "/docs")
        }
        health: Any = health_pb2_grpc.HealthStub(channel)
        alive = await health.Check(health_pb2.HealthCheckRequest())
        stub = reward_pb2_grpc.RewardServiceStub(channel)
        refused: list[grpc.StatusCode] = []
        for metadata in ((), (("authorization", "Bearer wrong"),)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Score(reward_pb2.ScoreRequest(), metadata=metadata)
            refused.append(caught.value.code())
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.ScoreStream(reward_pb2.ScoreRequest(), metadata=metadata).read()
            refused.append(caught.value.code())
        answer = await stub.Score(reward_pb2.ScoreRequest(), metadata=(("authorization", "Bearer s3cret"),))
    assert codes == {
        "": 401,
        "Bearer wrong": 401,
        "Basic s3cret": 401,
        "Bearer": 401,
        "Bearer  s3cret": 200,
        "bearer s3cret": 200,
    }
    assert paths == {"/healthz": 200, "/readyz": 200, "/metrics": 401, "/docs": 401}
    assert alive.status == health_pb2.HealthCheckResponse.SERVING
    assert set(refused) == {grpc.StatusCode.UNAUTHENTICATED}
    assert len(answer.results) == 0


def test_the_token_never_shows_in_settings_or_logs(spawn: Any) -> None:
    settings = launch.runtime_settings({"http": "0.0.0.0:1", "token": "s3cret"})
    assert "s3cret" not in repr(settings)
    child = spawn("Echo", http="0.0.0.0:0", token="s3cret", log_level="debug")
    child.process.terminate()
    assert child.wait() == 0
    assert "s3cret" not in child.log.read_text()


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost -days 2"
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([openssl, *words.split(), *files], check=True, capture_output=True)
    return cert, key


async def test_tls_at_both_doors(serve: Any, scorers: ModuleType, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    credentials = grpc.ssl_channel_credentials(cert.read_bytes())
    service = scorers.Echo(scorers.EchoSettings())
    async with serve(service, tls_cert=cert, tls_key=key) as served:
        url = served.process.url
        context = ssl.create_default_context(cafile=str(cert))
        async with httpx.AsyncClient(verify=context, trust_env=False, timeout=60) as client:
            answer = await client.post(f"{url}/v1/score", json={"samples": [{"response": "1"}]})
        async with grpc.aio.secure_channel(served.grpc, credentials) as channel:
            request = reward_pb2.ScoreRequest(samples=[reward_pb2.Sample(response="1")])
            scored = await reward_pb2_grpc.RewardServiceStub(channel).Score(request)
    assert url.startswith("https://")
    assert answer.json()["results"][0]["value"] == scored.results[0].value == 1.0
