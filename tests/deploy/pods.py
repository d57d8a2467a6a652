"""Containers of the rendered manifests as processes of this machine: their own arguments and environment.

A process gets what its container would get and nothing else of this process's environment. Ports become free ones,
mounted paths folders of the test, names of Services loopback addresses, and programs those of this environment. Where
this process may (root on Linux), everything but the mounted paths is read-only, as in the container.
"""

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest
import yaml
from redis import Redis
from redis.exceptions import RedisError
from typer.testing import CliRunner

from guerdon.cli import app
from guerdon.redis_server import server_binary
from guerdon.supervisor import free_ports
from guerdon_services.runtime import cli, launch
from guerdon_services.runtime.settings import RuntimeSettings

CHECKOUT = Path(__file__).parents[2]
MANIFESTS = CHECKOUT / "deploy/manifests"
#: What pods run is not hidden by their own /tmp.
KEPT = str(CHECKOUT) if CHECKOUT.is_relative_to("/tmp") else ""
#: Seconds after which something that should happen counts as never happening.
PATIENCE_S = 600.0
PASSWORD, TOKEN = "harmless0123", "harmless-token"
#: What the secrets of the manifests hold here.
SECRETS = {("guerdon-redis", "password"): PASSWORD, ("guerdon-token", "token"): TOKEN}

#: Runs a program with a read-only root: FOLDER can be written, and TMP, if any, is its /tmp, in which KEPT, if any, is
#: seen nevertheless. ... FOLDER TMP KEPT PROGRAM...
LOCK = """set -e
mount --bind "$0" "$0"
if [ -n "$1" ]; then
  if [ -n "$2" ]; then
    kept="$1/${2#/tmp/}"
    mkdir -p "$kept"
    mount --bind "$2" "$kept"
    mount -o remount,bind,ro "$kept"
  fi
  mount --rbind "$1" /tmp
fi
mount -o remount,bind,ro /
shift 2
exec "$@"
"""
LOCKED = ("unshare", "--mount", "--propagation", "private", "sh", "-c", LOCK)

Object = dict[str, Any]


def objects(name: str) -> list[Object]:
    """Every object of a file of deploy/manifests."""
    return list(yaml.load_all((MANIFESTS / f"{name}.yaml").read_text(), yaml.CSafeLoader))


def workloads(items: list[Object]) -> dict[str, Object]:
    """The pod templates by component."""
    kinds = ("Deployment", "StatefulSet", "Job")
    found = [item["spec"]["template"] for item in items if item["kind"] in kinds]
    return {one["metadata"]["labels"]["app.kubernetes.io/component"]: one for one in found}


