"""The last lines of a run: what the services answered, accuracy before and after, and where the report lies."""

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from guerdon_trainer.checkpoint import RunFolder
from guerdon_trainer.record import read_lines


def print_conclusion(folder: RunFolder, console: Console | None = None) -> None:
    """Print the summary of a run folder."""
    console = console or Console()
    counts = json.loads(folder.services.read_text())
    console.print(_services(counts))
    evaluations = read_lines(folder.evaluations)
    before, after = (_percent(evaluation["accuracy"]) for evaluation in (evaluations[0], evaluations[-1]))
    questions = evaluations[-1]["judged"] + evaluations[-1]["failed"]
    console.print(
        f"held-out greedy accuracy on {questions} questions: [bold]{before} before[/], [bold]{after} after[/] "
        f"{len(read_lines(folder.metrics))} updates"
    )
    console.print(f"report: {folder.report}", soft_wrap=True)


def _services(counts: dict[str, Any]) -> Table:
    table = Table(title="what the services answered", title_justify="left", title_style="bold")
    table.add_column("service", no_wrap=True)
    for name in ("ok", "failed", "retried", "p50 ms", "p99 ms", "restarts"):
        table.add_column(name, justify="right")
    for name in sorted({*counts["services"], *counts["restarts"]}):
        service = counts["services"].get(name)
        restarts = str(counts["restarts"].get(name, 0))
        if service is None:
            table.add_row(name, "-", "-", "-", "-", "-", restarts)
            continue
        failed = {status: count for status, count in service["final"].items() if status != "ok"}
        table.add_row(
            name,
            f"{service['final'].get('ok', 0):,}",
            _by_status(failed),
            _by_status(service["retried"]),
            f"{service['p50_ms']:.0f}",
            f"{service['p99_ms']:.0f}",
            restarts,
        )
    return table


def _by_status(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {status}" for status, count in counts.items()) or "0"


def _percent(accuracy: float | None) -> str:
    return "unknown" if accuracy is None else f"{accuracy:.1%}"
