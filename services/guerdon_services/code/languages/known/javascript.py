"""JavaScript by node. V8 reserves address space by the gigabyte: limited are its heap, and memory really written."""

import os
import resource
import stat

from guerdon_services.code.languages.language import (
    LIBRARIES,
    Command,
    Language,
    Missing,
    Probe,
    Toolchain,
)
from guerdon_services.code.languages.tools import ask, loaders, locate
from guerdon_services.code.sandbox import Room

_SOURCE = "program.js"


def find() -> Toolchain:
    """node.

    Raises:
        Missing: it is not there, or not for every user.
    """
    node = locate("node")
    if os.geteuid() == 0 and not all(
        folder.stat().st_mode & stat.S_IXOTH for folder in (node, *node.parents)
    ):
        raise Missing(f"programs run as nobody, who cannot execute {node}")
    options = ("--disable-wasm-trap-handler", "--openssl-config=/dev/null")
    room = Room(
        readable=[*LIBRARIES, str(node)],
        executable=[str(node), *loaders()],
        memory="data",
        base_mb=192,
        threads=1024,
    )

    def run(memory_mb: int) -> Command:
        heap = (f"--max-old-space-size={memory_mb}", f"--stack-size={_stack_kb(memory_mb)}")
        return Command(node, ("node", *options, *heap, _SOURCE))

    return Toolchain(
        version=f"node {ask(node, '--version').strip().removeprefix('v')}",
        source=_SOURCE,
        build=(Command(node, ("node", *options, "--check", _SOURCE)),),
        build_room=room,
        artefact=None,
        interpreter=run,
        run_room=room,
        out_of_memory=(b"heap out of memory", b"Array buffer allocation failed", b"out of memory"),
    )


def _stack_kb(memory_mb: int) -> int:
    """Room for recursion: a quarter of the memory, and below what the system gives to a stack."""
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    wanted = memory_mb * 1024 // 4
    return wanted if most == resource.RLIM_INFINITY else min(wanted, most // 1024 * 3 // 4)


_HOSTILE = """
const fs = require('fs'), child = require('child_process');
function attempt(name, action) {
  try { if (action() !== false) console.log(name); } catch (error) {}
}
attempt('seccomp: exec', () => child.spawnSync('/bin/true').error === undefined);
attempt('seccomp: exec of itself', () => child.spawnSync(process.execPath, ['-v']).error === undefined);
attempt('seccomp: signal to the parent', () => process.kill(process.ppid, 0));
attempt('seccomp: signal to the group', () => process.kill(0, 0));
attempt('landlock: /etc/passwd', () => fs.readFileSync('/etc/passwd'));
attempt('landlock: /proc', () => fs.readFileSync('/proc/self/environ'));
attempt('landlock: list /', () => fs.readdirSync('/'));
attempt('files: write elsewhere', () => fs.writeFileSync('/tmp/guerdon-code-probe', ''));
attempt('privileges: user root', () => process.getuid() === 0 || process.geteuid() === 0);
attempt('environment: not empty', () => Object.keys(process.env).length > 0);
const socket = require('dgram').createSocket('udp4');
socket.on('error', () => console.log('end'));
socket.bind(0, () => console.log('seccomp: socket'));
"""
_HARMLESS = """
const { Worker } = require('worker_threads');
const numbers = require('fs').readFileSync(0, 'utf8').trim().split(/\\s+/).map(Number);
const memory = new Uint8Array(64 << 20).fill(1);
const worker = new Worker('require("worker_threads").parentPort.postMessage(1)', { eval: true });
worker.on('message', (one) => console.log(numbers.reduce((a, b) => a + b, 0) * one * memory[12345]));
"""

LANGUAGE = Language(
    name="javascript",
    aliases=frozenset({"js", "node", "nodejs"}),
    find=find,
    probe=Probe(_HOSTILE, _HARMLESS),
)
