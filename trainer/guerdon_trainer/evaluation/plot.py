"""The calibration plot: what a reward says against how often it is right."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from guerdon_trainer.evaluation.quality import Bin

_COLOURS = ("#2563eb", "#ea580c", "#7c3aed", "#16a34a", "#dc2626", "#6b7280")


def write_calibration(path: Path, services: Mapping[str, Sequence[Bin]]) -> None:
    """An SVG with one curve for each service that has bins, its intervals, and below how many rows each bin holds."""
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": path.name, "font.size": 9}):
        figure = Figure(figsize=(5.0, 5.0), layout="constrained")
        curves, counts = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        curves.plot([0, 1], [0, 1], color="#9ca3af", linewidth=1, linestyle="--", label="calibrated")
        drawn = {name: bins for name, bins in services.items() if bins}
        for number, (name, bins) in enumerate(drawn.items()):
            colour = _COLOURS[number % len(_COLOURS)]
            values = [found.mean_value for found in bins]
            shares = [found.share_right.value for found in bins]
            below = [found.share_right.value - found.share_right.low for found in bins]
            above = [found.share_right.high - found.share_right.value for found in bins]
            curves.errorbar(
                values,
                shares,
                (below, above),
                color=colour,
                marker="o",
                markersize=4,
                linewidth=1.4,
                capsize=2,
                label=name,
            )
            width = 0.1 / len(drawn)
            starts = [found.low + number * width for found in bins]
            counts.bar(starts, [found.count for found in bins], width, align="edge", color=colour)
        curves.set(ylabel="share of right responses", xlim=(0, 1), ylim=(0, 1))
        curves.legend(frameon=False, loc="upper left")
        counts.set(xlabel="value of the reward", ylabel="responses")
        for axes in (curves, counts):
            axes.grid(color="#eef0f3")
            axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None, "Title": "calibration"})
