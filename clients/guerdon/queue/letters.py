"""Dead letters: requests that were given up, for an operator to look at, queue anew or forget."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from guerdon.queue.link import Link

#: Letters that one round trip reads, queues anew or forgets.
PAGE = 100
#: Most entries of a stream above which nothing is queued anew; that of a producer by default.
MAX_LENGTH = 10_000


@dataclass(frozen=True)
class DeadLetter:
    """One request as it was submitted, and why it was given up. Times are Unix ms by the server's clock."""

    letter_id: str
    request_id: str
    op: str
    body: bytes
    client: str
    reason: str
    #: None where the letter does not say.
    deliveries: int | None
    enqueued_unix_ms: int | None

    @property
    def died_unix_ms(self) -> int:
        """When it was given up."""
        return int(self.letter_id.partition("-")[0])


async def dead_letters(url: str, service: str) -> AsyncGenerator[DeadLetter]:
    """The dead letters of a service, oldest first.

    Raises:
        Unavailable: Redis cannot be reached.
    """
    link, last = Link(url, service), ""
    try:
        while letters := await link.call("letters", last, PAGE):
            for letter in map(_letter, letters):
                last = letter.letter_id
                yield letter
    finally:
        await link.close()


async def redrive(
    url: str, service: str, letter_ids: Sequence[str], *, max_length: int = MAX_LENGTH
) -> list[str]:
    """Queue dead letters anew; what became of each.

    `queued`, or `answered` when another submission of the request has had its answer meanwhile: the letter is
    gone. `missing` (no such letter), `full` (the queue is) or `malformed` (it names no request, or one whose keys hold
    something else): nothing happened. The answer goes to whoever asks for the request id.

    Raises:
        Unavailable: Redis cannot be reached.
        Overloaded: Redis is out of memory.
    """
    link = Link(url, service)
    try:
        states: list[str] = []
        for start in range(0, len(letter_ids), PAGE):
            found = await link.call("redrive", max_length, *letter_ids[start : start + PAGE])
            states += [state.decode() for state in found]
        return states
    finally:
        await link.close()


async def purge(url: str, service: str, letter_ids: Sequence[str]) -> int:
    """Forget dead letters; how many of them there were.

    Raises:
        Unavailable: Redis cannot be reached.
    """
    link = Link(url, service)
    try:
        purged = 0
        for start in range(0, len(letter_ids), PAGE):
            purged += await link.call("purge", *letter_ids[start : start + PAGE])
        return purged
    finally:
        await link.close()


def _letter(fields: Sequence[Any]) -> DeadLetter:
    letter_id, request_id, op, body, client, reason, deliveries, enqueued = fields
    return DeadLetter(
        letter_id=letter_id.decode(),
        request_id=request_id.decode(errors="replace"),
        op=op.decode(errors="replace"),
        body=body,
        client=client.decode(errors="replace"),
        reason=reason.decode(errors="replace"),
        deliveries=int(deliveries) if deliveries.isdigit() else None,
        enqueued_unix_ms=int(enqueued) if enqueued.isdigit() else None,
    )
