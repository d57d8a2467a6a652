"""The engine of both model scorers against the way of the public code, on the same sequences in the same run.

    python benchmarks/scoring.py [--model FOLDER] [--repeats 5] [--core N] [--shapes 0.5B,7B]

Sides: `padded, full logits` is what PRIME, verl's reference path, RLPR and VeriFree do (one padded batch per group
and reference, all logits, fp32 log-softmax); `guerdon` is `guerdon_services.scoring.token_logprobs`. Cases: groups of
eight responses for process rewards; four reasonings with 1, 3 and 6 references for reference rewards.

On the CPU: SmolLM2-135M (prepared in a temporary folder, or --model), fp32, one thread. Every pass runs in a fresh
process kept on one core, the sides in turns, one small batch before the clock starts; figures are medians of CPU
seconds. Extra memory is the process's peak beyond what it held with the model loaded.

On a GPU, if there is one: random weights in bf16 of the named shapes, prompts and responses eight times as long;
medians by CUDA events, model FLOP utilisation of the tokens that had to be scored (padding and repeated prefixes are no
useful work), peak memory beyond the model.
"""

import argparse
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from peers.scoring_cases import described, process_case, reference_case
from peers.scoring_gpu import compare_on_gpu
from peers.scoring_sides import OURS, PEER, SIDES

from guerdon_services import models
from guerdon_services.scoring import ScoredSequence

#: Name, sequences for a vocabulary, and how many times the peers' throughput is asked for.
CASES = {
    "process, 1 prompt x 8": (lambda vocabulary: process_case(1, vocabulary), 2.5),
    "process, 2 prompts x 8": (lambda vocabulary: process_case(2, vocabulary), 2.5),
    "1 reference": (lambda vocabulary: reference_case(1, vocabulary), 2.1),
    "3 references": (lambda vocabulary: reference_case(3, vocabulary), 6.0),
    "6 references": (lambda vocabulary: reference_case(6, vocabulary), 8.0),
}


@dataclass(frozen=True)
class Pass:
    """One side on one case in a fresh process."""

    cpu_s: float
    extra_mb: float
    logps: list[list[float]]


def main() -> None:
    """Run every case and print the tables."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.model or _smollm2(Path(scratch))
        if arguments.repeats:
            _compare_on_cpu(folder, arguments.repeats, arguments.core)
    if torch.cuda.is_available():
        compare_on_gpu(arguments.shapes.split(","))
    else:
        print("\nno GPU here: the shapes of larger models were not run")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, help="Hugging Face folder; SmolLM2-135M-Instruct without it")
    parser.add_argument("--repeats", type=int, default=5, help="passes on the CPU; 0 leaves it out")
    parser.add_argument("--core", type=int, default=0, help="the core that passes are kept on")
    parser.add_argument("--shapes", default="0.5B,7B", help="for a GPU")
    return parser.parse_args()


def _smollm2(scratch: Path) -> Path:
    from guerdon_trainer.prepare import SmolLM2Policy, prepare_policy

    folder = scratch / "policy"
    prepare_policy(SmolLM2Policy(), folder, seed=0, progress=lambda _: None)
    return folder


def _compare_on_cpu(folder: Path, repeats: int, core: int) -> None:
    print(f"{folder.name}, fp32, one thread; median of {repeats} passes, sides in turns")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    print(f"{'case':24}{PEER + ' CPU s':>28}{'guerdon CPU s':>15}{'ratio':>8}{'asked':>7}", end="")
    print(f"{'extra MB peer':>15}{'guerdon':>9}{'largest difference':>20}")
    for name, (_, asked) in CASES.items():
        passes: dict[str, list[Pass]] = {PEER: [], OURS: []}
        for turn in range(repeats):
            for side in passes:
                print(f"{name}, pass {turn + 1} of {repeats}: {side}", file=sys.stderr)
                passes[side].append(_in_fresh_process(folder, name, side, core))
        ratio = statistics.median(p.cpu_s / o.cpu_s for p, o in zip(passes[PEER], passes[OURS], strict=True))
        cpu_s = {side: statistics.median(p.cpu_s for p in runs) for side, runs in passes.items()}
        extra = {side: statistics.median(p.extra_mb for p in runs) for side, runs in passes.items()}
        difference = _largest_difference(passes[PEER][0], passes[OURS][0])
        print(f"{name:24}{cpu_s[PEER]:28.2f}{cpu_s[OURS]:15.2f}{ratio:8.2f}{asked:7.1f}", end="")
        print(f"{extra[PEER]:15.0f}{extra[OURS]:9.0f}{difference:20.1e}")


def _in_fresh_process(folder: Path, case: str, side: str, core: int) -> Pass:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_run, (folder, case, side, core))


def _run(folder: Path, case: str, side: str, core: int) -> Pass:
    os.sched_setaffinity(0, {core % (os.cpu_count() or 1)})
    models.set_threads(1)
    model = models.load(folder).model
    sequences = CASES[case][0](model.config.vocab_size)
    score = SIDES[side]
    score(model, [ScoredSequence([1, 2, 3], [4, 5])] * 4)
    held_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    logps = score(model, sequences)
    cpu_s = time.process_time() - started
    extra_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held_kb
    print(f"  {described(sequences)}: {cpu_s:.2f} CPU s", file=sys.stderr)
    return Pass(cpu_s, extra_kb / 1024, [row.tolist() for row in logps])


def _largest_difference(first: Pass, second: Pass) -> float:
    pairs = zip(first.logps, second.logps, strict=True)
    return max(abs(a - b) for one, other in pairs for a, b in zip(one, other, strict=True))


if __name__ == "__main__":
    main()
