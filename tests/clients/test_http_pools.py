"""Many requests at once are spread over pools, which are used again."""

from contextlib import ExitStack

from guerdon.transports.http_pools import _ROOM, Pools


async def test_a_full_pool_opens_the_next_and_is_used_again() -> None:
    pools = Pools(headers={"Authorization": "Bearer secret"}, timeout=None)
    with ExitStack() as open:
        clients = [open.enter_context(pools.room()) for _ in range(2 * _ROOM + 1)]
        assert len(set(map(id, clients))) == 3
        assert clients[:_ROOM] == [pools.first] * _ROOM
    assert all(client.headers["Authorization"] == "Bearer secret" for client in clients)
    with pools.room() as client:
        assert client is pools.first
    await pools.aclose()
    assert all(client.is_closed for client in clients)