@dataclass
class Pod:
    """One running pod: its main container's process, and where its ports are."""

    process: "subprocess.Popen[bytes]"
    container: Object
    log: Path
    #: Of Redis; services say in their log which ports the system gave them.
    redis_port: int | None = None

    @property
    def ports(self) -> dict[str, int]:
        """Numbers by name; none before the pod listens."""
        if self.redis_port is not None:
            return {"redis": self.redis_port}
        lines = self.log.read_text().splitlines()
        said = [json.loads(line) for line in lines if line.startswith("{") and '"listening"' in line]
        return {door: int(said[0][door].rpartition(":")[2]) for door in ("http", "grpc")} if said else {}

    @property
    def url(self) -> str:
        """Of the HTTP door."""
        return f"http://127.0.0.1:{self.ports['http']}"

    def probe(self, name: str) -> bool:
        """Ask one of the container's probes, as the kubelet does: without a token."""
        probe = self.container[name]
        if "httpGet" in probe:
            get, ports = probe["httpGet"], self.ports
            if not ports:
                return False
            # Asked ten times a second: a client that loads certificates for each would cost more than the pod.
            assert get.get("scheme", "HTTP") == "HTTP"
            connection = HTTPConnection("127.0.0.1", ports[get["port"]], timeout=60)
            try:
                connection.request("GET", get["path"])
                return connection.getresponse().status == 200
            except (OSError, HTTPException):
                return False
            finally:
                connection.close()
        # Redis: its package here brings no valkey-cli, so that its ping is asked from here.
        url = f"redis://:{PASSWORD}@127.0.0.1:{self.ports['redis']}/0"
        try:
            with Redis.from_url(url, socket_timeout=10) as client:
                return bool(client.ping())
        except RedisError:
            return False

    def wait(self, name: str) -> None:
        """Until a probe passes."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.probe(name):
            assert self.process.poll() is None, f"it ended: {self.log.read_text()[-2000:]}"
            assert time.monotonic() < deadline, f"{name} never passed: {self.log.read_text()[-2000:]}"
            time.sleep(0.1)

    def stop(self) -> int:
        """SIGTERM, as when the pod is deleted; the exit code."""
        self.process.terminate()
        return self.process.wait(PATIENCE_S)


@dataclass
class Cluster:
    """One machine that runs pods of one manifest."""

    folder: Path
    items: list[Object]
    redis_port: int | None = None
    exits: ExitStack = field(default_factory=ExitStack)

    def start(self, component: str, *more_arguments: str) -> Pod:
        """Start a pod of a component; init containers end first. Further arguments follow those of the manifest."""
        spec = workloads(self.items)[component]["spec"]
        [container] = spec["containers"]
        mounts = self._mounts(spec, container)
        for init in spec.get("initContainers", []):
            words = self._words(init, mounts)
            subprocess.run(words, env=self._environment(init, mounts), check=True, timeout=PATIENCE_S)
        if component == "redis":
            return self._start_redis(container, mounts)
        # Port 0: the system chooses one that is free, which no look beforehand could promise.
        listens = re.compile(r"^(--(?:http|grpc)=0\.0\.0\.0):\d+$")
        words = [listens.sub(r"\1:0", word) for word in self._words(container, mounts)]
        return self._run(component, container, [*words, *more_arguments], mounts)

    def _start_redis(self, container: Object, mounts: Mapping[str, Path]) -> Pod:
        """Redis cannot be told to choose: another port is tried where somebody was faster."""
        for _ in range(5):
            [port] = free_ports(1)
            pod = self._run(
                "redis", container, [*self._words(container, mounts), "--port", str(port)], mounts
            )
            pod.redis_port = self.redis_port = port
            while pod.process.poll() is None:
                if "Ready to accept connections" in pod.log.read_text():
                    return pod
                time.sleep(0.05)
        raise AssertionError("no port was to be had for Redis")

    def _run(self, name: str, container: Object, words: list[str], mounts: Mapping[str, Path]) -> Pod:
        log = self.folder / f"{name}-{len(list(self.folder.glob('*.log')))}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*self._lock(mounts), *words],
                env=self._environment(container, mounts),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.exits.callback(process.wait)
        self.exits.callback(process.kill)
        return Pod(process, container, log)

    def _lock(self, mounts: Mapping[str, Path]) -> tuple[str | Path, ...]:
        """What makes the root read-only."""
        return (*LOCKED, self.folder, mounts.get("/tmp", ""), KEPT) if can_lock() else ()

    def _mounts(self, spec: Object, container: Object) -> dict[str, Path]:
        """A folder for every path that the container mounts; claims are shared, the rest is the pod's own."""
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        claims = {"persistentVolumeClaim"}
        found: dict[str, Path] = {}
        for mount in container["volumeMounts"]:
            volume = volumes.get(mount["name"], {"persistentVolumeClaim": {}})
            shared = claims & set(volume)
            place = self.folder / (mount["name"] if shared else f"{container['name']}-{mount['name']}")
            place.mkdir(exist_ok=True)
            if "secret" in volume:
                secret = volume["secret"]["secretName"]
                for (name, key), value in SECRETS.items():
                    if name == secret:
                        (place / key).write_text(value)
            if "configMap" in volume:
                for key, text in self._config_map(volume["configMap"]["name"]).items():
                    (place / key).write_text(text.replace("dir /data", f"dir {self.folder / 'data'}"))
            found[mount["mountPath"]] = place
        return found

    def _config_map(self, name: str) -> dict[str, str]:
        [found] = [one for one in self.items if (one["kind"], one["metadata"]["name"]) == ("ConfigMap", name)]
        return found["data"]

    def _environment(self, container: Object, mounts: Mapping[str, Path]) -> dict[str, str]:
        environment: dict[str, str] = {}
        for variable in container.get("env", []):
            if "value" in variable:
                value = expand(variable["value"], environment)
            else:
                reference = variable["valueFrom"]["secretKeyRef"]
                value = SECRETS[reference["name"], reference["key"]]
            environment[variable["name"]] = self._here(value, mounts)
        # Not the container's: programs of this machine are found by it.
        return {**environment, "PATH": os.environ["PATH"]}

    def _words(self, container: Object, mounts: Mapping[str, Path]) -> list[str]:
        environment = self._environment(container, mounts)
        words = [self._here(expand(word, environment), mounts) for word in container["args"]]
        programs = {"valkey-server": str(server_binary())}
        return [programs.get(words[0]) or _program(words[0]), *words[1:]]

    def _here(self, text: str, mounts: Mapping[str, Path]) -> str:
        """Paths and names of the cluster as those of this machine."""
        paths = "|".join(sorted(mounts, key=len, reverse=True))
        text = re.sub(rf"(?<![\w/])({paths})(?=/|$)", lambda match: str(mounts[match[1]]), text)
        return text.replace("@guerdon-redis:6379", f"@127.0.0.1:{self.redis_port}")


def served(words: list[str], environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Service and settings that `guerdon serve` makes of a command, up to the point where the service would open."""
    started: list[tuple[Any, RuntimeSettings]] = []
    monkeypatch.setattr(launch, "run", lambda service, settings: started.append((service, settings)) or 0)
    monkeypatch.setattr(cli, "_open_streams", lambda: None)
    assert words[0] == "guerdon"
    result = CliRunner().invoke(app, words[1:], env=environment)
    assert result.exit_code == 0, result.output
    [found] = started
    return found


def expand(text: str, environment: Mapping[str, str]) -> str:
    """$(NAME) as the kubelet replaces it; an unknown name stays, which the assertion here does not let pass."""
    found = re.sub(r"\$\((\w+)\)", lambda match: environment.get(match[1], match[0]), text)
    assert "$(" not in found, f"{text} names a variable that the container does not have"
    return found


@functools.cache
def can_lock() -> bool:
    """Whether a root can be made read-only here."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        writes = ["sh", "-c", "touch /tmp/x && ! touch /var/tmp/guerdon-must-not-be 2>/dev/null"]
        try:
            return not subprocess.run([*LOCKED, folder, folder, "", *writes], capture_output=True).returncode
        except OSError:
            return False


@contextmanager
def cluster(manifest: str) -> Iterator[Cluster]:
    """A cluster that ends with every process in it. Its folder is not in /tmp, where each pod sees its own."""
    with tempfile.TemporaryDirectory(prefix="guerdon-pods-", dir="/var/tmp") as folder:
        here = Cluster(Path(folder), objects(manifest))
        with here.exits:
            yield here


def _program(name: str) -> str:
    ours = Path(sys.executable).with_name(name)
    return str(ours) if ours.exists() else name
