"""The worker's end of the queue."""

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from guerdon.errors import GuerdonError, TooLarge
from guerdon.queue.link import BACKOFF_S, BLOCK_MS, Argument, Link, log
from guerdon.queue.producer import Reply
from guerdon.types import Status

#: Seconds that start, complete and release keep trying while Redis cannot be reached.
PATIENCE_S = 60.0
#: Longest time in seconds between two looks for work that others left behind.
RESCUE_EVERY_S = 0.5
#: Renewals of a lease in the time of one, and the longest time in seconds between two: another worker, with a shorter
#: lease, must not take what is being worked on.
RENEWALS_PER_LEASE = 3
RENEW_EVERY_S = 5.0


@dataclass(frozen=True)
class Entry:
    """One request as a worker gets it. `deliveries` is 1 unless earlier workers died or hung over it.

    Unix times are those of the server's clock. `left_s` is what was left until the deadline when the request was
    taken: use it, for the clock of this machine may be another. `waited_s` is how long ago it was queued, `trace` the
    W3C traceparent of its client or empty.
    """

    entry_id: str
    stream: str
    request_id: str
    op: str
    body: bytes
    client: str
    deadline_unix_ms: int | None
    enqueued_unix_ms: int
    deliveries: int
    left_s: float | None
    waited_s: float
    trace: str


