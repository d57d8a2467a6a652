"""What a client that was killed left in the queue, withdrawn by the process that takes its place."""

from guerdon.queue.link import Link

#: Entries that one round trip looks at.
PAGE = 100


async def withdraw(url: str, service: str, client_id: str) -> int:
    """Withdraw every request of a client that is gone; how many there were.

    What no worker has begun is then never executed, as if the client had cancelled it. `client_id` is what
    `AsyncClient.client_id` was. Requests that another client has asked for since, under the same key, stay.

    Raises:
        Unavailable: Redis cannot be reached.
    """
    link, withdrawn = Link(url, service), 0
    try:
        for priority in (0, 1):
            last = b""
            while True:
                last, count = await link.call("withdraw", client_id, priority, last, PAGE)
                withdrawn += count
                if not last:
                    break
        return withdrawn
    finally:
        await link.close()
