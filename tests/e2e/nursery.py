"""Forks services on command: each is a process of its own that can be killed, and torch is imported once for all.

Commands are lines of JSON on stdin, each answered by a line of JSON on stdout:

    {"spawn": SPEC}                 {"pid": 123}        keys of SPEC: see `spawn`
    {"signal": 9, "pid": 123}       {"code": -9}        once the process has ended

Every service is killed when stdin ends.
"""

import json
import os
import signal
import sys
from typing import Any, NoReturn

# What the services import when they open a model.
import transformers.models.llama.modeling_llama  # noqa: F401

import guerdon_services.process_reward.replica
import guerdon_services.process_reward.service
import guerdon_services.rollout.engines.transformers
import guerdon_services.rollout.service  # noqa: F401
from guerdon_services.runtime import launch


def _serve(name: str, words: list[str], options: dict[str, Any], log: str) -> NoReturn:
    """The child's life, what `guerdon serve` does."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    written = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for descriptor, source in ((0, null), (1, written), (2, written)):
        os.dup2(source, descriptor)
    # Weights from a URL belong to the test, as the log does.
    os.environ["GUERDON_CACHE_DIR"] = f"{os.path.dirname(log)}/cache"
    os._exit(launch.run(launch.make_service(name, words), launch.runtime_settings(options)))


def spawn(spec: dict[str, Any]) -> int:
    """Fork a service: its `name`, the `words` with its settings, options of its runtime, and its `log`."""
    pid = os.fork()
    if pid == 0:
        try:
            _serve(spec["name"], spec["words"], spec["options"], spec["log"])
        finally:
            os._exit(70)
    return pid


def main() -> None:
    """Obey until stdin ends."""
    living: set[int] = set()
    try:
        for line in sys.stdin:
            print(json.dumps(_obey(json.loads(line), living)), flush=True)
    finally:
        for pid in living:
            os.kill(pid, signal.SIGKILL)


def _obey(command: dict[str, Any], living: set[int]) -> dict[str, Any]:
    if "spawn" in command:
        pid = spawn(command["spawn"])
        living.add(pid)
        return {"pid": pid}
    pid = command["pid"]
    # Nobody else waits for it, so the number still belongs to it, dead or alive.
    os.kill(pid, command["signal"])
    living.remove(pid)
    return {"code": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}


if __name__ == "__main__":
    main()
