"""Random bytes, and messages that were right before something happened to them. Deterministic by seed."""

import json
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

from doors import request

from guerdon import codec
from guerdon.types import ScoreRequest

#: What breaks readers: ends of ranges, halves of characters, deep nests, words of formats.
_BITS = [
    *(b"\x00", b"\xff", b"\x7f\xff\xff\xff\xff", b"\xed\xa0\x80", b"\r\n\r\n", b"\\ud800", b"\\u0000"),
    *(b'"', b"{", b"]", b"[" * 500, b'{"a":' * 300, b"1e999", b"-", b"NaN", b"9" * 400, b"null", b"0.0.0"),
    *(
        b"\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 99999999999999999999",
        b"Expect: 100-continue\r\n",
    ),
    *(
        b"HTTP/9.9",
        b"Connection: upgrade\r\nUpgrade: websocket\r\n",
        b"%00%ff%2e%2e/",
        b"Guerdon-Timeout-S: -1\r\n",
    ),
]
_VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    1.5,
    1e308,
    2**63,
    10**40,
    "",
    "x",
    "\u0000",
    "\U0001f600",
    [],
    {},
    [[]],
]
_SAMPLE: dict[str, Any] = {
    "id": "a",
    "prompt": [{"role": "user", "content": "one and one?"}],
    "response": "it is \\boxed{2}",
    "references": ["2", "two"],
    "response_token_ids": [1, 2, 3],
    "metadata": {"a": [1, {"b": None}]},
    "outcome": 1.0,
}
_HEADERS = (
    "Accept: application/x-ndjson",
    "Authorization: Bearer x",
    "Guerdon-Timeout-S: 5",
    "Expect: 100-continue",
)


#: What each service must be told with every request.
_OPTIONS: dict[str, dict[str, Any]] = {
    "rules": {
        "rules": [
            {"rule": "regex", "pattern": "box", "weight": 0.5},
            {"rule": "exact"},
            {"rule": "length", "max_length": 20, "buffer": 5},
        ]
    }
}


def score_messages(service: str) -> list[dict[str, Any]]:
    """Score requests that are right for a service."""
    options = _OPTIONS.get(service, {})
    return [
        {"samples": [_SAMPLE], "options": options},
        {"samples": [_SAMPLE, {"response": "2", "references": ["2"]}], "options": options, "min_version": 0},
        {
            "samples": [{"prompt": "p", "response": "r", "response_token_ids": [5], "outcome": 0.5}],
            "options": options,
        },
    ]


def noise(rng: random.Random) -> bytes:
    """Bytes of no kind."""
    return rng.randbytes(rng.choice([1, 5, 24, 100, 1000, 20_000]))


def mutated(rng: random.Random, data: bytes) -> bytes:
    """A few changes at random places."""
    for _ in range(rng.choice([1, 1, 2, 4])):
        at, to = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
        match rng.randrange(5):
            case 0:
                data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
            case 1:
                data = data[:at] + data[min(to, at + 40) :]
            case 2:
                data = data[:at] + rng.choice(_BITS) + data[at:]
            case 3:
                data = data[:to] + data[at:]
            case _:
                data = data[:at]
    return data


def other_value(rng: random.Random, value: Any) -> Any:
    """JSON with one value, or one key, exchanged somewhere."""
    if rng.random() < 0.3 or not isinstance(value, dict | list) or not value:
        return rng.choice(_VALUES)
    if isinstance(value, dict):
        key = rng.choice(list(value))  # pyright: ignore[reportUnknownArgumentType]
        name = rng.choice(["x", "", key, key, key])
        return {**value, name: other_value(rng, value[key])}
    changed = list(value)  # pyright: ignore[reportUnknownArgumentType]
    changed[rng.randrange(len(changed))] = other_value(rng, rng.choice(changed))
    return changed


def json_body(rng: random.Random, service: str) -> bytes:
    """A score request whose JSON, or what it says, is likely to be wrong."""
    message = rng.choice(score_messages(service))
    for _ in range(rng.choice([0, 1, 2])):
        message = other_value(rng, message)
    body = json.dumps(message).encode()
    return mutated(rng, body) if rng.random() < 0.5 else body


def proto_body(rng: random.Random, service: str) -> bytes:
    """A score request whose protobuf is likely to be wrong."""
    if rng.random() < 0.1:
        return noise(rng)
    message = rng.choice(score_messages(service))
    return mutated(rng, codec.encode(ScoreRequest.model_validate(message)))


def http_bytes(rng: random.Random, service: str) -> bytes:
    """What is sent down a new connection of the HTTP door."""
    if rng.random() < 0.3:
        return noise(rng)
    path = rng.choice(
        ["/v1/score", "/v1/score", "/v1/info", "/v1/update", "/healthz", "/docs", "/../x?y=%ff"]
    )
    headers = rng.sample(_HEADERS, rng.randrange(3))
    return mutated(rng, request(json_body(rng, service), path, headers))


def grpc_bytes(rng: random.Random, _service: str) -> bytes:
    """What is sent down a new connection of the gRPC door: often HTTP/2 frames of some kind."""
    if rng.random() < 0.3:
        return noise(rng)
    frames = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", _frame(4, 0, 0, b"")]
    for _ in range(rng.randrange(6)):
        payload = rng.randbytes(rng.choice([0, 1, 8, 50, 400]))
        frames.append(
            _frame(rng.randrange(12), rng.randrange(256), rng.choice([0, 1, 3, 2**31 - 1]), payload)
        )
    data = b"".join(frames)
    return mutated(rng, data) if rng.random() < 0.5 else data


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


Source = Callable[[random.Random, str], bytes]


def several(source: Source, service: str, count: int, seed: int) -> Sequence[bytes]:
    """So many inputs of a source."""
    rng = random.Random(seed)
    return [source(rng, service) for _ in range(count)]
