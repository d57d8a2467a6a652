"""One worker process of the math service: reads comparisons from stdin, writes decisions to stdout.

Run as `python -m guerdon_services.math.worker MEMORY_MB`. Frames are a 4-byte big-endian length and JSON. The
first frame it writes is {"ready": true}, or {"error": str} when it cannot start. Request: {"answer": str,
"reference": str, "time_limit_s": number}. Reply: {"equal": bool, "method": str, "reason": str}, {"unreadable": str}
when the reference is at fault, or {"error": str}.

The parent measures the time and kills. The limits set here are the second line: they end a worker whose parent
died (timer, CPU) and keep one comparison from taking the machine's memory.
"""

import json
import resource
import signal
import sys
from typing import Any, BinaryIO, cast

#: Seconds past the time limit after which the kernel ends the worker itself.
_GRACE_S = 5.0
_MAX_FRAME = 16 * 1024 * 1024


def read_frame(stream: BinaryIO) -> dict[str, Any] | None:
    """The next frame, or None at the end of the stream."""
    header = stream.read(4)
    if len(header) < 4:
        return None
    length = int.from_bytes(header, "big")
    if length > _MAX_FRAME:
        raise ValueError(f"frame of {length} bytes")
    body = stream.read(length)
    return cast("dict[str, Any]", json.loads(body)) if len(body) == length else None


def write_frame(stream: BinaryIO, message: dict[str, Any]) -> None:
    """Write one frame and flush."""
    body = json.dumps(message).encode()
    stream.write(len(body).to_bytes(4, "big") + body)
    stream.flush()


def limit_process(memory_mb: int) -> None:
    """Caps what this process may take from now on: address space, files, core dumps, child processes' output."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = memory_mb * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard < 0 else min(wanted, hard), hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def arm(time_limit_s: float) -> None:
    """Lets the kernel end this process when the parent does not: by wall time and by CPU time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = int(used.ru_utime + used.ru_stime + time_limit_s + _GRACE_S) + 1
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s if hard < 0 else min(cpu_s, hard), hard))
    signal.setitimer(signal.ITIMER_REAL, time_limit_s + _GRACE_S)


def answer_request(request: dict[str, Any]) -> dict[str, Any]:
    """Compare one answer with one reference; a failure of the algebra is an error, never a decision."""
    from guerdon_services.math.algebra import equal
    from guerdon_services.math.decision import UnreadableReference

    try:
        decision = equal(request["answer"], request["reference"])
    except UnreadableReference as problem:
        return {"unreadable": str(problem)}
    except (MemoryError, RecursionError) as problem:
        exhausted = "memory" if isinstance(problem, MemoryError) else "stack"
        return {"error": f"the algebra ran out of {exhausted}"}
    except Exception as problem:  # this item's failure, reported as such; the worker itself is fine
        return {"error": f"{type(problem).__name__}: {problem}"[:300]}
    return {"equal": decision.equal, "method": decision.method, "reason": decision.reason}


def main() -> None:
    """Serve until stdin closes."""
    memory_mb = int(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    # A library that prints must not write between the frames.
    sys.stdout = sys.stderr
    try:
        from guerdon_services.math.algebra import warm_up
    except ImportError as problem:
        write_frame(replies, {"error": f"{problem}; install guerdon-services[math]"})
        return
    warm_up()
    limit_process(memory_mb)
    write_frame(replies, {"ready": True})
    while (request := read_frame(requests)) is not None:
        arm(float(request["time_limit_s"]))
        reply = answer_request(request)
        signal.setitimer(signal.ITIMER_REAL, 0)
        write_frame(replies, reply)


if __name__ == "__main__":
    main()
