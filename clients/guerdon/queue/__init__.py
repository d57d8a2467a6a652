"""Both ends of the work queue on Redis Streams: at-least-once delivery, one visible result per request.

Work and results live in Redis, so that no process that dies takes anything with it. The queue knows nothing of
what it carries. Producer and Consumer are plain asyncio; all that must happen at once happens in a Lua script
(`lua/*.lua`), and every script may be repeated when its answer was lost.

Keys. `P` is `{service}:`; the braces keep a service in one cluster slot.

    P q:0, P q:1     stream     high and normal priority. An entry has the fields rid (request id), op, body, client,
                                deadline and enqueued (Unix ms by the server's clock; deadline may be empty) and trace
                                (W3C traceparent, may be empty); these three may be missing. Fields that a worker does
                                not know are ignored.
                                Consumer group `workers`, from id 0. An entry is deleted when it is answered, so
                                XLEN counts what waits and what is being worked on: scale on it.
    P dd:<rid>       hash       a request in flight: stream and id of its entry, client (the last that asked),
                                deadline, serial (of its submission), cancelled. Makes a second submission of the
                                same request harmless.
    P res:<rid>      hash       a final result (status, reason, body), kept for 10 minutes; for 1 after its client read
                                it where the client made the id up. A submission of the same request is answered from
                                here.
    P reply:<client> stream     results on their way to one client: rid, status, reason, body.
    P dlq            stream     dead letters: entries at which `max_deliveries` workers died, as they were submitted,
                                with deliveries, stream and reason.
    P workers        sorted set live workers; the score is the Unix ms at which a silent one counts as gone.

What happens to a request:

1. SUBMIT appends the entry, unless the request is answered or in flight, or the stream is full (never trimmed).
2. TAKE gives entries to a worker, which renews its lease on them while it works. Expired and cancelled ones are
   answered with `timeout` instead.
3. COMPLETE keeps the first result, sends it to the client, and deletes the entry.
4. An entry whose worker died stays idle for a lease, then another worker takes it. One over which two workers
   died runs alone, so that a request that kills its worker cannot get its neighbours given up with it. After
   `max_deliveries` it becomes a dead letter, answered with `internal_error`.
   An operator may have it queued anew: its first answer then takes the place of the error.
5. A client that hears nothing asks again under the same request id: that covers what a crash of Redis may lose
   (with `appendfsync everysec`, its last second). A worker that hears nothing hands back what it may have been
   given unheard.

Releases may run side by side on the same keys: fields of entries, replies and letters are only ever added, each script
brings its own text, and `tests/golden/queue` keeps the scripts of each release that the current one must live with.
"""

from guerdon.queue.consumer import Consumer, Entry
from guerdon.queue.letters import DeadLetter, dead_letters, purge, redrive
from guerdon.queue.link import QueueStats, stats
from guerdon.queue.producer import Producer, Reply
from guerdon.queue.withdrawal import withdraw

__all__ = [
    "Consumer",
    "DeadLetter",
    "Entry",
    "Producer",
    "QueueStats",
    "Reply",
    "dead_letters",
    "purge",
    "redrive",
    "stats",
    "withdraw",
]
