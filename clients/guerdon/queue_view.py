"""What `guerdon queue` shows of a queue, and does about its dead letters."""

import asyncio
import json
import re
import threading
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from guerdon.codec import decode
from guerdon.errors import GuerdonError, InvalidRequest
from guerdon.queue import DeadLetter, QueueStats, dead_letters, purge, redrive, stats
from guerdon.types import GenerateRequest, Message, ScoreRequest, UpdateRequest

#: What the body of a dead letter is, by operation.
_REQUESTS: dict[str, type[Message]] = {
    "score": ScoreRequest,
    "generate": GenerateRequest,
    "update": UpdateRequest,
}
#: Seconds between two looks of `watch`.
_WATCH_S = 1.0
_LETTER_ID = re.compile(r"\d+-\d+")


class View:
    """A table of one look at a queue; what came and went per second since the look before."""

    def __init__(self, service: str) -> None:
        self._service = service
        self._seen: QueueStats | None = None
        self._seen_s = 0.0

    def look(self, seen: QueueStats, now_s: float) -> Table:
        """The table of what was seen at `now_s` (seconds, of any clock that only goes on)."""
        came = went = None
        if self._seen is not None and now_s > self._seen_s:
            # A Redis that lost its data starts to count anew.
            came = max(0, seen.submitted - self._seen.submitted)
            went = max(0, came - (_unanswered(seen) - _unanswered(self._seen)))
            came, went = came / (now_s - self._seen_s), went / (now_s - self._seen_s)
        self._seen, self._seen_s = seen, now_s
        table = Table(title=f"queue {self._service}", caption=nobody(seen))
        rows = {
            "queued": f"{seen.queued:,}",
            "pending": f"{seen.pending:,}",
            "dead": f"{seen.dead:,}",
            "oldest": f"{seen.oldest_ms / 1000:,.1f} s",
            "workers": f"{seen.workers:,}",
            "in": "" if came is None else f"{came:,.0f}/s",
            "out": "" if went is None else f"{went:,.0f}/s",
        }
        for name in rows:
            table.add_column(name, justify="right")
        table.add_row(*rows.values())
        return table


def nobody(seen: QueueStats) -> str | None:
    """A sentence where nothing would ever come of waiting."""
    if seen.workers:
        return None
    if seen.submitted or seen.dead:
        return "no worker is alive: nothing will be answered"
    return "no queue of this name was ever used: is it spelled right?"


def show(service: str, redis: str) -> None:
    """Print one look as a line of JSON; what is odd about it goes to standard error."""
    seen = asyncio.run(stats(redis, service))
    typer.echo(json.dumps(asdict(seen)))
    if sentence := nobody(seen):
        typer.echo(sentence, err=True)


def watch(service: str, redis: str, leaving: threading.Event) -> None:
    """A table that is drawn again every second until `leaving` is set; it outlives a Redis that goes away.

    Raises:
        Unavailable: Redis cannot be reached at the first look.
    """
    view = View(service)
    table = view.look(asyncio.run(stats(redis, service)), time.monotonic())
    with Live(table, console=Console()) as live:
        while not leaving.wait(_WATCH_S):
            try:
                table = view.look(asyncio.run(stats(redis, service)), time.monotonic())
            except GuerdonError as error:
                table.caption = str(error)
            live.update(table)


async def list_letters(service: str, redis: str, content: bool) -> None:
    """Print a line of JSON for each dead letter, oldest first."""
    async with aclosing(dead_letters(redis, service)) as letters:
        async for letter in letters:
            typer.echo(_letter_line(letter, content))


async def purge_letters(service: str, redis: str, letters: Sequence[str]) -> None:
    """Forget dead letters; all of them where none is named."""
    ids = await _ids(service, redis, letters)
    typer.echo(json.dumps({"purged": await purge(redis, service, ids)}))


async def redrive_letters(service: str, redis: str, letters: Sequence[str]) -> bool:
    """Queue dead letters anew, all where none is named, and print what became of each; whether all went."""
    ids = await _ids(service, redis, letters)
    states = await redrive(redis, service, ids)
    for id, state in zip(ids, states, strict=True):
        typer.echo(json.dumps({"id": id, "state": state}))
    return all(state in ("queued", "answered") for state in states)


async def _ids(service: str, redis: str, letters: Sequence[str]) -> Sequence[str]:
    """The ids that were named, or every one.

    Raises:
        InvalidRequest: one of them is no id of a dead letter.
    """
    for letter in letters:
        if not _LETTER_ID.fullmatch(letter):
            raise InvalidRequest(f"a dead letter's id looks like 1764492000000-0, not {letter!r}")
    return letters or [letter.letter_id async for letter in dead_letters(redis, service)]


def _unanswered(seen: QueueStats) -> int:
    return seen.queued + seen.pending


def _letter_line(letter: DeadLetter, content: bool) -> str:
    shown: dict[str, Any] = {
        "id": letter.letter_id,
        "request_id": letter.request_id,
        "op": letter.op,
        "reason": letter.reason,
        "deliveries": letter.deliveries,
        "died": datetime.fromtimestamp(letter.died_unix_ms / 1000, UTC).isoformat(timespec="seconds"),
        "bytes": len(letter.body),
    }
    if content:
        shown["request"] = _request(letter)
    return json.dumps(shown, ensure_ascii=False)


def _request(letter: DeadLetter) -> dict[str, Any] | None:
    """What a dead letter asks for; None when that cannot be read."""
    kind = _REQUESTS.get(letter.op)
    try:
        return decode(kind, letter.body).model_dump(mode="json", exclude_defaults=True) if kind else None
    except InvalidRequest:
        return None
