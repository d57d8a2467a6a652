"""Runs on disk, and what is read of them."""

import json
from pathlib import Path

import pytest

from experiments.results import Curve, Spread, averaged, read_curves


def _write_run(
    root: Path, name: str, rows: list[tuple[int, float | None, int]], *, finished: bool = True
) -> None:
    folder = root / name
    folder.mkdir()
    lines = [json.dumps({"step": step, "accuracy": value, "failed": failed}) for step, value, failed in rows]
    (folder / "evaluations.jsonl").write_text("\n".join(lines) + "\n")
    sampled = [json.dumps({"step": step, "accuracy": step / 10}) for step, _, _ in rows[1:]]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in sampled))
    if finished:
        (folder / "finished.json").write_text(json.dumps({"step": rows[-1][0]}))


def test_curves_come_from_finished_runs_in_the_order_of_their_seeds(tmp_path: Path) -> None:
    _write_run(tmp_path, "gspo-seed10", [(0, 0.2, 0), (5, 0.5, 1)])
    _write_run(tmp_path, "gspo-seed2", [(0, 0.3, 0), (5, None, 256), (10, 0.9, 2)])
    _write_run(tmp_path, "gspo-seed3", [(0, 0.1, 0)], finished=False)
    _write_run(tmp_path, "grpo-seed0", [(0, 0.4, 0)])
    (tmp_path / "gspo-seed2.log").write_text("beside the folder")
    curves = read_curves(tmp_path, "gspo")
    # An evaluation in which nothing could be judged has no accuracy: it is no zero, and its losses are counted.
    assert curves == [Curve(2, [0, 10], [0.3, 0.9], [0.5, 1.0], 258), Curve(10, [0, 5], [0.2, 0.5], [0.5], 1)]
    assert (curves[0].before, curves[0].after) == (0.3, 0.9)
    assert read_curves(tmp_path, "nft") == []


def test_mean_and_range_at_the_steps_that_all_seeds_got_to() -> None:
    curves = [Curve(0, [0], [0.2], [0.5, 0.9, 0.95], 0), Curve(1, [0], [0.4], [0.7, 0.8], 0)]
    points = averaged(curves)
    assert [step for step, _ in points] == [1, 2]
    assert [spread.mean for _, spread in points] == pytest.approx([0.6, 0.85])
    assert [(spread.low, spread.high) for _, spread in points] == [(0.5, 0.7), (0.8, 0.9)]
    assert [curve.steps_to(0.9) for curve in curves] == [2, None]


def test_spread_reads_as_percentages() -> None:
    assert str(Spread.of([0.25, 0.5])) == "37.5% (25.0% to 50.0%)"
