"""What an operator sees of a queue: counts, rates, what is odd, and a Redis that goes away meanwhile."""

import threading
from dataclasses import replace

import pytest
from rich.console import Console
from rich.table import Table

from guerdon import queue_view
from guerdon.errors import Unavailable
from guerdon.queue import QueueStats
from guerdon.queue_view import View, nobody

SEEN = QueueStats(queued=1200, pending=64, dead=2, oldest_ms=3_500, workers=3, submitted=90_000)


def row(table: Table) -> dict[str, str]:
    return {str(column.header): next(iter(column.cells)) for column in table.columns}  # type: ignore[misc]


def test_the_table_shows_counts_and_what_came_and_went_per_second() -> None:
    view = View("math")
    first = row(view.look(SEEN, 10.0))
    assert first == {
        "queued": "1,200",
        "pending": "64",
        "dead": "2",
        "oldest": "3.5 s",
        "workers": "3",
        "in": "",
        "out": "",
    }
    later = replace(SEEN, queued=1000, pending=64, submitted=90_500)
    second = row(view.look(later, 12.0))
    assert (second["in"], second["out"]) == ("250/s", "350/s")


def test_a_redis_that_lost_its_data_gives_no_negative_rates() -> None:
    view = View("math")
    view.look(SEEN, 10.0)
    shown = row(view.look(QueueStats(0, 0, 0, 0, 3, submitted=5), 11.0))
    assert (shown["in"], shown["out"]) == ("0/s", "1,264/s")


@pytest.mark.parametrize(
    ("seen", "sentence"),
    [
        (SEEN, None),
        (replace(SEEN, workers=0), "no worker is alive"),
        (QueueStats(0, 0, 0, 0, 0, submitted=0), "no queue of this name was ever used"),
    ],
)
def test_says_where_nothing_will_come_of_waiting(seen: QueueStats, sentence: str | None) -> None:
    said = nobody(seen)
    assert said is None if sentence is None else str(said).startswith(sentence)


def test_the_live_view_outlives_a_redis_that_goes_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    leaving = threading.Event()
    looks: list[int] = []

    async def stats(url: str, service: str) -> QueueStats:
        looks.append(len(looks))
        if len(looks) == 4:
            leaving.set()
        if len(looks) in (2, 4):
            raise Unavailable("Redis cannot be reached: refused")
        return SEEN

    monkeypatch.setattr(queue_view, "stats", stats)
    monkeypatch.setattr(queue_view, "_WATCH_S", 0.01)
    monkeypatch.setattr(queue_view, "Console", lambda: Console(width=100))
    queue_view.watch("math", "redis://x", leaving)
    shown = capsys.readouterr().out
    assert looks == [0, 1, 2, 3]
    assert "1,200" in shown, "the last counts stay"
    assert "Redis cannot be reached" in shown
