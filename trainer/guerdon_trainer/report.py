"""What is left of a run for people: one HTML page that needs nothing else, and the last lines on the terminal."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from rich.console import Console
from rich.table import Table

from guerdon_trainer import plots
from guerdon_trainer.run_folder import RunFolder, read_lines, write_whole

#: Curves in the order of the page: section, then (metric, label).
_CURVES: dict[str, list[tuple[str, str]]] = {
    "Learning": [
        ("accuracy", "accuracy of sampled responses"),
        ("reward", "reward"),
        ("process_reward", "process reward per response"),
        ("prm/accuracy", "accuracy of the PRM on the batch"),
        ("prm/loss", "loss of the PRM"),
        ("entropy", "entropy, nats per token"),
        ("response_length", "response length, tokens"),
        ("truncated", "truncated responses, share"),
    ],
    "Optimisation": [
        ("loss", "loss"),
        ("clip_fraction", "clip fraction"),
        ("grad_norm", "gradient norm"),
        ("lr", "learning rate"),
        ("kl_initial", "KL to the initial policy, nats per token"),
        ("kl_old", "KL to the sampling policy, nats per token"),
        ("ratio_mean", "importance ratio, mean"),
        ("engine_mismatch", "engine against trainer, |log-prob difference|, nats"),
        ("engine_kl", "engine against trainer, KL (k3), nats per token"),
        ("importance_weight", "importance weight against the engine, mean"),
        ("importance_truncated", "importance weights cut at the cap, share"),
    ],
    "Data and services": [
        ("tokens_per_s", "response tokens per second"),
        ("groups_filtered", "groups filtered out"),
        ("unrewarded", "responses without reward"),
        ("wait_rollouts_fraction", "share of the step spent waiting for rollouts"),
        ("wait_rewards_fraction", "share of the step spent waiting for rewards"),
        ("policy_age_mean", "age of the sampling policy, mean, versions"),
        ("policy_age_max", "age of the sampling policy, largest, versions"),
        ("dropped_stale", "groups dropped as too old"),
    ],
}

#: Parts of a step's time, as they are stacked.
_TIMES = {
    "wait_rollouts_s": "rollouts",
    "wait_rewards_s": "rewards",
    "wait_process_s": "process rewards",
    "learn_s": "learning",
    "publish_s": "publishing",
}

#: Steps whose rollouts are shown, spread over the run.
_ROLLOUTS_SHOWN = 5


def write_report(folder: RunFolder) -> Path:
    """Render `report.html` from the files of the run folder."""
    rows = read_lines(folder.metrics)
    evaluations = read_lines(folder.evaluations)
    services = json.loads(folder.services.read_text()) if folder.services.exists() else {}
    environment = Environment(
        loader=PackageLoader("guerdon_trainer"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    page = environment.get_template("report.html.j2").render(
        name=folder.path.name,
        rows=rows,
        first=evaluations[0] if evaluations else None,
        last=evaluations[-1] if evaluations else None,
        evaluations=evaluations,
        sections=_sections(rows, evaluations),
        services=_service_table(services),
        statuses=_statuses(services),
        rollouts=_spread(read_lines(folder.rollouts), _ROLLOUTS_SHOWN),
        config=folder.config.read_text(),
        facts=_facts(rows, services),
    )
    write_whole(folder.report, page)
    return folder.report


def print_conclusion(folder: RunFolder, console: Console | None = None) -> None:
    """Print what the services answered, accuracy before and after, and where the report lies."""
    console = console or Console()
    counts = json.loads(folder.services.read_text())
    console.print(_terminal_table(counts))
    evaluations = read_lines(folder.evaluations)
    before, after = (_percent(evaluation["accuracy"]) for evaluation in (evaluations[0], evaluations[-1]))
    questions = evaluations[-1]["judged"] + evaluations[-1]["failed"]
    console.print(
        f"held-out greedy accuracy on {questions} questions: [bold]{before} before[/], [bold]{after} after[/] "
        f"{len(read_lines(folder.metrics))} updates"
    )
    for k, chance in evaluations[-1].get("pass_at", {}).items():
        begun = evaluations[0].get("pass_at", {}).get(k)
        before = _percent(begun["value"]) if begun else "unknown"
        console.print(f"pass@{k}: [bold]{before} before[/], [bold]{_percent(chance['value'])} after[/]")
    console.print(f"report: {folder.report}", soft_wrap=True)


def _sections(
    rows: Sequence[dict[str, Any]], evaluations: Sequence[dict[str, Any]]
) -> dict[str, list[tuple[str, str]]]:
    sections = {
        title: [(label, _curve(name, label, rows, evaluations)) for name, label in curves if _has(rows, name)]
        for title, curves in _CURVES.items()
    }
    sections["Learning"] += _pass_curves(evaluations)
    if rows:
        sections["Data and services"].insert(0, ("seconds per step", _times(rows)))
    named = {name for curves in _CURVES.values() for name, _ in curves} | {"step"}
    others = sorted({name for row in rows for name in row if _is_number(row[name])} - named)
    sections["Everything else"] = [(name, _curve(name, name, rows, [])) for name in others]
    return {title: curves for title, curves in sections.items() if curves}


def _curve(
    name: str, label: str, rows: Sequence[dict[str, Any]], evaluations: Sequence[dict[str, Any]]
) -> str:
    steps = [row["step"] for row in rows if _is_number(row.get(name))]
    values = [row[name] for row in rows if _is_number(row.get(name))]
    marks = None
    if name in ("accuracy", "reward"):
        held_out = [row for row in evaluations if row[name] is not None]
        marks = ([row["step"] for row in held_out], [row[name] for row in held_out])
    return plots.curve(label, (steps, values), marks=marks, marks_label="held out, greedy")


def _pass_curves(evaluations: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """The chance of a right answer among the most samples, and with one."""
    sampled = [row for row in evaluations if row.get("pass_at")]
    if not sampled:
        return []
    most = max(sampled[-1]["pass_at"], key=int)
    label = f"held-out pass@{most}"
    points, single = (
        (
            [row["step"] for row in sampled if k in row["pass_at"]],
            [row["pass_at"][k]["value"] for row in sampled if k in row["pass_at"]],
        )
        for k in (most, "1")
    )
    return [(label, plots.curve(label, points, marks=single, marks_label="pass@1"))]


def _times(rows: Sequence[dict[str, Any]]) -> str:
    parts = {
        label: [row.get(name, 0.0) for row in rows] for name, label in _TIMES.items() if _has(rows, name)
    }
    parts["other"] = [
        max(0.0, row["seconds"] - sum(series[index] for series in parts.values()))
        for index, row in enumerate(rows)
    ]
    return plots.stack("seconds per step", [row["step"] for row in rows], parts)


def _has(rows: Sequence[dict[str, Any]], name: str) -> bool:
    return any(_is_number(row.get(name)) for row in rows)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _statuses(services: dict[str, Any]) -> list[str]:
    seen = {
        status
        for counts in services.get("services", {}).values()
        for status in (*counts["final"], *counts["retried"])
    }
    return sorted(seen, key=lambda status: (status != "ok", status))


def _service_table(services: dict[str, Any]) -> list[dict[str, Any]]:
    restarts = services.get("restarts", {})
    answered = services.get("services", {})
    nothing = {"final": {}, "retried": {}, "p50_ms": None, "p99_ms": None, "last_failure": ""}
    return [
        {"name": name, "restarts": restarts.get(name, 0), **answered.get(name, nothing)}
        for name in sorted({*answered, *restarts})
    ]


def _facts(rows: Sequence[dict[str, Any]], services: dict[str, Any]) -> dict[str, str]:
    totals: dict[str, str] = {"updates": str(len(rows))}
    if rows:
        seconds = sum(row["seconds"] for row in rows)
        tokens = sum(row["tokens_per_s"] * row["seconds"] for row in rows)
        totals["training time"] = f"{int(seconds // 60)} min {seconds % 60:.0f} s"
        totals["tokens sampled"] = f"{tokens:,.0f}"
        totals["responses without reward"] = f"{sum(row['unrewarded'] for row in rows):,}"
    restarts = services.get("restarts", {})
    totals["service restarts"] = str(sum(restarts.values()))
    return totals


def _spread(rows: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """`count` of the training rows from first to last, and the last evaluation's."""
    training = [row for row in rows if row["kind"] == "training"]
    if len(training) > count:
        training = [training[round(place * (len(training) - 1) / (count - 1))] for place in range(count)]
    evaluation = [row for row in rows if row["kind"] == "evaluation"]
    last = evaluation[-1]["step"] if evaluation else None
    return training + [row for row in evaluation if row["step"] == last]


def _terminal_table(counts: dict[str, Any]) -> Table:
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
