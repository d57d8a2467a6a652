"""The YAML file of `guerdon up`: which services to run, where, and by which commands."""

import difflib
import json
import sys
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from guerdon.errors import InvalidRequest
from guerdon.supervisor import ProcessSpec, free_ports

#: Seconds after which the queue entries of a service that died here are taken over: about what its restart takes.
LEASE_S = 10


class ServiceConfig(BaseModel):
    """One service of a services file; addresses that are not given are free loopback ports."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: Its name among the entry points `guerdon.services`; by default the key it stands under.
    service: str | None = None
    #: HOST:PORT
    http: str | None = None
    #: HOST:PORT
    grpc: str | None = None
    #: Name of its queue; by default the key it stands under.
    queue: str | None = None
    settings: dict[str, JsonValue] = {}
    env: dict[str, str] = {}
    #: Seconds without a sign of life after which it is replaced (`--stuck-after-s`); 0 means never.
    stuck_after_s: float = 900.0


class ServicesConfig(BaseModel):
    """A services file: the Redis server ("embedded" or a URL), and services by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    redis: str = "embedded"
    services: dict[str, ServiceConfig]


def load_services(path: str | Path) -> ServicesConfig:
    """Read a services file.

    Raises:
        InvalidRequest: it cannot be read, is no YAML, or has a wrong key or value; the message names it.
    """
    try:
        content = yaml.safe_load(Path(path).read_text())
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidRequest(f"{path} cannot be read: {error}") from error
    try:
        return ServicesConfig.model_validate(content)
    except ValidationError as error:
        raise InvalidRequest(f"{path}: " + "; ".join(_sentences(error))) from error


def with_addresses(config: ServicesConfig) -> ServicesConfig:
    """The same services, with a free loopback port wherever no address is given."""
    services = config.services.items()
    ports = iter(free_ports(2 * len(services)))

    def address(given: str | None) -> str:
        port = next(ports)
        return given or f"127.0.0.1:{port}"

    settled = {
        name: service.model_copy(
            update={
                "service": service.service or name,
                "queue": service.queue or name,
                "http": address(service.http),
                "grpc": address(service.grpc),
            }
        )
        for name, service in services
    }
    return config.model_copy(update={"services": settled})


def process_specs(config: ServicesConfig, redis_url: str, log_dir: Path) -> list[ProcessSpec]:
    """One process for each service; its log is `log_dir/NAME.log`."""
    return [
        ProcessSpec(
            name=name,
            command=_serve_command(service),
            # The environment, not the command line, which every user of the machine can read: it may hold a password.
            env={"PYTHONUNBUFFERED": "1", "GUERDON_QUEUE_URL": redis_url, **service.env},
            log_path=log_dir / f"{name}.log",
            ready_url=f"http://{_reachable(str(service.http))}/readyz",
        )
        for name, service in with_addresses(config).services.items()
    ]


def _serve_command(service: ServiceConfig) -> list[str]:
    addresses = ["--http", str(service.http), "--grpc", str(service.grpc)]
    queue = ["--queue-name", str(service.queue), "--lease-s", str(LEASE_S)]
    # Here a process that ends is started again, so one that is stuck had better end.
    manners = ["--exit-when-stuck", "--stuck-after-s", f"{service.stuck_after_s:g}"]
    settings = [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in service.settings.items()
    ]
    serve = [sys.executable, "-m", "guerdon", "serve", str(service.service)]
    return [*serve, *addresses, *queue, *manners, *settings]


def _reachable(address: str) -> str:
    """Where a service that listens on every interface can be asked from here."""
    host, _, port = address.rpartition(":")
    everywhere = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
    return f"{everywhere.get(host, host)}:{port}"


def _sentences(error: ValidationError) -> list[str]:
    """One for each mistake, naming the key and, for an unknown one, what was probably meant."""
    sentences: list[str] = []
    for mistake in error.errors():
        where = ".".join(str(part) for part in mistake["loc"]) or "the file"
        if mistake["type"] != "extra_forbidden":
            sentences.append(f"{where}: {mistake['msg']}")
            continue
        model = ServicesConfig if len(mistake["loc"]) == 1 else ServiceConfig
        meant = difflib.get_close_matches(str(mistake["loc"][-1]), model.model_fields, n=1)
        known = f"did you mean {meant[0]}?" if meant else f"known are {', '.join(model.model_fields)}"
        sentences.append(f"{where}: unknown key; {known}")
    return sentences
