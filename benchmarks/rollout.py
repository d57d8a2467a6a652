"""The rollout service's engines against transformers' own generate, and the queue against calling vLLM directly.

    python benchmarks/rollout.py [--model quickstart|smollm2|FOLDER] [--repeats 3] [--new 32]
                                 [--sides generate,transformers,vllm,"vllm direct","vllm queue"]

The work is 8 prompts of different lengths, 8 responses to each, temperature 1. `generate` pads 16 of these rows at a
time and decodes until the last of them has ended, as a plain script does; tokens after a row's end are not counted.
`transformers` and `vllm` are our engines, given all rows. Tokens per CPU-second count every process; wall time means
something on an idle machine only, therefore the load average is printed. Sides take turns; figures are medians.

The vLLM sides run where vLLM is installed: `.venv/vllm/bin/python benchmarks/rollout.py --model smollm2`. `vllm direct`
calls AsyncLLM by hand with one request per prompt, and `vllm queue` a service process over the embedded Redis with the
trainer's client; the last line is what the queue and the service cost over calling it directly, of which at most 5 % is
asked.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from peers.cpu import ChildrenClock

from guerdon.client import AsyncClient
from guerdon.redis_server import redis_server
from guerdon.supervisor import ProcessSpec, Supervisor, free_ports
from guerdon.types import GenerateSample, Sampling, Status
from guerdon_services.models import load, load_tokenizer
from guerdon_services.rollout import engines
from guerdon_services.rollout.engine import Row
from guerdon_services.rollout.settings import RolloutSettings
from guerdon_trainer.prepare import SmolLM2Policy, TinyPolicy, prepare_policy

SIDES = ("generate", "transformers", "vllm", "vllm direct", "vllm queue")
GROUPS, N, BATCH = 8, 8, 16
#: Asked: ours by generate's, and what the queue may add.
FASTER, OVERHEAD = 2.0, 0.05

#: Does the work once; the tokens sampled.
Side = Callable[[], int]


def main() -> None:
    """Run the sides in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="quickstart")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--new", type=int, default=32, help="new tokens at most")
    parser.add_argument("--sides", default=",".join(SIDES))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    asked = [side for side in arguments.sides.split(",") if find_spec("vllm") or "vllm" not in side]
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = _model(arguments.model, scratch)
        prompts = _prompts(folder)
        made = {side: stack.enter_context(_MAKERS[side](folder, prompts, arguments.new)) for side in asked}
        for run in made.values():
            run()  # what the first call costs is not measured
        passes: dict[str, list[tuple[float, float]]] = {side: [] for side in asked}
        for _ in range(arguments.repeats):
            for side, run in made.items():
                passes[side].append(_measured(run))
    _print(arguments.model, passes)


def _measured(run: Side) -> tuple[float, float]:
    """Tokens per CPU-second of all processes, and per second."""
    children = ChildrenClock()
    cpu, began = time.process_time() + children.read_ns() / 1e9, time.perf_counter()
    tokens = run()
    wall_s = time.perf_counter() - began
    return tokens / (time.process_time() + children.read_ns() / 1e9 - cpu), tokens / wall_s


def _print(model: str, passes: dict[str, list[tuple[float, float]]]) -> None:
    print(f"{model}: {GROUPS} prompts x {N}; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{'side':16}{'tokens/CPU-s':>14}{'tokens/s':>10}{'by generate':>13}")
    middle = {side: statistics.median(cpu for cpu, _ in done) for side, done in passes.items()}
    for side, done in passes.items():
        by = f"{middle[side] / middle['generate']:.2f}" if "generate" in middle else ""
        print(f"{side:16}{middle[side]:14.0f}{statistics.median(wall for _, wall in done):10.0f}{by:>13}")
    print(f"asked of transformers by generate: {FASTER}")
    if {"vllm direct", "vllm queue"} <= passes.keys():
        pairs = list(zip(passes["vllm direct"], passes["vllm queue"], strict=True))
        for name, at in (("CPU-seconds", 0), ("seconds", 1)):
            cost = statistics.median(direct[at] / queue[at] - 1 for direct, queue in pairs)
            print(
                f"the queue over calling vLLM directly, {name} per token: {cost:+.1%} (asked: {OVERHEAD:.0%})"
            )


def _model(name: str, scratch: Path) -> Path:
    policies: dict[str, Any] = {"quickstart": TinyPolicy(), "smollm2": SmolLM2Policy()}
    if name not in policies:
        return Path(name)
    prepare_policy(policies[name], scratch / "policy", seed=0, progress=lambda _: None)
    return scratch / "policy"


