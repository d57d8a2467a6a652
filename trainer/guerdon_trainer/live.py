"""What a person sees while a run goes on: a live table on a terminal, plain lines elsewhere."""

import time
from collections import deque
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from guerdon_trainer.evaluate import Evaluation

_SPARKS = "▁▂▃▄▅▆▇█"
#: Steps shown in a sparkline, and steps the time left is estimated from.
_HISTORY = 40

#: Row name, label and format of the numbers in the table, in order.
_SHOWN = (
    ("reward", "reward", "{:.3f}"),
    ("accuracy", "accuracy", "{:.1%}"),
    ("process_reward", "process reward", "{:+.4f}"),
    ("entropy", "entropy", "{:.3f} nats"),
    ("clip_fraction", "clip fraction", "{:.1%}"),
    ("kl_initial", "KL to the initial policy", "{:.4f} nats"),
    ("kl_old", "KL to the sampling policy", "{:.2e} nats"),
    ("grad_norm", "gradient norm", "{:.3f}"),
    ("response_length", "response length", "{:.1f} tokens"),
    ("tokens_per_s", "tokens per second", "{:,.0f}"),
    ("wait_rollouts_fraction", "waiting for rollouts", "{:.0%}"),
    ("wait_rewards_fraction", "waiting for rewards", "{:.0%}"),
    ("policy_age_mean", "age of the policy", "{:.2f} versions"),
)


class LiveView:
    """Shows the latest step. A context manager, since a live display must give the terminal back."""

    def __init__(self, title: str, steps: int, console: Console | None = None) -> None:
        self._console = console or Console()
        self._title = title
        self._steps = steps
        self._rows: deque[dict[str, Any]] = deque(maxlen=_HISTORY)
        self._evaluations: list[Evaluation] = []
        self._status = "starting"
        self._live = Live(console=self._console, get_renderable=self._render, refresh_per_second=4)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._status = ""
        if self._console.is_terminal:
            self._live.stop()

    def progress(self, status: str) -> None:
        """What goes on within a step; too fine for plain lines."""
        self._status = status

    def message(self, text: str) -> None:
        """Something worth a line of its own."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def evaluation(self, evaluation: Evaluation) -> None:
        """A held-out evaluation."""
        self._evaluations.append(evaluation)
        self.message(f"step {evaluation.step}: {evaluation.summary}")

    def step(self, row: dict[str, Any]) -> None:
        """A finished step."""
        self._rows.append(row | {"at": time.monotonic()})
        if not self._console.is_terminal:
            self._console.print(_line(row, self._steps, self._eta()), highlight=False, soft_wrap=True)

    def _eta(self) -> str:
        left = self._steps - self._rows[-1]["step"]
        pace = sum(row["seconds"] for row in self._rows) / len(self._rows)
        seconds = round(left * pace)
        return f"{seconds // 60}:{seconds % 60:02d}"

    def _render(self) -> RenderableType:
        parts: list[RenderableType] = []
        if self._rows:
            row = self._rows[-1]
            parts += [_headline(row, self._steps, self._eta()), self._numbers(row), Text(_failures(row))]
        if self._evaluations:
            held_out = " → ".join(
                "?" if evaluation.accuracy is None else f"{evaluation.accuracy:.1%}"
                for evaluation in self._evaluations
            )
            parts.append(Text(f"held-out greedy accuracy {held_out}", style="bold"))
        parts.append(Text(self._status, style="dim"))
        return Panel(Group(*parts), title=self._title, title_align="left", width=min(self._console.width, 90))

    def _numbers(self, row: dict[str, Any]) -> Table:
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(style="dim")
        table.add_column(justify="right")
        table.add_column(style="cyan", no_wrap=True)
        for name, label, form in _SHOWN:
            if row.get(name) is not None:
                table.add_row(
                    label, form.format(row[name]), _sparkline([past.get(name) for past in self._rows])
                )
        return table


def _headline(row: dict[str, Any], steps: int, eta: str) -> Table:
    table = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=steps, completed=row["step"], width=40)
    table.add_row(Text(f"step {row['step']}/{steps}", style="bold"), bar, f"{eta} left")
    return table


def _line(row: dict[str, Any], steps: int, eta: str) -> str:
    shown = [f"{label} {form.format(row[name])}" for name, label, form in _SHOWN if row.get(name) is not None]
    return f"step {row['step']}/{steps} | {' | '.join(shown)} | {_failures(row)} | {eta} left"


def _failures(row: dict[str, Any]) -> str:
    counts: dict[str, int] = {}
    for by_status in row["failures"].values():
        for status, count in by_status.items():
            counts[status] = counts.get(status, 0) + count
    return "failures " + (", ".join(f"{count} {status}" for status, count in counts.items()) or "none")


def _sparkline(values: list[float | None]) -> str:
    numbers = [value for value in values if value is not None]
    low, high = min(numbers), max(numbers)
    span = (high - low) or 1.0
    return "".join(_SPARKS[int((value - low) / span * (len(_SPARKS) - 1))] for value in numbers)
