"""An engine's processes end with the service that started them, whatever becomes of it."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from guerdon_services.rollout.engines import guard
from tests.services.rollout.processes import gone, until

#: A service whose engine is one process that has started another in a session of its own.
_SERVICE = """
import runpy, subprocess, sys, time
worker = [sys.executable, "-c", "import time; print(0, flush=True); time.sleep(600)"]
engine = f'''
import subprocess, time
worker = subprocess.Popen({worker!r}, start_new_session=True, stdout=subprocess.PIPE)
worker.stdout.readline()
print(worker.pid, flush=True)
time.sleep(600)
'''
guard = runpy.run_path(sys.argv[1])["Guard"]()
with guard.marking():
    engine = subprocess.Popen([sys.executable, "-c", engine], stdout=subprocess.PIPE, text=True)
other = subprocess.Popen(worker, stdout=subprocess.PIPE)
other.stdout.readline()
print(engine.pid, engine.stdout.readline().strip(), guard._process.pid, other.pid, flush=True)
if sys.argv[2] == "closes":
    sys.stdin.readline()
    guard.close()
    print("closed", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", ["killed", "closes"])
def test_marked_processes_end_with_the_service_and_no_others(how: str) -> None:
    words = [sys.executable, "-c", _SERVICE, str(guard.__file__), how]
    service = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert service.stdin is not None
    assert service.stdout is not None
    started = [psutil.Process(int(pid)) for pid in service.stdout.readline().split()]
    *guarded, other = started
    try:
        if how == "killed":
            os.kill(service.pid, signal.SIGKILL)
            service.wait()
        else:
            service.stdin.write("\n")
            service.stdin.flush()
            assert service.stdout.readline() == "closed\n"
        until(lambda: all(gone(one) for one in guarded), minutes=2)
        assert not gone(other)
    finally:
        service.kill()
        service.communicate()
        for one in started:
            if one.is_running():
                one.kill()