def _prompts(folder: Path) -> list[tuple[int, ...]]:
    """Of one to eight sums: as ragged as training prompts are."""
    tokenizer = load_tokenizer(folder)
    texts = [";".join(f"{i}+{j}+4=" for j in range(1 + i)) for i in range(GROUPS)]
    return [tuple(tokenizer(text)["input_ids"]) for text in texts]  # type: ignore[arg-type]


def _rows(prompts: list[tuple[int, ...]], new: int) -> list[Row]:
    row = Row((), max_new_tokens=new, temperature=1.0, top_p=1.0, top_k=0, stop=(), seed=None)
    return [replace(row, prompt_ids=prompt) for prompt in prompts for _ in range(N)]


@contextmanager
def _generate(folder: Path, prompts: list[tuple[int, ...]], new: int) -> Iterator[Side]:
    model: Any = load(folder).model
    ends: set[int] = {model.generation_config.eos_token_id}
    rows = [prompt for prompt in prompts for _ in range(N)]

    @torch.inference_mode()
    def run() -> int:
        tokens = 0
        for first in range(0, len(rows), BATCH):
            batch = rows[first : first + BATCH]
            width = max(map(len, batch))
            ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in batch])
            mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in batch])
            out = model.generate(
                ids, attention_mask=mask, max_new_tokens=new, do_sample=True, top_k=0, pad_token_id=0
            )
            for response in out[:, width:].tolist():
                tokens += next((at + 1 for at, token in enumerate(response) if token in ends), len(response))
        return tokens

    yield run


@contextmanager
def _engine(name: str, folder: Path, prompts: list[tuple[int, ...]], new: int) -> Iterator[Side]:
    engine = engines.open_engine(RolloutSettings(model=folder, engine=name))  # type: ignore[arg-type]
    rows = _rows(prompts, new)
    yield lambda: sum(len(sampled.token_ids) for sampled in engine.generate(rows))
    engine.close()


@contextmanager
def _direct(folder: Path, prompts: list[tuple[int, ...]], new: int) -> Iterator[Side]:
    """AsyncLLM with the service's settings, one request of N responses per prompt, all at once."""
    from guerdon_services.rollout.engines.vllm_core import Core, parameters

    loop = asyncio.new_event_loop()

    async def start() -> Core:
        core = Core(RolloutSettings(model=folder, engine="vllm"), folder)
        await core.ready(0)
        return core

    core = loop.run_until_complete(start())
    ends = frozenset({int(load_tokenizer(folder).eos_token_id)})  # type: ignore[arg-type]
    rows = _rows(prompts, new)[::N]

    async def one(row: Row, number: int) -> int:
        prompt: Any = {"prompt_token_ids": list(row.prompt_ids)}
        asked = core.llm.generate(prompt, parameters(row, N, ends), f"{number}-{time.time_ns()}")
        [output] = [output async for output in asked if output.finished]
        return sum(len(choice.token_ids) for choice in output.outputs)

    async def everything() -> int:
        return sum(await asyncio.gather(*(one(row, number) for number, row in enumerate(rows))))

    yield lambda: loop.run_until_complete(everything())
    core.stop()
    loop.run_until_complete(loop.shutdown_asyncgens())


@contextmanager
def _queue(folder: Path, prompts: list[tuple[int, ...]], new: int) -> Iterator[Side]:
    sampling = Sampling(n=N, max_new_tokens=new)
    samples = [GenerateSample(prompt_token_ids=list(prompt)) for prompt in prompts]
    with redis_server() as url, tempfile.TemporaryDirectory() as scratch:
        http = f"127.0.0.1:{free_ports(1)[0]}"
        command = [sys.executable, "-m", "guerdon", "serve", "rollout", "--http", http, "--queue", url]
        service = ProcessSpec(
            name="rollout",
            command=[*command, f"model={folder}", "engine=vllm"],
            env={},
            log_path=Path(scratch) / "rollout.log",
            ready_url=f"http://{http}/readyz",
        )

        async def once() -> int:
            async with AsyncClient(url, service="rollout", timeout_s=600) as client:
                results = await client.generate(samples, sampling)
            assert all(result.status is Status.OK for result in results), results[0].reason
            return sum(len(rollout.token_ids) for result in results for rollout in result.rollouts)

        with Supervisor([service]) as supervisor:
            # A model that vLLM does not run ends the benchmark here, with the service's log.
            supervisor.wait_ready(timeout_s=600)
            yield lambda: asyncio.run(once())


def _ours(name: str) -> Any:
    return lambda folder, prompts, new: _engine(name, folder, prompts, new)


_MAKERS: dict[str, Any] = {
    "generate": _generate,
    "transformers": _ours("transformers"),
    "vllm": _ours("vllm"),
    "vllm direct": _direct,
    "vllm queue": _queue,
}

if __name__ == "__main__":
    main()
