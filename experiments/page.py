"""The page of results: one table and one plot per comparison."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from experiments.plan import Comparison, Plan
from experiments.results import Curve, Spread, averaged, read_curves

_COLOURS = ("#2563eb", "#ea580c", "#16a34a", "#9333ea", "#dc2626", "#0891b2")


def write_page(plan: Plan, root: Path, folder: Path) -> Path:
    """Write `results.md` and its plots into `folder`; runs that did not finish are named as missing."""
    folder.mkdir(parents=True, exist_ok=True)
    curves = {name: read_curves(root, name) for name in plan.runs}
    parts = [
        "# Small runs, side by side",
        "Written by `make experiments`; `experiments/plan.yaml` says what was run. Before and after: greedy accuracy\n"
        "on held-out sums. To 90 %: the first step whose sampled responses were right that often. Plots: accuracy of\n"
        "each step's sampled responses. Mean over the seeds, with the lowest and the highest.",
        table(plan.table, curves),
    ]
    for comparison in plan.comparisons:
        parts.append(_section(comparison, curves, folder))
    page = folder / "results.md"
    page.write_text("\n\n".join(parts) + "\n")
    return page


def table(names: Sequence[str], curves: Mapping[str, Sequence[Curve]]) -> str:
    """Accuracy before and after, one line per run."""
    lines = [
        "| run | seeds | before | after | steps to 90 % | learned | without verdict |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [_line(name, curves[name]) for name in names]
    return "\n".join(lines)


def _line(name: str, curves: Sequence[Curve]) -> str:
    if not curves:
        return f"| {name} | 0 | not finished | | | | |"
    before = Spread.of([curve.before for curve in curves])
    after = Spread.of([curve.after for curve in curves])
    failed = sum(curve.failed for curve in curves)
    steps = ", ".join(str(curve.steps_to(0.9) or "never") for curve in curves)
    return f"| {name} | {len(curves)} | {before} | {after} | {steps} | {_learned(curves)} | {failed} |"


def _learned(curves: Sequence[Curve]) -> str:
    """In how many seeds the accuracy rose by more than chance explains, on 256 questions about 9 points."""
    rose = sum(curve.after - curve.before > 0.09 for curve in curves)
    return "yes" if rose == len(curves) else "no" if not rose else f"{rose} of {len(curves)}"


def _section(comparison: Comparison, curves: Mapping[str, Sequence[Curve]], folder: Path) -> str:
    arms = {label: curves[run] for label, run in comparison.arms.items() if curves[run]}
    missing = [label for label in comparison.arms if label not in arms]
    lines = [f"## {comparison.title}", f"Claimed: {comparison.claim}"]
    if arms:
        _plot(comparison.title, arms, folder / f"{comparison.name}.svg")
        lines += [f"![{comparison.title}]({comparison.name}.svg)", table(list(arms), arms)]
    if missing:
        lines.append(f"Not finished: {', '.join(missing)}.")
    return "\n\n".join(lines)


def _plot(title: str, arms: Mapping[str, Sequence[Curve]], path: Path) -> None:
    """Mean sampled accuracy by step, with the range over the seeds as a band."""
    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 9,
        "svg.hashsalt": path.stem,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(6, 3.2), layout="constrained")
        axes = figure.add_subplot()
        for (label, curves), colour in zip(arms.items(), _COLOURS, strict=False):
            points = averaged(curves)
            steps = [step for step, _ in points]
            means = [spread.mean for _, spread in points]
            axes.plot(steps, means, color=colour, label=f"{label} ({len(curves)} seeds)")
            axes.fill_between(
                steps,
                [spread.low for _, spread in points],
                [spread.high for _, spread in points],
                color=colour,
                alpha=0.15,
                linewidth=0,
            )
        axes.set(xlabel="step", ylabel="accuracy of sampled responses", title=title, ylim=(0, 1.02))
        axes.grid(color="#eef0f3")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="lower right")
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
