"""Who wants to hear of a group while it is sampled: pieces on their way from the service's threads to a door.

Pieces are provisional: only the group's own result says whether they count. Doors that do not stream have no
listener, and cost nothing. A slow reader holds up nobody: what it has not taken waits, and is never more than the
tokens of its groups.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from guerdon.types import Rollout


@dataclass(frozen=True, slots=True)
class Piece:
    """What rollout `number` of a group grew by.

    The `text` of all pieces of a rollout is its response; nothing that comes later changes what was given. `rollout`
    is the whole of it, with its last piece.
    """

    number: int
    #: The version that began the group.
    version: int
    prompt_token_ids: Sequence[int]
    token_ids: Sequence[int] = ()
    #: Nats, of `token_ids`.
    logprobs: Sequence[float] = ()
    text: str = ""
    rollout: Rollout | None = None


class Inbox:
    """The pieces of one request that its door has not taken yet.

    `news` is called on the event loop, soon after each.
    """

    def __init__(self) -> None:
        self.news: Callable[[], None] = lambda: None
        self._loop = asyncio.get_running_loop()
        self._pieces: deque[tuple[int, Piece]] = deque()
        self._rung = False
        self._closed = False

    def __bool__(self) -> bool:
        return bool(self._pieces)

    @property
    def closed(self) -> bool:
        """Whether nobody reads it any more."""
        return self._closed

    def put(self, index: int, piece: Piece) -> None:
        """Take a piece of item number `index`; called from any thread."""
        if self._closed:
            return
        self._pieces.append((index, piece))
        if not self._rung:
            self._rung = True
            with suppress(RuntimeError):  # the event loop has ended: the process does, too
                self._loop.call_soon_threadsafe(self._ring)

    def take(self) -> list[tuple[int, Piece]]:
        """What has come, in order; of each rollout in one piece."""
        taken = defaultdict[tuple[int, int], list[Piece]](list)
        for _ in range(len(self._pieces)):
            index, piece = self._pieces.popleft()
            taken[index, piece.number].append(piece)
        return [(index, _joined(pieces)) for (index, _), pieces in taken.items()]

    def close(self) -> None:
        """Take and keep nothing more."""
        self._closed = True
        self._pieces.clear()

    def _ring(self) -> None:
        self._rung = False
        self.news()


class Listener:
    """Hears of one group while it is sampled; a service calls it from its own threads."""

    def __init__(self, inbox: Inbox, index: int, *, tokens: bool) -> None:
        #: Whether it wants tokens as they are sampled, or each rollout once it is whole.
        self.tokens = tokens
        #: Whether something was given out: from then on the group may not be begun anew by other weights.
        self.told = False
        self._inbox = inbox
        self._index = index

    @property
    def gone(self) -> bool:
        """Whether nobody waits for the group any more."""
        return self._inbox.closed

    def hear(self, piece: Piece) -> None:
        """Pass a piece on."""
        self.told = True
        self._inbox.put(self._index, piece)


def _joined(pieces: Sequence[Piece]) -> Piece:
    """Pieces of one rollout, in order, as one: all at once, since a slow reader may have left thousands."""
    return replace(
        pieces[-1],
        token_ids=[token for piece in pieces for token in piece.token_ids],
        logprobs=[logprob for piece in pieces for logprob in piece.logprobs],
        text="".join(piece.text for piece in pieces),
    )
