"""The guerdon command: what it prints, its exit status, and `up` as a real process."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis import Redis
from typer.testing import CliRunner, Result

from guerdon.cli import app
from guerdon.queue import Producer
from guerdon.testing import Failure, StubService
from guerdon.types import Result as ItemResult
from guerdon.types import Sample, Status, failed
from tests.waiting import PATIENCE_S, until


def judge(sample: Sample) -> float | ItemResult:
    if sample.response == "slow":
        return failed(Status.TIMEOUT, "too slow")
    return float(sample.response in sample.references)


@pytest.fixture
def stub() -> Iterator[StubService]:
    with StubService(judge) as service:
        yield service


def guerdon(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, arguments, input=stdin, env={"COLUMNS": "200"})


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_score_one_response(stub: StubService) -> None:
    result = guerdon(
        "score",
        "--url",
        stub.url,
        "--prompt",
        "2+2",
        "--response",
        "4",
        "--reference",
        "5",
        "--reference",
        "4",
    )
    assert result.exit_code == 0
    [line] = lines(result)
    assert (line["status"], line["value"]) == ("ok", 1.0)


def test_score_a_file_and_stdin(stub: StubService, tmp_path: Path) -> None:
    samples = '{"id": "a", "response": "4", "references": ["4"]}\n\n{"id": "b", "response": "slow"}\n'
    file = tmp_path / "samples.jsonl"
    file.write_text(samples)
    for result in (
        guerdon("score", "--url", stub.url, "--file", str(file)),
        guerdon("score", "--url", stub.url, "--file", "-", stdin=samples),
    ):
        assert result.exit_code == 1
        good, bad = lines(result)
        assert (good["id"], good["status"], good["value"]) == ("a", "ok", 1.0)
        # A failure is never a reward.
        assert (bad["id"], bad["status"], bad["value"], bad["reason"]) == ("b", "timeout", None, "too slow")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either DATA, or --response, or --file"),
        (["--response", "4", "--file", "x"], "give either DATA, or --response, or --file"),
        (["--response", "4", "--options", "[1]"], "must be a JSON object"),
        (["--response", "4", "--options", "{"], "not JSON"),
        (["--file", "/no/such/file"], "/no/such/file"),
    ],
)
def test_wrong_arguments_are_a_sentence(stub: StubService, arguments: list[str], message: str) -> None:
    result = guerdon("score", "--url", stub.url, *arguments)
    assert result.exit_code in (1, 2)
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_a_wrong_sample_is_named(stub: StubService, tmp_path: Path) -> None:
    file = tmp_path / "samples.jsonl"
    file.write_text('{"response": "4"}\n{"response": 4}\n')
    result = guerdon("score", "--url", stub.url, "--file", str(file))
    assert result.exit_code == 2
    assert f"{file}:2: response" in result.stderr
    assert result.stdout == ""


def test_a_sample_may_hold_what_unicode_calls_a_line_separator(stub: StubService, tmp_path: Path) -> None:
    file = tmp_path / "samples.jsonl"
    file.write_text('{"response": "a\u2028b", "references": ["a\u2028b"]}\n', encoding="utf-8")
    [line] = lines(guerdon("score", "--url", stub.url, "--file", str(file)))
    assert (line["status"], line["value"]) == ("ok", 1.0)


def test_ping_and_inspect(stub: StubService) -> None:
    assert re.fullmatch(r"\d+\.\d ms\n", guerdon("ping", "--url", stub.url).stdout)
    info = json.loads(guerdon("inspect", "--url", stub.url).stdout)
    assert info["scorer"] == "stub"
    assert isinstance(info["options_schema"], dict)


def test_a_service_that_fails_or_is_not_there(stub: StubService) -> None:
    stub.fail_next(Failure(status=503))
    for url in (stub.url, "http://127.0.0.1:1"):
        result = guerdon("ping", "--url", url, "--timeout", "2")
        assert result.exit_code == 1
        assert result.stderr.startswith("error: ")
        assert "Traceback" not in result.output


def test_an_address_of_no_known_kind_is_a_usage_error() -> None:
    result = guerdon("ping", "--url", "ftp://x")
    assert result.exit_code == 2
    assert "ftp" in result.stderr


def test_queue(redis_url: str) -> None:
    result = guerdon("queue", "math", "--redis", redis_url)
    assert result.exit_code == 0
    nothing = {"queued": 0, "pending": 0, "dead": 0, "oldest_ms": 0, "workers": 0, "submitted": 0}
    assert lines(result) == [nothing]
    assert "no queue of this name was ever used" in result.stderr


def test_the_queue_counts_what_was_submitted(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUERDON_QUEUE_URL", redis_url)

    async def submit() -> None:
        producer = Producer(redis_url, "math", client_id="c")
        for high in (True, False, False):
            await producer.submit("score", b"", high_priority=high)
        await producer.close()

    asyncio.run(submit())
    result = guerdon("queue", "math")
    assert (lines(result)[0]["queued"], lines(result)[0]["submitted"]) == (3, 3)
    assert "no worker is alive" in result.stderr


def test_what_is_no_dead_letter_is_a_usage_error(redis_url: str) -> None:
    result = guerdon("queue", "math", "purge", "nonsense", "--redis", redis_url)
    assert result.exit_code == 2
    assert "looks like 1764492000000-0" in result.stderr


def test_queue_without_redis() -> None:
    result = guerdon("queue", "math", "--redis", "redis://user:secret@127.0.0.1:1/0")
    assert result.exit_code == 1
    assert "cannot be reached" in result.stderr
    assert "secret" not in result.output


def test_queue_watch_ends_with_a_signal(redis_url: str) -> None:
    command = [sys.executable, "-m", "guerdon", "queue", "math", "--redis", redis_url, "--watch"]
    server: Any = Redis.from_url(redis_url)

    def looks() -> int:
        return server.info("stats")["total_connections_received"]

    before = looks()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        # The table appears when the watch ends; it must not end by itself.
        until(lambda: process.poll() is not None or looks() >= before + 2)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE_S)
    server.close()
    assert process.returncode == 0
    assert "queue math" in output


def test_help_lists_every_command_and_imports_no_ml_stack() -> None:
    code = (
        "import sys, guerdon.cli; print([m for m in ('torch', 'transformers', 'vllm') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
    listed = guerdon("--help").stdout
    for command in ("score", "ping", "inspect", "queue", "up", "serve", "prepare", "train", "run"):
        assert f" {command} " in listed


@pytest.mark.parametrize(
    ("count", "message"),
    [(0, "guerdon serve comes with guerdon-services: pip install"), (1, "No module named 'gone'")],
)
def test_a_command_that_is_not_installed(count: int, message: str) -> None:
    code = f"""
