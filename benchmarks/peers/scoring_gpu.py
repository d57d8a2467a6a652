"""The same comparison on a GPU, with random weights in the shapes of larger models."""

import statistics
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from guerdon.logprobs.packing import pack
from guerdon_services.scoring import ScoredSequence
from peers.scoring_cases import described, process_case, reference_case
from peers.scoring_sides import OURS, SIDES

#: Qwen2.5's: hidden size, intermediate size, layers, heads, key heads, vocabulary, tied embeddings.
SHAPES = {
    "0.5B": (896, 4864, 24, 14, 2, 151_936, True),
    "7B": (3584, 18_944, 28, 28, 4, 152_064, False),
}
#: Dense bf16 TFLOP/s of what the name contains, from the data sheets.
PEAKS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0}
_REPEATS, _SCALE = 5, 8.0


def compare_on_gpu(shapes: Sequence[str]) -> None:
    """Print one table per shape."""
    name = torch.cuda.get_device_name()
    peak = next((value for key, value in PEAKS.items() if key in name), None)
    for shape in shapes:
        model = random_model(shape).to(device="cuda", dtype=torch.bfloat16)
        vocabulary = SHAPES[shape][5]
        cases = {
            "process, 1 prompt x 8": process_case(1, vocabulary, _SCALE),
            "3 references": reference_case(3, vocabulary, _SCALE),
        }
        print(f"\n{name}, {shape}, bf16, random weights; median of {_REPEATS} passes")
        for case, sequences in cases.items():
            print(f"{case}: {described(sequences)}")
            for side, score in SIDES.items():
                seconds, extra_mb = _timed(partial(score, model, sequences))
                tokens_s = sum(map(len, sequences)) / seconds
                used = useful_flops(shape, sequences) / seconds / 1e12
                share = f"{used / peak:6.1%} MFU" if peak else f"{used:.0f} TFLOP/s"
                mark = "  <-" if side == OURS else ""
                print(
                    f"  {side:22}{seconds * 1e3:10.1f} ms{tokens_s:12,.0f} tokens/s  {share}{extra_mb:9.0f} MB{mark}"
                )
        del model
        torch.cuda.empty_cache()


def random_model(shape: str) -> nn.Module:
    """A Qwen2 of that shape with random weights, in evaluation mode."""
    hidden, intermediate, layers, heads, key_heads, vocabulary, tied = SHAPES[shape]
    config = Qwen2Config(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        vocab_size=vocabulary,
        tie_word_embeddings=tied,
        max_position_embeddings=32_768,
    )
    return Qwen2ForCausalLM(config).eval()


def useful_flops(shape: str, sequences: Sequence[ScoredSequence]) -> float:
    """Two per weight and distinct token, and the output head for response tokens; attention is left out."""
    hidden, intermediate, layers, heads, key_heads, vocabulary, _ = SHAPES[shape]
    head = hidden // heads
    per_layer = hidden * (2 * heads * head + 2 * key_heads * head) + 3 * hidden * intermediate
    tokens = len(pack([sequence.ids[:-1] for sequence in sequences]).ids)
    scored = sum(len(sequence.response_ids) for sequence in sequences)
    return 2.0 * (tokens * layers * per_layer + scored * hidden * vocabulary)


def _timed(run: Callable[[], object]) -> tuple[float, float]:
    """Median seconds of a call, and the most memory it took beyond what was held, in MB."""
    run()
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    times: list[float] = []
    for _ in range(_REPEATS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times), (torch.cuda.max_memory_allocated() - held) / 2**20
