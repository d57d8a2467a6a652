"""Sections on how to learn: the optimiser, the length of a run, and what is kept of it."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from guerdon.stores import Store, StoreError
from guerdon_trainer.config.base import Count, Section

#: 1 would never take a gradient into account.
Decay = Annotated[float, Field(ge=0, lt=1)]


def _writable(url: str) -> str:
    """A URL that versions can be uploaded to, as far as that can be told without asking anybody."""
    if url.startswith("memory://"):
        raise ValueError("memory:// is the memory of the trainer, where no service finds anything")
    if url.startswith(("http://", "https://")):
        raise ValueError("nothing can be uploaded there; a bucket's URL begins with its store, such as s3://")
    try:
        Store(url)
    except StoreError as error:
        raise ValueError(str(error)) from error
    return url


class WeightsConfig(Section):
    """Where the policy's versions go besides the run folder."""

    #: URL (s3://bucket/policy, file:///shared/policy) that every version is uploaded to, for services that follow it
    #: there. One run's alone.
    mirror_url: Annotated[str, Field(pattern="^[a-z0-9+]+://."), AfterValidator(_writable)] | None = None


class LoraConfig(Section):
    """Learn small adapters in place of the weights. Needs the extra `lora`."""

    rank: Count = 16
    #: The adapters' output is scaled by alpha / rank.
    alpha: Annotated[float, Field(gt=0)] = 32.0
    #: Names of modules, or all-linear for every linear layer but the head.
    targets: Literal["all-linear"] | Annotated[list[str], Field(min_length=1)] = "all-linear"
    #: merged: every version is a whole model. adapter: it is the adapters alone, in peft's format, which only rollout
    #: services that run vLLM take up (settings model: the initial policy, max_lora_rank).
    publish: Literal["merged", "adapter"] = "merged"


class OptimizerConfig(Section):
    """AdamW, one linear warm-up, then a constant rate."""

    lr: Annotated[float, Field(gt=0)] = 1e-6
    #: Optimiser steps over which the rate rises from 0.
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    #: Optimiser steps per batch; beyond one the later ones are off policy, which is what clipping is for.
    mini_batches: Count = 1
    #: Log-probabilities that ratios start from. recompute: the trainer's own, of the weights before the step, which
    #: must be those that sampled. engine: those that came with the rollouts, right for older policies too.
    old_logprobs: Literal["recompute", "engine"] = "recompute"
    #: Tokens per forward pass, a prompt counted once for its group; bounds memory, changes no result.
    micro_batch_tokens: Count = 16_384
    #: Keep each layer's input alone and compute the rest again for the gradient: less memory, a third more time.
    gradient_checkpointing: bool = False
    #: bf16: layers run in bf16; weights and optimiser stay fp32, and log-probabilities are computed in fp32.
    precision: Literal["fp32", "bf16"] = "fp32"
    #: Learn low-rank adapters; without it all weights learn.
    lora: LoraConfig | None = None


class TrainingConfig(Section):
    """How long to train, and what to keep of it."""

    steps: Count = 100
    #: Steps between checkpoints; there is one before the first step and one after the last in any case.
    checkpoint_every: Count = 10
    keep_last: Count = 2
    #: Steps between held-out evaluations; 0 evaluates only before and after.
    eval_every: Annotated[int, Field(ge=0)] = 0
    #: Keep the initial policy in memory and report how far the trained one has moved from it.
    kl_to_initial: bool = True
    #: cpu, cuda, or one of several: cuda:1. Under torchrun, cuda gives each process its own.
    device: Annotated[str, Field(pattern=r"^(cpu|cuda|mps|xpu)(:\d+)?$")] = "cpu"
    #: CPU threads of torch; on a busy machine more than one can cost more than it gives.
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
