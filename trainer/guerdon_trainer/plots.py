"""Curves as SVG text to put into a page: the page's font, one colour, no frame."""

import io
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_INK = "#1f2937"
_MUTED = "#6b7280"
_LINE = "#2563eb"
_SECOND = "#ea580c"
_FILLS = ("#93c5fd", "#fdba74", "#c4b5fd", "#86efac", "#fca5a5", "#d1d5db")

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": _INK,
    "axes.edgecolor": "#d1d5db",
    "axes.labelcolor": _MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#eef0f3",
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
}

Points = tuple[Sequence[float], Sequence[float]]


def curve(label: str, points: Points, *, marks: Points | None = None, marks_label: str = "") -> str:
    """One metric over the steps, with its running mean; `marks` are a second series as dots."""
    with _style(label):
        figure, axes = _figure()
        steps, values = points
        smooth = _running_mean(values)
        axes.plot(
            steps, values, color=_LINE, alpha=0.3 if smooth else 1.0, linewidth=1.2, marker=_dot(values)
        )
        if smooth:
            axes.plot(steps, smooth, color=_LINE, linewidth=1.8)
        if marks is not None and marks[0]:
            axes.plot(*marks, color=_SECOND, linewidth=1.2, marker="o", markersize=4.5, label=marks_label)
            axes.legend(frameon=False, loc="best")
        return _svg(figure, label)


def stack(label: str, steps: Sequence[float], series: Mapping[str, Sequence[float]]) -> str:
    """Parts of a whole over the steps, on top of each other."""
    with _style(label):
        figure, axes = _figure()
        axes.stackplot(steps, *series.values(), labels=list(series), colors=_FILLS, linewidth=0)
        axes.set_ylim(bottom=0)
        figure.legend(frameon=False, loc="outside upper left", ncols=3, fontsize=8)
        return _svg(figure, label)


def _style(label: str) -> AbstractContextManager[None]:
    # A salt of its own keeps the ids of one plot apart from those of the others in the page.
    return matplotlib.rc_context({**_STYLE, "svg.hashsalt": label})


def _figure() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(4.6, 2.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel("step")
    axes.margins(x=0.02)
    return figure, axes


def _dot(values: Sequence[float]) -> str | None:
    """A single point has no line to show."""
    return "o" if len(values) == 1 else None


def _running_mean(values: Sequence[float]) -> list[float]:
    """Mean of the latest tenth of the run; nothing for short runs, which need no smoothing."""
    width = len(values) // 10
    if width < 3:
        return []
    return [
        sum(values[max(0, end - width) : end]) / len(values[max(0, end - width) : end])
        for end in range(1, len(values) + 1)
    ]


def _svg(figure: Figure, label: str) -> str:
    buffer = io.StringIO()
    metadata: dict[str, Any] = {"Date": None, "Creator": None, "Title": label}
    figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    # Sizes in points would fix the width: the page decides it, the viewBox keeps the shape.
    head, body = text.split(">", 1)
    return re.sub(r' (width|height)="[^"]*"', "", head) + ">" + body
