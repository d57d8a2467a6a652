"""What a language is to the verifier: its names, and the commands of the machine that build and run its programs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from guerdon_services.code.sandbox import Room

#: Where shared libraries are, and what finds them: for every executable that is not linked statically.
LIBRARIES = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache"]


class Missing(Exception):
    """The machine lacks what the language needs; the message says what."""


@dataclass(frozen=True)
class Command:
    """One process: an executable file, and its arguments. It runs in the folder of the program and cannot fork."""

    executable: Path
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Toolchain:
    """A language as this machine has it. All commands run inside the walls, in an empty folder with the source."""

    #: For `/v1/info`: the tool and its version.
    version: str
    #: The name of the source in the folder.
    source: str
    #: One after another; the first that fails is a compile error.
    build: tuple[Command, ...]
    build_room: Room
    #: The file that the last of them leaves, which is then run on its own: no source is there any more.
    artefact: str | None
    #: What runs the source where there is no artefact, given the memory limit in MiB.
    interpreter: Callable[[int], Command] | None
    run_room: Room
    #: Found in standard error of a program that failed for want of memory.
    out_of_memory: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Probe:
    """Programs for the self-test at start."""

    #: Tries every wall; prints the names of those that gave way, one a line, and then "end".
    hostile: str
    #: Prints 6 when what programs need works; reads "1 2 3".
    harmless: str
    #: Built only when the walls around the compiler give way.
    unbuildable: tuple[str, ...] = ()


@dataclass(frozen=True)
class Language:
    """A language by name."""

    name: str
    #: Other names, for tasks and for the tags of fenced blocks.
    aliases: frozenset[str]
    #: Looks for its tools. None: the verifier's own interpreter, which runs every kind of test.
    find: Callable[[], Toolchain] | None = None
    probe: Probe | None = field(default=None, repr=False)

    @property
    def names(self) -> frozenset[str]:
        """All that it is called."""
        return self.aliases | {self.name}
