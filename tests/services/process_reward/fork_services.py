"""Imports what services need once and becomes one for every line on stdin: processes like any, started at once.

A line is JSON: {"arguments": ["serve", …], "environment": {…}, "log": PATH}; the answer is the process id.
"""

import json
import os
import signal
import sys
from typing import Any

import guerdon_services.process_reward.replica
import guerdon_services.process_reward.service
import guerdon_services.runtime.process  # noqa: F401
from guerdon.cli import app


def become(order: dict[str, Any]) -> None:
    """Serve, in this process."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(order["environment"])
    app(order["arguments"])


# Nobody here waits for the children: their ends are no news.
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        become(json.loads(line))
    print(child, flush=True)