import importlib.metadata as metadata
class Point:
    name, value = "serve", "gone.cli:serve"
    def load(self): raise ImportError("No module named 'gone'")
metadata.entry_points = lambda group: [Point()] * {count}
from guerdon.cli import app
app(["serve", "math", "--http", "127.0.0.1:0", "--help"])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("content", ["services: {math: {htpp: x}}", "services: ["])
def test_up_with_a_wrong_file(tmp_path: Path, content: str) -> None:
    file = tmp_path / "services.yaml"
    file.write_text(content)
    result = guerdon("up", str(file))
    assert result.exit_code == 2
    assert str(file) in result.stderr


def test_up_starts_serves_and_stops(tmp_path: Path) -> None:
    file = tmp_path / "services.yaml"
    file.write_text("services: {rewards: {service: math}}")
    command = [sys.executable, "-m", "guerdon", "up", str(file), "--logs", str(tmp_path / "logs")]
    environment = {**os.environ, "COLUMNS": "200"}
    environment.pop("GUERDON_REDIS_URL", None)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        table = ""
        for line in process.stdout:
            table += line
            if "rewards" in line:
                break
        addresses = re.findall(r"(?:http|grpc)://127\.0\.0\.1:\d+", table)
        assert len(addresses) == 2, (tmp_path / "logs" / "rewards.log").read_text()
        for url in addresses:
            result = guerdon("score", "--url", url, "--response", r"\boxed{3/4}", "--reference", "0.75")
            assert (result.exit_code, lines(result)[0]["value"]) == (0, 1.0)
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 2
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "stopped" in output
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
    assert alive == []


def test_a_signal_amid_an_import_ends_with_zero_too() -> None:
    code = """
import os, signal
from guerdon.cli import _until_signal
with _until_signal():
    exec("os.kill(os.getpid(), signal.SIGINT)")
"""
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (finished.returncode, finished.stdout) == (0, "stopped\n"), finished.stderr


def test_a_command_that_fails_leaves_no_signal_handler_behind() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert guerdon("up", "/no/such/file").exit_code == 2
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_up_can_be_interrupted_while_it_waits(tmp_path: Path) -> None:
    file = tmp_path / "services.yaml"
    file.write_text("services: {math: {}}")
    command = [sys.executable, "-m", "guerdon", "up", str(file), "--logs", str(tmp_path / "logs")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        until((tmp_path / "logs" / "math.log").exists)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert output.endswith("stopped\n")