class Consumer:
    """Takes work from one service's queue; one per worker process.

    A `consumer_id` that a restarted process uses again gets what its predecessor held without waiting for the
    lease to end. It must be unique among live workers; without one, it is random.
    """

    def __init__(
        self,
        url: str,
        service: str,
        *,
        consumer_id: str | None = None,
        lease_s: float = 30.0,
        max_deliveries: int = 5,
    ) -> None:
        self.consumer_id = consumer_id or uuid.uuid4().hex
        self._adopts = consumer_id is not None
        self._lease_s = lease_s
        self._lease_ms = round(lease_s * 1000)
        self._max_deliveries = max_deliveries
        self._link = Link(url, service)
        #: Entries taken and neither answered nor released.
        self._held: dict[tuple[str, str], Entry] = {}
        self._holds_nothing = asyncio.Event()
        self._holds_nothing.set()
        #: Whether what is held is an entry over which workers died, and has to run alone.
        self._alone = False
        #: Entries that a read gave beyond what was asked for: it counts per stream.
        self._surplus: list[Entry] = []
        self._next_rescue = 0.0
        self._pause = BACKOFF_S[0]
        #: Whether the last read failed: it may have been given entries that nobody here knows of.
        self._unsure = False
        self._taking = asyncio.Lock()
        self._renewer: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    async def start(self) -> None:
        """Join the queue's workers.

        Raises:
            Unavailable: Redis cannot be reached.
        """
        await self._link.call(
            "join", self.consumer_id, self._lease_ms, int(self._adopts), patience_s=PATIENCE_S
        )
        self._renewer = asyncio.get_running_loop().create_task(self._renew_leases())

    async def take(self, max_entries: int) -> list[Entry]:
        """Up to `max_entries` requests; blocks about 500 ms at most, and returns [] when nothing came.

        An entry over which several workers died comes alone, once nothing else is held here. While Redis cannot
        be reached, nothing comes.
        """
        async with self._taking:
            if self._closing.is_set():
                return []
            try:
                if self._unsure:
                    await self._link.call("recover", self.consumer_id, *_addresses(list(self._held.values())))
                    self._unsure = False
                entries = self._surplus or await self._take(max_entries)
                self._pause = BACKOFF_S[0]
            except GuerdonError as error:
                log.warning("taking work: %s", error)
                self._unsure = True
                await self._sleep(self._pause)
                self._pause = min(2 * self._pause, BACKOFF_S[1])
                return []
            self._surplus = entries[max_entries:]
            return entries[:max_entries]

    async def complete(self, entry: Entry, reply: Reply, *, passing: bool = False) -> None:
        """Answer a request. Its first answer is the one that counts; later ones vanish.

        A `passing` answer says in its body that the work was not done. It is not kept, as one whose status says so:
        who asks again has it done. One that is too large for Redis becomes an `internal_error`.

        Raises:
            Unavailable: Redis could not be reached for a minute. The request will be delivered again.
        """
        try:
            try:
                await self._answer(entry, reply, passing)
            except TooLarge as error:
                failure = Reply(entry.request_id, Status.INTERNAL_ERROR, f"the answer: {error}", b"")
                await self._answer(entry, failure, passing=False)
        finally:
            self._drop([entry])

    async def _answer(self, entry: Entry, reply: Reply, passing: bool) -> None:
        await self._link.call(
            "complete",
            *(entry.stream, entry.entry_id, entry.request_id, entry.client),
            *(reply.status.value, reply.reason, reply.body, int(passing)),
            patience_s=PATIENCE_S,
        )

    async def release(self, entries: Sequence[Entry]) -> None:
        """Hand requests back undone; they are delivered again at once, and this delivery does not count.

        Raises:
            Unavailable: Redis could not be reached for a minute. They will be delivered again after the lease.
        """
        addresses = _addresses(entries)
        try:
            await self._link.call("release", self.consumer_id, *addresses, patience_s=PATIENCE_S)
        finally:
            self._drop(entries)

    async def close(self) -> None:
        """Hand back whatever is still held, leave the queue's workers, and disconnect."""
        self._closing.set()
        async with self._taking:
            if self._renewer is not None:
                await self._renewer
            try:
                await self._link.call("leave", self.consumer_id)
            except GuerdonError as error:
                log.warning("leaving: %s; what was held is delivered again after the lease", error)
            await self._link.close()

    async def _take(self, max_entries: int) -> list[Entry]:
        if self._alone:
            await self._wait(self._holds_nothing, BLOCK_MS / 1000)
            return []
        now = asyncio.get_running_loop().time()
        rescue = now >= self._next_rescue
        waiting, entries = await self._take_now(max_entries, rescue=rescue)
        if rescue and not (waiting or entries):
            self._next_rescue = now + min(RESCUE_EVERY_S, self._lease_s / RENEWALS_PER_LEASE)
        if entries or self._closing.is_set():
            return entries
        if waiting:
            await self._wait(self._holds_nothing, BLOCK_MS / 1000)
            return []
        given = await self._wait_for_work()
        return (await self._take_now(max_entries, given=given))[1] if given else []

    async def _take_now(
        self, max_entries: int, *, rescue: bool = False, given: Sequence[Argument] = ()
    ) -> tuple[bool, list[Entry]]:
        waiting, found = await self._link.call(
            "take",
            *(self.consumer_id, max_entries, self._lease_ms, self._max_deliveries),
            *(int(rescue), int(not self._held), *given),
        )
        entries: list[Entry] = []
        for fields in found:
            try:
                entries.append(_entry(fields))
            except UnicodeDecodeError:
                await self._refuse(fields)
        self._held.update(((entry.stream, entry.entry_id), entry) for entry in entries)
        if entries:
            self._holds_nothing.clear()
            self._alone = bool(found[0][3])
        return bool(waiting), entries

    async def _refuse(self, fields: Sequence[Any]) -> None:
        """Answer an entry that no client of ours has written; whoever reads its replies is told."""
        stream, entry_id, _, _, request_id, _, _, client, *_ = fields
        reason = "malformed queue entry: request id, op and client must be UTF-8"
        log.warning("entry %s: %s", entry_id.decode(), reason)
        await self._link.call(
            "complete", stream, entry_id, request_id, client, Status.INVALID_INPUT.value, reason, b""
        )

    async def _wait_for_work(self) -> list[Argument]:
        """Stream and id of the entries that arrived within BLOCK_MS: none, one, or one of each priority."""
        streams = (self._link.key("q:0"), self._link.key("q:1"))
        answer = await self._link.block(
            *("XREADGROUP", "GROUP", "workers", self.consumer_id, "COUNT", 1, "BLOCK", BLOCK_MS),
            *("STREAMS", *streams, ">", ">"),
        )
        return [argument for stream, entries in answer or () for argument in (stream, entries[0][0])]

    async def _renew_leases(self) -> None:
        while not await self._sleep(min(self._lease_s / RENEWALS_PER_LEASE, RENEW_EVERY_S)):
            try:
                addresses = _addresses(list(self._held.values()))
                await self._link.call("renew", self.consumer_id, self._lease_ms, *addresses)
            except GuerdonError as error:
                log.warning("renewing leases: %s", error)

    async def _sleep(self, seconds: float) -> bool:
        """Sleep unless closing; True when closing."""
        await self._wait(self._closing, seconds)
        return self._closing.is_set()

    async def _wait(self, event: asyncio.Event, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()

    def _drop(self, entries: Sequence[Entry]) -> None:
        """Forget entries, so that their lease is no longer renewed."""
        for entry in entries:
            self._held.pop((entry.stream, entry.entry_id), None)
        if not self._held:
            self._alone = False
            self._holds_nothing.set()


def _addresses(entries: Sequence[Entry]) -> list[str]:
    return [part for entry in entries for part in (entry.stream, entry.entry_id)]


def _entry(fields: Sequence[Any]) -> Entry:
    stream, entry_id, deliveries, _, request_id, op, body, client, deadline, enqueued, left_ms, *rest = fields
    waited_ms, trace = rest or (b"0", b"")  # an older release's script says neither
    return Entry(
        entry_id=entry_id.decode(),
        stream=stream.decode(),
        request_id=request_id.decode(),
        op=op.decode(),
        body=body,
        client=client.decode(),
        deadline_unix_ms=int(deadline) if deadline else None,
        enqueued_unix_ms=int(enqueued),
        deliveries=deliveries,
        left_s=int(left_ms) / 1000 if left_ms else None,
        waited_s=int(waited_ms) / 1000,
        trace=trace.decode(errors="replace"),
    )
