"""Services files read, and the processes that they ask for."""

import sys
from pathlib import Path

import pytest

from guerdon.errors import InvalidRequest
from guerdon.services_file import ServicesConfig, load_services, process_specs, with_addresses

SERVICES = """
redis: embedded
services:
  math: {http: "0.0.0.0:8101", grpc: "127.0.0.1:9101"}
  strict-math:
    service: math
    settings: {workers: 2, name: x, flag: true, list: [1]}
    env: {OMP_NUM_THREADS: "1"}
"""


def test_process_specs(tmp_path: Path) -> None:
    path = tmp_path / "services.yaml"
    path.write_text(SERVICES)
    math, strict = process_specs(load_services(path), "redis://r:1", tmp_path / "logs")
    serve = [sys.executable, "-m", "guerdon", "serve", "math"]
    assert math.command == [
        *(*serve, "--http", "0.0.0.0:8101", "--grpc", "127.0.0.1:9101"),
        *("--queue-name", "math", "--lease-s", "10", "--exit-when-stuck", "--stuck-after-s", "900"),
    ]
    # Not on the command line, which everybody can read.
    assert math.env["GUERDON_QUEUE_URL"] == "redis://r:1"
    assert (math.name, math.log_path) == ("math", tmp_path / "logs" / "math.log")
    assert math.ready_url == "http://127.0.0.1:8101/readyz"
    assert strict.command[:5] == serve
    assert strict.command[-4:] == ["workers=2", "name=x", "flag=true", "list=[1]"]
    assert strict.command[strict.command.index("--queue-name") + 1] == "strict-math"
    assert strict.env["OMP_NUM_THREADS"] == "1"
    http = strict.command[strict.command.index("--http") + 1]
    assert strict.ready_url == f"http://{http}/readyz"


def test_addresses_are_all_different() -> None:
    config = ServicesConfig.model_validate({"services": {name: {} for name in "abcdef"}})
    settled = with_addresses(config)
    addresses = [address for service in settled.services.values() for address in (service.http, service.grpc)]
    assert len(set(addresses)) == 12
    assert with_addresses(settled) == settled


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("servces: {}", "servces: unknown key; did you mean services?"),
        ("services: {math: {htpp: x}}", "services.math.htpp: unknown key; did you mean http?"),
        ("services: {math: {zzz: x}}", "services.math.zzz: unknown key; known are service, http"),
        ("services: {math: {http: [1]}}", "services.math.http: Input should be a valid string"),
        ("services: [", "cannot be read"),
        ("", "the file: Input should be"),
    ],
)
def test_a_wrong_file_is_told_in_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "services.yaml"
    path.write_text(text)
    with pytest.raises(InvalidRequest) as caught:
        load_services(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="nowhere"):
        load_services(tmp_path / "nowhere.yaml")
