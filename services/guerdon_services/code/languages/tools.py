"""Asks the machine about its tools: where they are, which version, which commands a driver would run."""

import shlex
import shutil
import subprocess
from pathlib import Path

from guerdon_services.code.languages.language import Missing

_PATIENCE_S = 20.0


def locate(name: str) -> Path:
    """The file behind a command.

    Raises:
        Missing: there is none.
    """
    found = shutil.which(name)
    if found is None:
        raise Missing(f"{name} is not on this machine")
    return Path(found).resolve()


def ask(*command: str | Path) -> str:
    """What a trusted command prints on both outputs.

    Raises:
        Missing: it fails or does not answer.
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PATIENCE_S,
            check=True,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin"},
            cwd="/",
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Missing(f"{command[0]}: {error}") from None
    return done.stdout.decode("utf-8", "replace")


def driven(driver: Path, *options: str) -> list[str]:
    """The one command that a compiler driver would run: `-###` prints them quoted, after a space.

    Raises:
        Missing: it would run none or several.
    """
    commands = [line for line in ask(driver, "-###", *options).splitlines() if line.startswith(" ")]
    if len(commands) != 1:
        raise Missing(f"{driver}: {len(commands)} commands for {' '.join(options)}, not one")
    return shlex.split(commands[0])


def loaders() -> list[str]:
    """The dynamic loaders of this machine, which the kernel executes along with a program."""
    patterns = (
        "/lib64/ld-linux*.so.*",
        "/lib/ld-linux*.so.*",
        "/lib/ld-musl-*.so.1",
        "/lib/*/ld-linux*.so.*",
    )
    return sorted({str(path.resolve()) for pattern in patterns for path in Path("/").glob(pattern[1:])})
