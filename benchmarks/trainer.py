"""One training step of guerdon's trainer against TRL's GRPOTrainer, on the same model, prompts and completions.

    python benchmarks/trainer.py [--layers 8] [--repeats 3] [--core N] [--cases "16 x 96,with generation"]

The model is SmolLM2-135M-Instruct, prepared in a temporary folder: its first --layers layers, or all 30 with 0. Both
sides minimise GSPO's loss in fp32 on one thread, one optimiser step per batch of 16 completions, their metrics on. TRL
runs as it does by default (layers are computed again for the gradient), and without that in the first case. Every
step is the second one of a fresh process kept on one core, the sides in turns; figures are medians. Extra memory is
the process's peak beyond what it held with the model loaded: gradients and optimiser states are in it on both sides.

Gradient norms and entropies of both sides stand beside each other: where they agree, both did the same work. With
generation the completions are sampled anew by each side's own engine, so there they need not; ours then also publishes
the new weights and reads them back, as a run does.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
from pathlib import Path

from peers.trainer_cases import CASES
from peers.trainer_sides import OURS, TRL, TRL_KEEPS, Step, measure

#: An id that is hardly ever sampled: completions are to have the same length on both sides.
_NO_END = 49_151
#: What is asked of the first and the last case.
FASTER, OF_MEMORY = 2.0, 0.4


def main() -> None:
    """Run every case and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--layers", type=int, default=8, help="how many of the 30 layers; 0 keeps all")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--core", type=int, default=0, help="the core that processes are kept on")
    parser.add_argument("--cases", default=",".join(CASES), help="names, separated by commas without a space")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = _model(Path(scratch), arguments.layers)
        print(
            f"SmolLM2-135M, {arguments.layers or 30} layers, fp32, one thread; median of {arguments.repeats}"
        )
        print(
            f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; asked: {FASTER}x, {OF_MEMORY:.0%}\n"
        )
        print(
            f"{'case':26}{'side':30}{'CPU s':>8}{'wall s':>8}{'faster':>8}{'extra MB':>10}{'share':>7}",
            end="",
        )
        print(f"{'gradient norm':>15}{'entropy':>10}")
        for name in _split(arguments.cases):
            _compare(folder, name, arguments.repeats, arguments.core)


def _split(names: str) -> list[str]:
    """Case names hold commas followed by a space; those between names have none."""
    return [name.replace("\0", ", ") for name in names.replace(", ", "\0").split(",")]


def _model(scratch: Path, layers: int) -> Path:
    """The folder both sides load."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from guerdon_trainer.prepare import SmolLM2Policy, prepare_policy

    whole, folder = scratch / "whole", scratch / "model"
    prepare_policy(SmolLM2Policy(), whole, seed=0, progress=lambda _: None)
    kept = {"num_hidden_layers": layers} if layers else {}
    model = AutoModelForCausalLM.from_pretrained(whole, dtype=torch.float32, **kept)
    model.generation_config.eos_token_id = _NO_END
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(whole).save_pretrained(folder)
    return folder


def _compare(folder: Path, name: str, repeats: int, core: int) -> None:
    sides = [TRL, TRL_KEEPS, OURS] if name == next(iter(CASES)) else [TRL, OURS]
    steps: dict[str, list[Step]] = {side: [] for side in sides}
    for turn in range(repeats):
        for side in sides:
            print(f"{name}, {turn + 1} of {repeats}: {side}", file=sys.stderr)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                steps[side].append(pool.apply(_quietly, (side, folder, name, core)))
    for side in sides:
        runs, ours = steps[side], steps[OURS]
        faster = statistics.median(run.cpu_s / own.cpu_s for run, own in zip(runs, ours, strict=True))
        share = statistics.median(own.extra_mb / run.extra_mb for run, own in zip(runs, ours, strict=True))
        cpu_s, wall_s, extra_mb = (
            statistics.median(getattr(run, what) for run in runs) for what in ("cpu_s", "wall_s", "extra_mb")
        )
        print(f"{name:26}{side:30}{cpu_s:8.1f}{wall_s:8.1f}{faster:8.2f}{extra_mb:10.0f}{share:7.0%}", end="")
        print(f"{runs[-1].grad_norm:15.5f}{runs[-1].entropy:10.5f}", flush=True)


def _quietly(side: str, folder: Path, name: str, core: int) -> Step:
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the table stands alone on the real one
    return measure(side, folder, CASES[name], core)


if __name__ == "__main__":
    main()
